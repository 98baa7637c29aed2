//! Failed upgrades, after which everything continues unchanged.

use super::backend::Backend;
use super::client::{Wire, connect, get, tcp};
use super::node::{Folder, Node, eventually, plain, web};
use super::pki::{certificate, client, https, issue};
use crate::support::{hello, upgrade_message};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

struct Scene {
    node: Node,
    config: String,
    persistent: Wire<TcpStream>,
    backend: Backend,
}

fn scene() -> Scene {
    let backend = Backend::new("one");
    let config = plain(&[backend.address()], "", "");
    let node = Node::start(&config);
    let mut persistent = connect(node.address("in"));
    assert_eq!(persistent.get("/x").unwrap().text(), "one");
    Scene { node, config, persistent, backend }
}

impl Scene {
    /// Checks that an upgrade fails with this message and changes nothing.
    fn expect_refusal(&mut self, args: &[&str], message: &str) {
        let before = self.node.serving();
        let (ok, text) = self.node.cli(&[&["upgrade"], args].concat());
        assert!(!ok && text.contains(message), "{message:?} is expected, not: {text}");
        assert!(!text.contains("error: error"), "{text}");
        assert_eq!(self.node.serving(), before);
        assert_eq!(self.persistent.get("/x").unwrap().text(), "one");
        assert_eq!(get(self.node.address("in"), "/x").text(), "one");
    }
}

#[test]
fn program_that_is_not_there_or_ends_changes_nothing() {
    let mut scene = scene();
    scene.expect_refusal(&["--binary", "/nowhere/evergate"], "cannot start /nowhere/evergate: No such file");
    let ends = scene.node.script("ends", "exit 3");
    scene.expect_refusal(&["--binary", &ends], "ends ended before it was ready (exit status: 3)");
    let babbles = scene.node.script("babbles", "echo hello, what is this >&0; cat > /dev/null");
    scene.expect_refusal(&["--binary", &babbles], "sends an unexpected message");
    scene.node.upgrade();
    assert_eq!(scene.persistent.get("/x").unwrap().text(), "one");
}

#[test]
fn program_with_another_wire_version_is_refused() {
    let mut scene = scene();
    let hello = r#"{"Hello":{"version":"9.9.9","upgrade":99,"upgrade_state":1}}"#;
    let other = scene.node.script("other", &format!("{}\ncat > /dev/null", upgrade_message(hello)));
    scene.expect_refusal(&["--binary", &other], "is evergate 9.9.9 and accepts connections of version 99.1");
}

/// The program reads nothing of its input, and ends before all of it is sent.
#[test]
fn error_of_a_program_that_reads_nothing_is_reported() {
    let mut scene = scene();
    let reports = scene.node.script(
        "says",
        &format!("{}\n{}", upgrade_message(&hello()), upgrade_message(r#"{"Failed":"error: no such luck"}"#)),
    );
    for _ in 0..5 {
        scene.expect_refusal(&["--binary", &reports], "no such luck");
    }
}

#[test]
fn upgrade_refuses_a_broken_or_changed_configuration() {
    let mut scene = scene();
    scene.node.write("[[listeners]]\nname = \"in\"\n");
    scene.expect_refusal(&[], "address");
    scene.node.write(&format!("{}# another text\n", scene.config));
    scene.expect_refusal(&[], "`evergate reload` first");
    scene.node.write(&format!("[node]\nworkers = 3\n{}", scene.config));
    scene.expect_refusal(&[], "a restart to change it");
    scene.node.write(&format!("{}# another text\n", scene.config));
    scene.node.reload();
    scene.node.upgrade();
    assert_eq!(scene.persistent.get("/x").unwrap().text(), "one");
    assert!(scene.backend.connections() > 0);
}

/// The program reports that it is ready, and ends while connections are on their way to it. Only these are lost.
#[test]
fn old_process_serves_again_when_the_new_one_ends_too_early() {
    let mut scene = scene();
    let ends = scene.node.script(
        "ends",
        &format!("{}\n{}\nsleep 0.5; exit 1", upgrade_message(&hello()), upgrade_message("\"Ready\"")),
    );
    let before = scene.node.serving();
    let _ = scene.node.cli(&["upgrade", "--binary", &ends]); // success and failure are both possible answers
    scene.node.line("this one serves again");
    assert_eq!(eventually("it serves", || Some(scene.node.serving())), before);
    assert_eq!(get(scene.node.address("in"), "/x").text(), "one");
    assert!(scene.persistent.get("/x").is_err(), "it was passed on");
    scene.node.upgrade();
    assert_eq!(get(scene.node.address("in"), "/x").text(), "one");
}

/// Client that stops in the middle of its handshake, so that it stays in the old process.
pub(super) fn in_handshake(at: SocketAddr) -> TcpStream {
    let mut stream = tcp(at);
    let name = "site.example".try_into().unwrap();
    let mut handshake = rustls::ClientConnection::new(client(None).into(), name).unwrap();
    let mut hello = Vec::new();
    handshake.write_tls(&mut hello).unwrap();
    stream.write_all(&hello).unwrap();
    assert!(stream.peek(&mut [0]).unwrap() > 0, "its server has answered");
    stream
}

/// Node with a TLS listener `in` and a listener `plain` without TLS.
pub(super) fn lingering(backend: &Backend, more: &str) -> Node {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let plain =
        "[[listeners]]\nname = \"plain\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"web\"\n";
    let config =
        format!("{more}{}{plain}{}{}", https(""), certificate("site"), web(&[backend.address()], ""));
    Node::start_in(folder, &config)
}

/// Workers that have passed all connections serve again too.
#[test]
fn old_process_serves_again_when_the_new_one_dies_midway() {
    let backend = Backend::new("one");
    let mut node = lingering(&backend, "[node]\nworkers = 2\npid_file = \"evergate.pid\"\n");
    let first = node.pid();
    let _stays = in_handshake(node.address("in"));
    let upgraded = node.begin_upgrade();
    assert_eq!(upgraded.waiting["handshake"], 1, "{upgraded:?}");
    node.signal("KILL");
    node.line("this one serves again");
    assert_eq!(eventually("it serves", || Some(node.serving())), first);
    for _ in 0..20 {
        assert_eq!(get(node.address("plain"), "/x").text(), "one");
    }
    let pid_file = std::fs::read_to_string(node.folder.path("evergate.pid")).unwrap();
    assert_eq!(pid_file, format!("{first}\n"));
    assert!(
        !std::path::Path::new(&format!("/proc/{}", upgraded.pid)).exists(),
        "the new process was not collected"
    );
    node.upgrade();
    assert_eq!(get(node.address("plain"), "/x").text(), "one");
    assert!(node.wait().success());
}

/// The program closes the workers' streams and lives. Two processes that accept would be worse than one that exits.
#[test]
fn old_process_does_not_serve_beside_a_living_new_one() {
    let mut scene = scene();
    let lives = scene.node.script(
        "lives",
        &format!("{}\n{}\ncat > /dev/null", upgrade_message(&hello()), upgrade_message("\"Ready\"")),
    );
    let _ = scene.node.cli(&["upgrade", "--binary", &lives]); // success and failure are both possible answers
    scene.node.line("the way to it is broken");
    assert!(scene.node.wait().success());
    assert!(!scene.node.lines().iter().any(|line| line.contains("serves again")), "{:?}", scene.node.lines());
}

/// Compares the table of reasons in the documents with the keys in the code.
#[test]
fn every_reason_to_stay_is_in_the_documents() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).unwrap();
    let documents = read("docs/reference/log-reasons.md");
    let code = [
        "proto/connection/src/upgrade_state.rs",
        "proto/worker/src/passing.rs",
        "apps/evergate/src/worker/upgrade.rs",
    ];
    let code: String = code.map(read).concat();
    let of_clusters = "replicated"; // a node of a cluster is not upgraded
    let mut keys: Vec<&str> = code
        .split("Err(\"")
        .skip(1)
        .chain(code.split("ok_or(\"").skip(1))
        .filter_map(|rest| rest.split_once("\")"))
        .map(|(key, _)| key)
        .filter(|key| {
            *key != of_clusters && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    assert!(
        ["handshake", "no_server_socket", "descriptors"].iter().all(|key| keys.contains(key)),
        "{keys:?}"
    );
    for key in keys {
        assert!(documents.contains(&format!("\n| `{key}` |")), "{key}");
    }
}
