//! Traffic that does not end by itself: every byte is compared where it arrives, and silences are noted.

use crate::world::{Node, World, settled};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A transfer that hangs is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// ... and one that is silent for so long is looked at.
const LOOKED_AT: Duration = Duration::from_secs(10);
const PIECE: usize = 16 << 10;
/// Between two pieces: what is tested is what happens, not how fast.
const PAUSE: Duration = Duration::from_millis(5);
/// Longer than any test.
const ENDLESS: u64 = 1 << 40;

pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// The byte at a position: nothing repeats at the length of a record, a segment or a buffer.
pub(crate) fn byte(position: usize) -> u8 {
    ((position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn content(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(byte).collect()
}

/// Byte by byte: nothing behind it may be taken.
pub(crate) fn head(stream: &mut impl Read) -> std::io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Http,
    Tls12,
    Tls13,
}

impl Carrier {
    /// The listener that leads to a server which speaks this.
    pub(crate) fn port(self, server: Server) -> u16 {
        let first = match server {
            Server::Plain => 9000,
            Server::Tls12 => 9010,
            Server::Tls13 => 9020,
        };
        match self {
            Carrier::Tcp => first + 1,
            Carrier::Http => first + 2,
            Carrier::Tls12 | Carrier::Tls13 => first + 3,
        }
    }

    /// A TLS client of this version.
    pub(crate) fn client(
        self,
        roots: &Arc<rustls::RootCertStore>,
    ) -> std::io::Result<rustls::ClientConnection> {
        let version = if self == Carrier::Tls12 { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
        let config = rustls::ClientConfig::builder_with_provider(evergate_crypto::client_provider())
            .with_protocol_versions(&[version])
            .map_err(std::io::Error::other)?
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from("shop.test").map_err(std::io::Error::other)?;
        rustls::ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)
    }
}

/// What the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Plain,
    Tls12,
    Tls13,
}

const SERVERS: [Server; 3] = [Server::Plain, Server::Tls12, Server::Tls13];

impl Server {
    pub(crate) fn address(self, world: &World) -> SocketAddr {
        let port = match self {
            Server::Plain => 8000,
            Server::Tls12 => 8012,
            Server::Tls13 => 8013,
        };
        SocketAddr::new(world.family.inside(254), port)
    }

    /// Its side of TLS.
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

/// A client's transport, what it does, and what the server speaks.
pub(crate) type Transfer = (Carrier, Doing, Server);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Download,
    Upload,
    WebSocket,
    Requests,
    /// A connection for each request.
    Fresh,
}

/// What is under way in tests of the matrix.
pub(crate) const PLAIN: [Transfer; 10] = [
    (Carrier::Tcp, Doing::Download, Server::Plain),
    (Carrier::Tcp, Doing::Upload, Server::Plain),
    (Carrier::Http, Doing::Download, Server::Plain),
    (Carrier::Tls12, Doing::Download, Server::Plain),
    (Carrier::Tls12, Doing::Upload, Server::Plain),
    (Carrier::Tls13, Doing::Download, Server::Plain),
    (Carrier::Tls13, Doing::Upload, Server::Plain),
    (Carrier::Tls13, Doing::WebSocket, Server::Plain),
    (Carrier::Http, Doing::WebSocket, Server::Plain),
    (Carrier::Tls13, Doing::Requests, Server::Plain),
];

/// Some of everything, with connections that come and go.
pub(crate) const MIXED: [Transfer; 14] = [
    (Carrier::Tcp, Doing::Download, Server::Plain),
    (Carrier::Tcp, Doing::Upload, Server::Tls13),
    (Carrier::Http, Doing::Download, Server::Tls12),
    (Carrier::Http, Doing::Upload, Server::Plain),
    (Carrier::Tls12, Doing::Download, Server::Plain),
    (Carrier::Tls12, Doing::Upload, Server::Tls12),
    (Carrier::Tls13, Doing::Download, Server::Tls13),
    (Carrier::Tls13, Doing::Upload, Server::Plain),
    (Carrier::Tls13, Doing::WebSocket, Server::Tls13),
    (Carrier::Tls12, Doing::WebSocket, Server::Plain),
    (Carrier::Tls13, Doing::Requests, Server::Plain),
    (Carrier::Tls12, Doing::Requests, Server::Tls13),
    (Carrier::Tls13, Doing::Fresh, Server::Plain),
    (Carrier::Http, Doing::Fresh, Server::Tls13),
];

/// The same before servers that speak TLS.
pub(crate) const SECURE: [Transfer; 10] = [
    (Carrier::Tcp, Doing::Download, Server::Tls13),
    (Carrier::Tcp, Doing::Upload, Server::Tls12),
    (Carrier::Http, Doing::Download, Server::Tls12),
    (Carrier::Http, Doing::Upload, Server::Tls13),
    (Carrier::Tls13, Doing::Download, Server::Tls13),
    (Carrier::Tls12, Doing::Upload, Server::Tls13),
    (Carrier::Tls13, Doing::WebSocket, Server::Tls13),
    (Carrier::Http, Doing::WebSocket, Server::Tls12),
    (Carrier::Tls13, Doing::Requests, Server::Tls13),
    (Carrier::Http, Doing::Requests, Server::Tls12),
];

/// What all parties know.
pub(crate) struct Board {
    stop: AtomicBool,
    moved: Vec<AtomicU64>,
    silences: Mutex<Vec<(Option<Instant>, Duration)>>,
    wrong: Mutex<Vec<String>>,
    roots: Arc<rustls::RootCertStore>,
}

impl Board {
    fn moved(&self, number: usize) {
        self.moved[number].fetch_add(1, Ordering::Relaxed);
        let (last, longest) = &mut self.silences.lock().unwrap()[number];
        let now = Instant::now();
        *longest = last.map_or(Duration::ZERO, |last| now - last).max(*longest);
        *last = Some(now);
    }

    fn wrong(&self, what: String) {
        if !self.stop.load(Ordering::Relaxed) {
            self.wrong.lock().unwrap().push(what);
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Panics when something broke; otherwise whether every transfer has moved since it moved `since`.
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
    /// Starts servers and clients. The configuration must be [`config`]'s.
    pub(crate) fn start(world: &World, transfers: &'static [Transfer]) -> Traffic {
        let board = Arc::new(Board {
            moved: transfers.iter().map(|_| AtomicU64::new(0)).collect(),
            silences: Mutex::new(vec![(None, Duration::ZERO); transfers.len()]),
            roots: Arc::new(roots(world)),
            stop: AtomicBool::new(false),
            wrong: Mutex::default(),
        });
        for server in SERVERS {
            let (at, tls, shared) = (server.address(world), server.config(world), board.clone());
            world.switch.run(move || {
                let listener = TcpListener::bind(at).unwrap();
                std::thread::spawn(move || serve(&listener, tls.as_ref(), &shared));
            });
        }
        let mut threads = Vec::new();
        for (number, (carrier, doing, server)) in transfers.iter().copied().enumerate() {
            let (board, to) = (board.clone(), SocketAddr::new(world.family.address(), carrier.port(server)));
            threads.push(world.switch.spawn(move || {
                if let Err(error) = transfer(carrier, doing, to, number, &board) {
                    board.wrong(format!("{carrier:?} {doing:?} {server:?}: {error}"));
                }
            }));
        }
        let traffic = Traffic { board, transfers, threads };
        traffic.goes_on("at the beginning");
        traffic
    }

    /// Waits until every transfer has moved on from here.
    pub(crate) fn goes_on(&self, when: &str) {
        self.goes_on_or(when, || {});
    }

    /// The same; `look` is called once when a transfer is silent for long.
    pub(crate) fn goes_on_or(&self, when: &str, look: impl FnOnce()) {
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

    /// The longest silence of each transfer since this was asked last.
    pub(crate) fn silences(&self) -> Vec<Duration> {
        let mut all = self.board.silences.lock().unwrap();
        all.iter_mut().map(|(_, longest)| std::mem::take(longest)).collect()
    }

    /// Ends everything; nothing may have broken.
    pub(crate) fn end(self) {
        let since: Vec<u64> = vec![0; self.transfers.len()];
        self.board.all_moved(&since);
        self.board.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

pub(crate) fn roots(world: &World) -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(world.folder.path("shop.pem")).unwrap();
    roots.add(certificate).unwrap();
    roots
}

/// Three nodes that are a cluster, and their configuration.
pub(crate) fn three(world: &World) -> (Vec<Node>, String) {
    let config = config(world, 3, "");
    let nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    (nodes, config)
}

/// Listeners of all kinds before each server.
pub(crate) fn config(world: &World, nodes: u8, more: &str) -> String {
    world.certificate();
    let mut text =
        world.config(&world.all_entries(nodes), more).replace("flows_max = 1024", "flows_max = 4096");
    let kinds = [("tcp", Carrier::Tcp), ("http", Carrier::Http), ("https", Carrier::Tls13)];
    for server in SERVERS {
        let pool = format!("{server:?}").to_lowercase();
        for (protocol, carrier) in kinds {
            let at = SocketAddr::new(world.family.address(), carrier.port(server));
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
        }
    }
    text + "[[certificates]]\nname = \"shop\"\nchain = \"shop.pem\"\nkey = \"shop.key\"\n"
}

/// One thread per connection; what it takes must be the content.
fn serve(listener: &TcpListener, tls: Option<&Arc<rustls::ServerConfig>>, board: &Arc<Board>) {
    for stream in listener.incoming().flatten() {
        let (board, tls) = (board.clone(), tls.cloned());
        std::thread::spawn(move || {
            stream.set_nodelay(true).unwrap();
            if let Err(error) = answer(&mut BufReader::new(dressed(stream, tls)), &board) {
                board.wrong(format!("the server: {error}"));
            }
        });
    }
}

/// The server's end of the connection as its application sees it.
pub(crate) fn dressed(stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>) -> Box<dyn Stream> {
    match tls {
        None => Box::new(stream),
        Some(config) => {
            let connection = rustls::ServerConnection::new(config).unwrap();
            Box::new(rustls::StreamOwned::new(connection, stream))
        }
    }
}

fn answer(stream: &mut BufReader<Box<dyn Stream>>, board: &Board) -> std::io::Result<()> {
    while board.goes_on() {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            // A connection without a request may end at any time, and does when its node dies.
            let idle = head.is_empty();
            match stream.read_line(&mut head) {
                Ok(0) => return Ok(()),
                Err(_) if idle => return Ok(()),
                result => result?,
            };
        }
        let asked = head.lines().next().unwrap_or_default().to_owned();
        let result = respond(&head, stream, board);
        result.map_err(|error| std::io::Error::other(format!("{asked}: {error}")))?;
    }
    Ok(())
}

fn respond(head: &str, stream: &mut BufReader<Box<dyn Stream>>, board: &Board) -> std::io::Result<()> {
    if head.starts_with("POST ") {
        return compare(stream, board, None);
    }
    if head.starts_with("GET /ws") {
        stream.get_mut().write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )?;
        let mut buffer = vec![0; PIECE];
        while board.goes_on() {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            stream.get_mut().write_all(&buffer[..count])?;
        }
        return Ok(());
    }
    let output = stream.get_mut();
    if let Some((number, _)) = head.strip_prefix("GET /n/").and_then(|rest| rest.split_once(' ')) {
        return write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{number}", number.len());
    }
    write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {ENDLESS}\r\n\r\n")?;
    let mut at = 0;
    while board.goes_on() {
        output.write_all(&content(at, at + PIECE))?;
        at += PIECE;
    }
    Ok(())
}

/// Takes the content until it is told to stop; a piece at a time moves the transfer on.
fn compare(stream: &mut impl Read, board: &Board, number: Option<usize>) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while board.goes_on() {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(std::io::Error::other(format!("the stream ended after {at} bytes")));
        }
        if buffer[..count] != content(at, at + count) {
            let wrong = (0..count).find(|place| buffer[*place] != byte(at + place)).unwrap_or(0);
            return Err(std::io::Error::other(format!("another byte at {}", at + wrong)));
        }
        at += count;
        if let Some(number) = number {
            board.moved(number);
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn transfer(
    carrier: Carrier,
    doing: Doing,
    to: SocketAddr,
    number: usize,
    board: &Board,
) -> std::io::Result<()> {
    let mut stream = connect(carrier, to, &board.roots)?;
    match doing {
        Doing::Download => {
            stream.write_all(b"GET /down HTTP/1.1\r\nHost: shop.test\r\n\r\n")?;
            expect(&mut stream, "HTTP/1.1 200")?;
            compare(&mut stream, board, Some(number))
        }
        Doing::Upload => {
            write!(stream, "POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {ENDLESS}\r\n\r\n")?;
            let mut at = 0;
            while board.goes_on() {
                stream.write_all(&content(at, at + PIECE))?;
                at += PIECE;
                board.moved(number);
                std::thread::sleep(PAUSE);
            }
            Ok(())
        }
        Doing::WebSocket => {
            stream.write_all(
                b"GET /ws HTTP/1.1\r\nHost: shop.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            )?;
            expect(&mut stream, "HTTP/1.1 101")?;
            let mut at = 0;
            while board.goes_on() {
                let (said, mut back) = (content(at, at + 1000), [0; 1000]);
                stream.write_all(&said)?;
                stream.read_exact(&mut back)?;
                if back[..] != said {
                    return Err(std::io::Error::other(format!("another echo at {at}")));
                }
                at += 1000;
                board.moved(number);
                std::thread::sleep(PAUSE);
            }
            Ok(())
        }
        Doing::Requests | Doing::Fresh => {
            let fresh = doing == Doing::Fresh;
            for request in 0u64.. {
                if !board.goes_on() {
                    break;
                }
                ask(&mut stream, request, if fresh { "Connection: close\r\n" } else { "" })?;
                if fresh {
                    if stream.read(&mut [0])? != 0 {
                        return Err(std::io::Error::other(format!("more comes after answer {request}")));
                    }
                    stream = connect(carrier, to, &board.roots)?;
                }
                board.moved(number);
                std::thread::sleep(PAUSE);
            }
            Ok(())
        }
    }
}

/// A request with these fields, and the answer that belongs to it.
fn ask(stream: &mut impl Stream, request: u64, fields: &str) -> std::io::Result<()> {
    write!(stream, "GET /n/{request} HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n")?;
    expect(stream, "HTTP/1.1 200")?;
    let mut said = vec![0; request.to_string().len()];
    stream.read_exact(&mut said)?;
    if said == request.to_string().as_bytes() {
        return Ok(());
    }
    Err(std::io::Error::other(format!("request {request} got another answer")))
}

fn expect(stream: &mut impl Read, start: &str) -> std::io::Result<()> {
    let head = head(stream)?;
    if head.starts_with(start) { Ok(()) } else { Err(std::io::Error::other(head)) }
}

pub(crate) fn connect(
    carrier: Carrier,
    to: SocketAddr,
    roots: &Arc<rustls::RootCertStore>,
) -> std::io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    match carrier {
        Carrier::Tcp | Carrier::Http => Ok(Box::new(stream)),
        Carrier::Tls12 | Carrier::Tls13 => {
            Ok(Box::new(rustls::StreamOwned::new(carrier.client(roots)?, stream)))
        }
    }
}
