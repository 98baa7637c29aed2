//! PROXY headers of clients and towards servers: a node dies before, within and after the header.

use crate::phases::PATIENT;
use crate::traffic::PATIENCE;
use crate::world::{World, privileged, settled};
use evergate_proxy_protocol::{Decoded, Endpoints, decode};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Connections of each kind: their buckets are spread over the nodes.
const CONNECTIONS: u16 = 16;
const NODES: u8 = 3;

/// A connection of a proxy in front of the cluster. Its server echoes everything, the header for it included.
struct Proxied {
    stream: TcpStream,
    source: SocketAddr,
    header: Vec<u8>,
    /// Bytes of its header that were sent.
    sent: usize,
}

impl Proxied {
    fn open(world: &World, number: u16) -> Proxied {
        let to = SocketAddr::new(world.family.address(), 8080);
        let stream = world.switch.run(move || TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let source = SocketAddr::from(([203, 0, 113, 9], 1000 + number));
        let header = format!("PROXY TCP4 203.0.113.9 203.0.113.80 {} 443\r\n", source.port()).into_bytes();
        Proxied { stream, source, header, sent: 0 }
    }

    /// Sends the header up to this length.
    fn send(&mut self, length: usize) {
        self.stream.write_all(&self.header[self.sent..length]).unwrap();
        self.sent = length;
    }

    /// Sends what is left of the header, and expects that the server has received the same addresses.
    fn expect_header(&mut self, when: &str) {
        self.send(self.header.len());
        let mut seen = [0; 28];
        self.stream.read_exact(&mut seen).unwrap_or_else(|error| panic!("{when}: {error}"));
        let Ok(Decoded::Header(header)) = decode(&seen) else { panic!("{when}: {seen:?}") };
        let served = SocketAddr::from(([203, 0, 113, 80], 443));
        assert_eq!(header.endpoints, Some(Endpoints::new(self.source, served)), "{when}");
    }

    fn expect_echo(&mut self, byte: u8, when: &str) {
        self.stream.write_all(&[byte]).unwrap();
        let mut seen = [0];
        self.stream.read_exact(&mut seen).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(seen, [byte], "{when}");
    }
}

#[test]
fn proxied_connections_survive_their_node_at_every_byte() {
    if !privileged() {
        return;
    }
    let world = World::new(NODES);
    world.echo();
    // A client that has retransmitted half a header sends no more of it before an acknowledgement.
    world.switch.ip("route change 10.72.0.0/24 dev out src 10.72.0.254 rto_min 2s").unwrap();
    let config = format!("{PATIENT}{}", world.config(&World::entries(NODES), ""));
    let config = config.replace(
        "protocol = \"tcp\"\n",
        "protocol = \"tcp\"\nproxy_protocol = true\ntrusted_proxies = [\"0.0.0.0/0\"]\n",
    );
    let config =
        config.replace("name = \"web\"\nservers", "name = \"web\"\nproxy_protocol = \"v2\"\nservers");
    let mut nodes: Vec<_> = (1..=NODES).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let mut open: Vec<Proxied> = Vec::new();
    for death in 0..2u8 {
        let first = open.len() as u16;
        let mut before: Vec<_> = (0..CONNECTIONS).map(|i| Proxied::open(&world, first + i)).collect();
        let mut within: Vec<_> = (0..CONNECTIONS).map(|i| Proxied::open(&world, first + 100 + i)).collect();
        let mut behind: Vec<_> = (0..CONNECTIONS).map(|i| Proxied::open(&world, first + 200 + i)).collect();
        within.iter_mut().for_each(|proxied| proxied.send(20));
        behind.iter_mut().for_each(|proxied| proxied.send(proxied.header.len()));
        std::thread::sleep(Duration::from_millis(20 * u64::from(death))); // the first death meets headers on their way
        nodes.remove(0).kill();
        within.iter_mut().for_each(|proxied| proxied.send(proxied.header.len()));
        settled(&nodes);
        open.iter_mut().for_each(|proxied| proxied.expect_echo(b'o', "opened before an earlier death"));
        for (all, when) in [(&mut before, "before"), (&mut within, "within"), (&mut behind, "behind")] {
            for proxied in all {
                proxied.expect_header(when);
                proxied.expect_echo(b'e', when);
            }
        }
        open.extend(before.into_iter().chain(within).chain(behind));
    }
}
