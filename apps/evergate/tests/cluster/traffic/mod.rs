//! Endless traffic: the receiving end compares every byte and records silences. Servers count uploads, which end in
//! order and must arrive whole.

mod clients;
mod servers;

pub(crate) use clients::{ask, connect};
pub(crate) use servers::{Shared, server_stream};

use crate::world::{Node, World, settled};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after which a silent transfer counts as broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which a silent transfer is printed with the state of the sockets.
const LOOKED_AT: Duration = Duration::from_secs(10);
const PIECE: usize = 16 << 10;
/// Pause between two pieces. The tests check correctness, not speed.
const PAUSE: Duration = Duration::from_millis(5);
/// Longer than any test.
const ENDLESS: u64 = 1 << 40;
/// Size of one uploaded request: more than all buffers on the way hold, so that it is under way when a node dies.
const UPLOAD: usize = 16 << 20;

pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Byte at a position. Its sequence has no period of the length of a record, a segment or a buffer.
pub(crate) fn byte(position: usize) -> u8 {
    ((position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn content(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(byte).collect()
}

/// Reads a head byte by byte, and nothing behind it.
pub(crate) fn head(stream: &mut impl Read) -> std::io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Http,
    Tls12,
    Tls13,
    /// TLS 1.2 to the server itself, behind a passthrough listener.
    Relayed12,
    /// The same with TLS 1.3.
    Relayed13,
}

impl Transport {
    /// Port of the listener that leads to this server.
    pub(crate) fn port(self, server: Server) -> u16 {
        let first = match server {
            Server::Plain => 9000,
            Server::Tls12 => 9010,
            Server::Tls13 => 9020,
        };
        match self {
            Transport::Tcp => first + 1,
            Transport::Http => first + 2,
            Transport::Tls12 | Transport::Tls13 => first + 3,
            Transport::Relayed12 | Transport::Relayed13 => first + 4,
        }
    }

    /// Server of tests with one for each transport: a relayed client needs one that terminates its TLS.
    pub(crate) fn server(self) -> Server {
        match self {
            Transport::Relayed12 => Server::Tls12,
            Transport::Relayed13 => Server::Tls13,
            _ => Server::Plain,
        }
    }

    /// TLS client of this version.
    pub(crate) fn client(
        self,
        roots: &Arc<rustls::RootCertStore>,
    ) -> std::io::Result<rustls::ClientConnection> {
        let version = match self {
            Transport::Tls12 | Transport::Relayed12 => &rustls::version::TLS12,
            _ => &rustls::version::TLS13,
        };
        let config = rustls::ClientConfig::builder_with_provider(evergate_crypto::client_provider())
            .with_protocol_versions(&[version])
            .map_err(std::io::Error::other)?
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from("shop.test").map_err(std::io::Error::other)?;
        rustls::ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)
    }
}

/// Protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Plain,
    Tls12,
    Tls13,
}

pub(crate) const SERVERS: [Server; 3] = [Server::Plain, Server::Tls12, Server::Tls13];

impl Server {
    pub(crate) fn address(self, world: &World) -> SocketAddr {
        let port = match self {
            Server::Plain => 8000,
            Server::Tls12 => 8012,
            Server::Tls13 => 8013,
        };
        SocketAddr::new(world.family.inside(254), port)
    }

    /// Configuration of the server's TLS.
    pub(crate) fn config(self, world: &World) -> Option<Arc<rustls::ServerConfig>> {
        let version = match self {
            Server::Plain => return None,
            Server::Tls12 => &rustls::version::TLS12,
            Server::Tls13 => &rustls::version::TLS13,
        };
        let certificate = CertificateDer::from_pem_file(world.folder.path("shop.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(world.folder.path("shop.key")).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(evergate_crypto::client_provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Some(Arc::new(config))
    }
}

/// A client's transport, its action, and the server's protocol.
pub(crate) type Transfer = (Transport, Action, Server);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Download,
    Upload,
    WebSocket,
    Requests,
    /// A connection for each request.
    Fresh,
}

/// Transfers of the tests of the matrix.
pub(crate) const PLAIN: [Transfer; 10] = [
    (Transport::Tcp, Action::Download, Server::Plain),
    (Transport::Tcp, Action::Upload, Server::Plain),
    (Transport::Http, Action::Download, Server::Plain),
    (Transport::Tls12, Action::Download, Server::Plain),
    (Transport::Tls12, Action::Upload, Server::Plain),
    (Transport::Tls13, Action::Download, Server::Plain),
    (Transport::Tls13, Action::Upload, Server::Plain),
    (Transport::Tls13, Action::WebSocket, Server::Plain),
    (Transport::Http, Action::WebSocket, Server::Plain),
    (Transport::Tls13, Action::Requests, Server::Plain),
];

/// Transfers of every kind, with connections that come and go.
pub(crate) const MIXED: [Transfer; 16] = [
    (Transport::Tcp, Action::Download, Server::Plain),
    (Transport::Tcp, Action::Upload, Server::Tls13),
    (Transport::Http, Action::Download, Server::Tls12),
    (Transport::Http, Action::Upload, Server::Plain),
    (Transport::Tls12, Action::Download, Server::Plain),
    (Transport::Tls12, Action::Upload, Server::Tls12),
    (Transport::Tls13, Action::Download, Server::Tls13),
    (Transport::Tls13, Action::Upload, Server::Plain),
    (Transport::Tls13, Action::WebSocket, Server::Tls13),
    (Transport::Tls12, Action::WebSocket, Server::Plain),
    (Transport::Tls13, Action::Requests, Server::Plain),
    (Transport::Tls12, Action::Requests, Server::Tls13),
    (Transport::Tls13, Action::Fresh, Server::Plain),
    (Transport::Http, Action::Fresh, Server::Tls13),
    (Transport::Relayed13, Action::Upload, Server::Tls13),
    (Transport::Relayed12, Action::Fresh, Server::Tls12),
];

/// Transfers of [`PLAIN`] in front of TLS servers, and with TLS that the servers terminate themselves.
pub(crate) const SECURE: [Transfer; 15] = [
    (Transport::Tcp, Action::Download, Server::Tls13),
    (Transport::Tcp, Action::Upload, Server::Tls12),
    (Transport::Http, Action::Download, Server::Tls12),
    (Transport::Http, Action::Upload, Server::Tls13),
    (Transport::Tls13, Action::Download, Server::Tls13),
    (Transport::Tls12, Action::Upload, Server::Tls13),
    (Transport::Tls13, Action::WebSocket, Server::Tls13),
    (Transport::Http, Action::WebSocket, Server::Tls12),
    (Transport::Tls13, Action::Requests, Server::Tls13),
    (Transport::Http, Action::Requests, Server::Tls12),
    (Transport::Relayed13, Action::Download, Server::Tls13),
    (Transport::Relayed12, Action::Upload, Server::Tls12),
    (Transport::Relayed13, Action::Upload, Server::Tls13),
    (Transport::Relayed12, Action::WebSocket, Server::Tls12),
    (Transport::Relayed13, Action::Fresh, Server::Tls13),
];

/// State that all clients and servers share.
pub(crate) struct Board {
    stop: AtomicBool,
    moved: Vec<AtomicU64>,
    /// Bytes of uploads: sent by the client, and received by the server.
    uploads: Vec<[AtomicU64; 2]>,
    silences: Mutex<Vec<(Option<Instant>, Duration)>>,
    wrong: Mutex<Vec<String>>,
    roots: Arc<rustls::RootCertStore>,
}

/// End of an upload that counts.
#[derive(Clone, Copy)]
enum End {
    Sent,
    Taken,
}

impl Board {
    /// Records that a piece of this transfer has arrived.
    fn moved(&self, number: usize) {
        self.moved[number].fetch_add(1, Ordering::Relaxed);
        let (last, longest) = &mut self.silences.lock().unwrap()[number];
        let now = Instant::now();
        *longest = last.map_or(Duration::ZERO, |last| now - last).max(*longest);
        *last = Some(now);
    }

    fn count(&self, number: usize, end: End, bytes: usize) {
        self.uploads[number][end as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records an error. After `stop`, errors count only for transfers that end in order.
    fn wrong(&self, ends_in_order: bool, what: String) {
        if ends_in_order || self.continues() {
            self.wrong.lock().unwrap().push(what);
        }
    }

    fn continues(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Whether every transfer has moved since `since`. Panics on a recorded error.
    fn all_moved(&self, since: &[u64]) -> bool {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "broken: {wrong:#?}");
        self.moved.iter().zip(since).all(|(moved, since)| moved.load(Ordering::Relaxed) > *since + 3)
    }
}

/// Transfers of all kinds through the cluster's address.
pub(crate) struct Traffic {
    pub(crate) board: Arc<Board>,
    transfers: &'static [Transfer],
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts servers and clients. The nodes must run the configuration of [`config`].
    pub(crate) fn start(world: &World, transfers: &'static [Transfer]) -> Traffic {
        let board = Arc::new(Board {
            moved: transfers.iter().map(|_| AtomicU64::new(0)).collect(),
            uploads: transfers.iter().map(|_| Default::default()).collect(),
            silences: Mutex::new(vec![(None, Duration::ZERO); transfers.len()]),
            roots: Arc::new(roots(world)),
            stop: AtomicBool::new(false),
            wrong: Mutex::default(),
        });
        for server in SERVERS {
            let (at, tls, shared) = (server.address(world), server.config(world), board.clone());
            world.switch.run(move || {
                let listener = TcpListener::bind(at).unwrap();
                std::thread::spawn(move || servers::serve(&listener, tls.as_ref(), &shared));
            });
        }
        let mut threads = Vec::new();
        for (number, (transport, action, server)) in transfers.iter().copied().enumerate() {
            let (board, to) =
                (board.clone(), SocketAddr::new(world.family.address(), transport.port(server)));
            threads.push(world.switch.spawn(move || {
                if let Err(error) = clients::transfer(transport, action, to, number, &board) {
                    board.wrong(
                        action == Action::Upload,
                        format!("{transport:?} {action:?} {server:?}: {error}"),
                    );
                }
            }));
        }
        let traffic = Traffic { board, transfers, threads };
        traffic.continues("at the beginning");
        traffic
    }

    /// Waits until every transfer has moved on.
    pub(crate) fn continues(&self, when: &str) {
        self.continues_or(when, || {});
    }

    /// [`Traffic::continues`], which calls `look` once when a transfer is silent for [`LOOKED_AT`].
    pub(crate) fn continues_or(&self, when: &str, look: impl FnOnce()) {
        let (mut look, look_at) = (Some(look), Instant::now() + LOOKED_AT);
        let since: Vec<u64> = self.board.moved.iter().map(|moved| moved.load(Ordering::Relaxed)).collect();
        let until = Instant::now() + PATIENCE;
        while !self.board.all_moved(&since) {
            let still: Vec<_> = (0..self.transfers.len())
                .filter(|number| self.board.moved[*number].load(Ordering::Relaxed) <= since[*number] + 3)
                .map(|number| self.transfers[number])
                .collect();
            if let Some(look) = look.take_if(|_| Instant::now() >= look_at) {
                println!("{when}: these are silent: {still:?}");
                look();
            }
            assert!(Instant::now() < until, "{when}: these hang: {still:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Longest silence of each transfer since the last call.
    pub(crate) fn silences(&self) -> Vec<Duration> {
        let mut all = self.board.silences.lock().unwrap();
        all.iter_mut().map(|(_, longest)| std::mem::take(longest)).collect()
    }

    /// Ends all transfers. None may have broken, and servers must have received all uploaded bytes.
    pub(crate) fn end(self) {
        let since: Vec<u64> = vec![0; self.transfers.len()];
        self.board.all_moved(&since);
        self.board.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.board.all_moved(&since);
        for (transfer, bytes) in self.transfers.iter().zip(&self.board.uploads) {
            let [sent, taken] =
                [End::Sent, End::Taken].map(|end| bytes[end as usize].load(Ordering::Relaxed));
            assert_eq!(sent, taken, "{transfer:?}: sent, and taken by the server");
            assert_eq!(sent > 0, transfer.1 == Action::Upload, "{transfer:?}: {sent} bytes");
        }
    }
}

pub(crate) fn roots(world: &World) -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(world.folder.path("shop.pem")).unwrap();
    roots.add(certificate).unwrap();
    roots
}

/// Three nodes that form a cluster, and their configuration.
pub(crate) fn three(world: &World) -> (Vec<Node>, String) {
    let config = config(world, 3, "");
    let nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    (nodes, config)
}

/// Configuration with a listener of each kind in front of each server.
pub(crate) fn config(world: &World, nodes: u8, more: &str) -> String {
    world.certificate();
    let mut text =
        world.config(&world.all_entries(nodes), more).replace("flows_max = 1024", "flows_max = 4096");
    let kinds = [("tcp", Transport::Tcp), ("http", Transport::Http), ("https", Transport::Tls13)];
    for server in SERVERS {
        let pool = format!("{server:?}").to_lowercase();
        for (protocol, transport) in kinds {
            let at = SocketAddr::new(world.family.address(), transport.port(server));
            text.push_str(&format!(
                "[[listeners]]\nname = \"{protocol}-{pool}\"\naddress = \"{at}\"\nprotocol = \"{protocol}\"\n\
                 pool = \"{pool}\"\n"
            ));
            if protocol == "https" {
                text.push_str("certificates = [\"shop\"]\n");
            }
        }
        let at = server.address(world);
        text.push_str(&format!("[[pools]]\nname = \"{pool}\"\nservers = [{{ address = \"{at}\" }}]\n"));
        if server != Server::Plain {
            text.push_str("tls = { ca = \"shop.pem\", server_name = \"shop.test\" }\n");
            text.push_str(&relaying(world, server));
        }
    }
    text + "[[certificates]]\nname = \"shop\"\nchain = \"shop.pem\"\nkey = \"shop.key\"\n"
}

/// A passthrough listener in front of this server: a rule routes by the ClientHello.
fn relaying(world: &World, server: Server) -> String {
    let name = format!("relayed-{}", format!("{server:?}").to_lowercase());
    let to = SocketAddr::new(world.family.address(), Transport::Relayed13.port(server));
    let at = server.address(world);
    format!(
        "[[listeners]]\nname = \"{name}\"\naddress = \"{to}\"\nprotocol = \"passthrough\"\n\
         [[pools]]\nname = \"{name}\"\nservers = [{{ address = \"{at}\" }}]\n\
         [[rules]]\nname = \"{name}\"\nlisteners = [\"{name}\"]\nwhen = 'tls.sni == \"shop.test\"'\n\
         route = \"{name}\"\n"
    )
}

/// Reads the next bytes of the content from `at` on; the new position.
fn compare(stream: &mut impl Read, buffer: &mut [u8], at: usize) -> std::io::Result<usize> {
    let count = stream.read(buffer)?;
    if count == 0 {
        return Err(std::io::Error::other(format!("the stream ended after {at} bytes")));
    }
    if buffer[..count] != content(at, at + count) {
        let wrong = (0..count).find(|place| buffer[*place] != byte(at + place)).unwrap_or(0);
        return Err(std::io::Error::other(format!("another byte at {}", at + wrong)));
    }
    Ok(at + count)
}
