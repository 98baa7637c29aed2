//! Clients that were not written here (curl, `openssl s_client`, Python's http.client) while node after node is killed until
//! one is left: everything arrives, on the connections that were opened at the beginning.

use crate::matrix::carrier;
use crate::phases::server::{read_chunked, take};
use crate::support::eventually;
use crate::traffic::{config, content, head};
use crate::world::{ADDRESS, Node, World, privileged, settled};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const PIECE: usize = 16 << 10;
/// Between two pieces, or before an answer: transfers last as long as the test wants.
const PAUSE: Duration = Duration::from_millis(5);
/// Requests on a kept connection; those after the last death are answered at once.
const REQUESTS: usize = 1500;

/// A client that asks, sends, and asks again on one connection; it may not open another one.
const PYTHON: &str = r#"
import http.client, ssl, sys
pem, address, requests = sys.argv[1], sys.argv[2], int(sys.argv[3])
context = ssl.create_default_context(cafile=pem)
class Connection(http.client.HTTPSConnection):
    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname="shop.test")
connection = Connection(address, 9003, context=context, timeout=30)
connection.connect()
connection.auto_open = 0
body = bytes(((at * 0x9e3779b97f4a7c15) >> 56) & 255 for at in range(50000))
for number in range(requests):
    if number % 10 == 9:
        connection.request("POST", "/take", body, {"Host": "shop.test"})
        wanted = "whole 50000"
    else:
        connection.request("GET", f"/n/{number}", headers={"Host": "shop.test"})
        wanted = str(number)
    said = connection.getresponse().read().decode()
    assert said == wanted, f"request {number}: {said[:100]!r}"
print("done", requests)
"#;

/// What the server and the test share.
#[derive(Default)]
struct Desk {
    /// Transfers may end.
    over: AtomicBool,
    /// Transfers and requests that have begun.
    begun: AtomicUsize,
    /// Bytes of each download, when it has ended.
    sent: Mutex<BTreeMap<String, usize>>,
    wrong: Mutex<Vec<String>>,
}

impl Desk {
    /// Waits a little, unless everything may end.
    fn goes_on(&self) -> bool {
        let goes_on = !self.over.load(Ordering::Relaxed);
        if goes_on {
            std::thread::sleep(PAUSE);
        }
        goes_on
    }
}

fn serve(listener: &TcpListener, desk: &Arc<Desk>) {
    for stream in listener.incoming().flatten() {
        let desk = desk.clone();
        std::thread::spawn(move || {
            let mut asked = String::new();
            if let Err(error) = converse(&stream, &desk, &mut asked) {
                desk.wrong.lock().unwrap().push(format!("{asked}: {error}"));
            }
        });
    }
}

fn converse(mut output: &TcpStream, desk: &Desk, asked: &mut String) -> Result<()> {
    output.set_nodelay(true)?;
    let mut input = BufReader::new(output.try_clone()?);
    loop {
        match input.fill_buf() {
            Ok([]) | Err(_) => return Ok(()), // between requests a connection may end at any time
            Ok(_) => {}
        }
        let head = head(&mut input)?;
        *asked = head.lines().next().unwrap_or_default().to_owned();
        desk.begun.fetch_add(1, Ordering::Relaxed);
        let path = asked.split(' ').nth(1).unwrap_or_default();
        match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some(("stream", name)) => {
                output.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                let mut at = 0;
                while desk.goes_on() {
                    write!(output, "{PIECE:x}\r\n")?;
                    output.write_all(&content(at, at + PIECE))?;
                    output.write_all(b"\r\n")?;
                    at += PIECE;
                }
                desk.sent.lock().unwrap().insert(name.to_owned(), at);
                output.write_all(b"0\r\n\r\n")?;
            }
            Some((_, number)) => {
                desk.goes_on();
                write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{number}", number.len())?;
            }
            None => take(&head, &mut input, &mut output)?,
        }
    }
}

/// A client under way: its name, and what is wrong with what it did.
type Running = (String, JoinHandle<std::result::Result<(), String>>);

/// Starts a client among the others; `feed` writes its input, `check` looks at its output.
fn run(
    world: &World,
    name: &str,
    mut command: Command,
    feed: impl FnOnce(&mut dyn Write) -> Result<usize> + Send + 'static,
    check: impl FnOnce(&[u8], usize) -> std::result::Result<(), String> + Send + 'static,
) -> Running {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let thread = world.switch.spawn(move || {
        let mut child: Child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut input = child.stdin.take().unwrap();
        let feeding = std::thread::spawn(move || feed(&mut input));
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let fed = feeding.join().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(format!("{}, {} bytes, fed {fed:?}: {said}", output.status, output.stdout.len()));
        }
        check(&output.stdout, fed.map_err(|error| format!("{error}: {said}"))?)
    });
    (name.to_owned(), thread)
}

/// curl, for the cluster's name at this port.
fn curl(world: &World, more: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--no-buffer", "--max-time", "120", "--cacert"]);
    command.arg(world.folder.path("shop.pem"));
    for port in [9002, 9003] {
        command.arg("--resolve").arg(format!("shop.test:{port}:{ADDRESS}"));
    }
    command.args(more);
    command
}

fn nothing(_: &mut dyn Write) -> Result<usize> {
    Ok(0)
}

/// All that the server sent under this name.
fn is_stream(desk: &Desk, name: &str, came: &[u8]) -> std::result::Result<(), String> {
    let sent = desk.sent.lock().unwrap().get(name).copied();
    match sent == Some(came.len()) && came == content(0, came.len()) {
        true => Ok(()),
        false => Err(format!("{} bytes came of {sent:?}, or other ones", came.len())),
    }
}

fn downloads(world: &World, desk: &Arc<Desk>) -> Vec<Running> {
    let mut all = Vec::new();
    for (name, more) in [
        ("curl-tls13", &["--tlsv1.3", "https://shop.test:9003/stream/curl-tls13"][..]),
        ("curl-tls12", &["--tls-max", "1.2", "https://shop.test:9003/stream/curl-tls12"]),
        ("curl-http", &["http://shop.test:9002/stream/curl-http"]),
    ] {
        let desk = desk.clone();
        let check = move |came: &[u8], _| is_stream(&desk, name, came);
        all.push(run(world, name, curl(world, more), nothing, check));
    }
    for (name, version) in [("openssl-tls13", "-tls1_3"), ("openssl-tls12", "-tls1_2")] {
        let mut command = Command::new("openssl");
        command.args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-verify_hostname",
            "shop.test",
            version,
        ]);
        command.args(["-servername", "shop.test", "-connect", &format!("{ADDRESS}:9003"), "-CAfile"]);
        command.arg(world.folder.path("shop.pem"));
        let ask = move |input: &mut dyn Write| {
            let head = format!("GET /stream/{name} HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n");
            input.write_all(head.as_bytes()).map(|()| head.len())
        };
        let desk = desk.clone();
        let check = move |mut came: &[u8], _| {
            let (head, mut body) = (head(&mut came).map_err(|error| error.to_string())?, Vec::new());
            read_chunked(&mut came, &mut body).map_err(|error| format!("{head} {error}"))?;
            is_stream(&desk, name, &body)
        };
        all.push(run(world, name, command, ask, check));
    }
    all
}

fn uploads(world: &World, desk: &Arc<Desk>) -> Vec<Running> {
    let mut all = Vec::new();
    for (name, url) in
        [("curl-up-tls", "https://shop.test:9003/take"), ("curl-up-http", "http://shop.test:9002/take")]
    {
        let desk = desk.clone();
        let feed = move |input: &mut dyn Write| {
            let mut at = 0;
            while desk.goes_on() {
                input.write_all(&content(at, at + PIECE))?;
                at += PIECE;
            }
            Ok(at)
        };
        let check = |came: &[u8], fed: usize| match came == format!("whole {fed}").as_bytes() {
            true => Ok(()),
            false => Err(format!("{:?} of {fed} bytes", String::from_utf8_lossy(came))),
        };
        all.push(run(world, name, curl(world, &["--upload-file", "-", url]), feed, check));
    }
    all
}

fn requests(world: &World) -> Vec<Running> {
    let mut all = Vec::new();
    for (name, base) in
        [("curl-kept-tls", "https://shop.test:9003"), ("curl-kept-http", "http://shop.test:9002")]
    {
        let url = format!("{base}/n/[1-{REQUESTS}]");
        let format = "%{http_code} %{num_connects} %{size_download}\n";
        let command = curl(world, &["--output", "/dev/null", "--write-out", format, &url]);
        let check = |came: &[u8], _| {
            let digits = |number: usize| number.to_string().len();
            let line = |number| format!("200 {} {}\n", u8::from(number == 1), digits(number));
            let wanted: String = (1..=REQUESTS).map(line).collect();
            let came = String::from_utf8_lossy(came);
            let odd = came.lines().zip(wanted.lines()).position(|(came, wanted)| came != wanted);
            match came == wanted {
                true => Ok(()),
                false => Err(format!("{} answers, the first odd one is {odd:?}", came.lines().count())),
            }
        };
        all.push(run(world, name, command, nothing, check));
    }
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON]).arg(world.folder.path("shop.pem")).args([ADDRESS, &REQUESTS.to_string()]);
    let check = |came: &[u8], _| match came == format!("done {REQUESTS}\n").as_bytes() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(came).into_owned()),
    };
    all.push(run(world, "python", python, nothing, check));
    all
}

#[test]
fn foreign_clients_outlive_all_nodes_but_one() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let config = config(&world, 3, "");
    let mut nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let desk = Arc::new(Desk::default());
    let (at, shared) = (SocketAddr::new(world.family.inside(254), 8000), desk.clone());
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || serve(&listener, &shared));
    });
    let mut all = downloads(&world, &desk);
    all.extend(uploads(&world, &desk));
    all.extend(requests(&world));
    let moving = || {
        let since = desk.begun.load(Ordering::Relaxed);
        eventually("requests go on", || (desk.begun.load(Ordering::Relaxed) > since + 20).then_some(()));
    };
    moving();
    while nodes.len() > 1 {
        carrier(&mut nodes).kill();
        settled(&nodes);
        moving();
    }
    desk.over.store(true, Ordering::Relaxed);
    let mut broken = Vec::new();
    for (name, thread) in all {
        if let Err(error) = thread.join().unwrap() {
            broken.push(format!("{name}: {error}"));
        }
    }
    let (wrong, sent) = (desk.wrong.lock().unwrap().clone(), desk.sent.lock().unwrap().clone());
    assert!(broken.is_empty() && wrong.is_empty(), "{broken:#?}; the server: {wrong:#?}");
    println!("downloads of {sent:?} bytes");
    let continued: u64 = nodes.iter().map(|node| node.status().counts.connections_continued).sum();
    assert!(continued > 0, "the nodes that died carried nothing");
}
