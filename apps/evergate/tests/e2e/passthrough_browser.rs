//! Chromium in front of a passthrough listener: its ClientHello has GREASE, and a post-quantum key share that fills two
//! segments. HTTP/2 is between browser and server.

use super::node::{DEADLINE, Node};
use super::session_clients::limited;
use super::terminators::{NAME, Terminators};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

const LISTENER: &str =
    "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"passthrough\"\n";
/// Content that the page loads after itself.
const CONTENT_BYTES: usize = 1 << 20;
/// X25519MLKEM768 in the list of a server that does not know its name.
const POST_QUANTUM: &str = "0x11ec";
/// Length of a ClientHello with such a key share.
const HELLO_BYTES_MIN: usize = 1500;

/// Forwards connections to `to`; the bytes of each ClientHello's first record.
fn measure(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, hellos) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let seen = hellos.clone();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let (mut server, seen) = (TcpStream::connect(to).unwrap(), seen.clone());
            let (mut down, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut head = [0; 5];
                if client.read_exact(&mut head).is_ok() && server.write_all(&head).is_ok() {
                    seen.lock().unwrap().push(5 + usize::from(u16::from_be_bytes([head[3], head[4]])));
                    let _ = std::io::copy(&mut client, &mut server);
                }
                let _ = server.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut down, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    (address, hellos)
}

/// GREASE values have two equal bytes that end in `a` (RFC 8701).
fn is_grease(word: &str) -> bool {
    let digits = word.strip_prefix("0x").unwrap_or_default();
    digits.len() == 4 && digits[..2] == digits[2..] && digits.ends_with('a')
}

/// Loads the page, and prints the document that its script has left.
fn browse(terminators: &Terminators, port: u16) -> String {
    let home = terminators.folder.path("chromium");
    let mut command = limited(Path::new("chromium"));
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
    command.args(["--ignore-certificate-errors", &format!("--host-resolver-rules=MAP {NAME} 127.0.0.1")]);
    command.arg(format!("--user-data-dir={}", home.display())).env("HOME", &home);
    command.args(["--dump-dom", &format!("--timeout={}", DEADLINE.as_millis())]);
    command.arg(format!("https://{NAME}:{port}/"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Content of the element with this id.
fn element<'a>(page: &'a str, id: &str) -> &'a str {
    let begun = page.split_once(&format!("<p id=\"{id}\">")).map(|(_, rest)| rest);
    begun.and_then(|rest| rest.split_once("</p>")).unwrap_or_else(|| panic!("no {id} in {page}")).0
}

#[test]
fn chromium_negotiates_http2_with_the_server() {
    let script = "var request = new XMLHttpRequest(); request.open(\"GET\", \"/content\", false); request.send();\
                  document.write(\"<p id=content>\" + request.responseText.length + \"</p>\");";
    let page = format!(
        "<p id=protocols>$ssl_protocol $server_protocol</p><p id=curves>$ssl_curves</p>\
         <p id=suites>$ssl_ciphers</p><script>{script}</script>"
    );
    let terminators = Terminators::with(2, "http2", |_| {
        format!(
            "ssl_protocols TLSv1.2 TLSv1.3;\nroot .;\nlocation = / {{ default_type text/html; return 200 '{page}'; }}"
        )
    });
    terminators.folder.write("content", &"x".repeat(CONTENT_BYTES));
    let rule = format!(
        "[[rules]]\nname = \"h2\"\nlisteners = [\"in\"]\nroute = \"web\"\n\
         when = 'tls.sni == \"{NAME}\" && tls.alpn.contains(\"h2\")'\n"
    );
    let node = Node::start(&format!("{LISTENER}{rule}{}", terminators.pool("sslsard")));
    let (address, hellos) = measure(node.address("in"));
    let page = browse(&terminators, address.port());
    assert_eq!(element(&page, "protocols"), "TLSv1.3 HTTP/2.0");
    assert_eq!(element(&page, "content"), CONTENT_BYTES.to_string());
    let (curves, suites) = (element(&page, "curves"), element(&page, "suites"));
    assert!(curves.split(':').any(|curve| curve == POST_QUANTUM), "{curves}");
    assert!(suites.split(':').any(is_grease) && curves.split(':').any(is_grease), "{suites} {curves}");
    let hellos = hellos.lock().unwrap();
    assert!(hellos.iter().any(|bytes| *bytes > HELLO_BYTES_MIN), "{hellos:?}");
    let status = node.status();
    assert!(
        status.pools[0].servers.iter().any(|server| server.handshakes.is_some()),
        "the node reads handshakes"
    );
}
