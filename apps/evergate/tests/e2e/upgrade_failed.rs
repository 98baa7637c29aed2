//! Upgrades that cannot be: everything goes on as if nobody had asked.

use super::backend::Backend;
use super::client::{Wire, connect, get, tcp};
use super::node::{Folder, Node, eventually, plain, web};
use super::pki::{certificate, client, https, issue};
use crate::support::{hello, reported};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

struct Scene {
    node: Node,
    config: String,
    kept: Wire<TcpStream>,
    backend: Backend,
}

fn scene() -> Scene {
    let backend = Backend::new("one");
    let config = plain(&[backend.address()], "", "");
    let node = Node::start(&config);
    let mut kept = connect(node.address("in"));
    assert_eq!(kept.get("/x").unwrap().text(), "one");
    Scene { node, config, kept, backend }
}

impl Scene {
    /// An upgrade fails with this in its message, and changes nothing.
    fn expect_refusal(&mut self, args: &[&str], message: &str) {
        let before = self.node.serving();
        let (ok, text) = self.node.cli(&[&["upgrade"], args].concat());
        assert!(!ok && text.contains(message), "{message:?} is expected, not: {text}");
        assert!(!text.contains("error: error"), "{text}");
        assert_eq!(self.node.serving(), before);
        assert_eq!(self.kept.get("/x").unwrap().text(), "one");
        assert_eq!(get(self.node.address("in"), "/x").text(), "one");
    }
}

#[test]
fn a_program_that_is_not_there_or_ends_changes_nothing() {
    let mut scene = scene();
    scene.expect_refusal(&["--binary", "/nowhere/evergate"], "cannot start /nowhere/evergate: No such file");
    let ends = scene.node.script("ends", "exit 3");
    scene.expect_refusal(&["--binary", &ends], "ends ended before it was ready (exit status: 3)");
    let babbles = scene.node.script("babbles", "echo hello, what is this >&0; cat > /dev/null");
    scene.expect_refusal(&["--binary", &babbles], "does not speak as expected");
    scene.node.upgrade();
    assert_eq!(scene.kept.get("/x").unwrap().text(), "one");
}

#[test]
fn a_program_that_takes_connections_in_another_form_is_refused() {
    let mut scene = scene();
    let hello = r#"{"Hello":{"version":"9.9.9","upgrade":99,"upgrade_state":1}}"#;
    let other = scene.node.script("other", &format!("{}\ncat > /dev/null", reported(hello)));
    scene.expect_refusal(&["--binary", &other], "is evergate 9.9.9 and takes connections in form 99.1");
}

/// It does not read what it is offered, and has ended before all of that is sent.
#[test]
fn a_program_that_says_why_before_it_hears_anything_is_heard() {
    let mut scene = scene();
    let reports = scene.node.script(
        "says",
        &format!("{}\n{}", reported(&hello()), reported(r#"{"Failed":"error: no such luck"}"#)),
    );
    for _ in 0..5 {
        scene.expect_refusal(&["--binary", &reports], "no such luck");
    }
}

#[test]
fn a_configuration_that_is_broken_or_another_one_is_refused_in_the_new_process_words() {
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
    assert_eq!(scene.kept.get("/x").unwrap().text(), "one");
    assert!(scene.backend.connections() > 0);
}

/// It says that it is ready and ends when connections are on their way to it: these are lost, and only these.
#[test]
fn the_old_process_serves_again_when_the_new_one_ends_too_early() {
    let mut scene = scene();
    let ends = scene
        .node
        .script("ends", &format!("{}\n{}\nsleep 0.5; exit 1", reported(&hello()), reported("\"Ready\"")));
    let before = scene.node.serving();
    let _ = scene.node.cli(&["upgrade", "--binary", &ends]); // it went, or it broke: both may be said
    scene.node.line("this one serves again");
    assert_eq!(eventually("it serves", || Some(scene.node.serving())), before);
    assert_eq!(get(scene.node.address("in"), "/x").text(), "one");
    assert!(scene.kept.get("/x").is_err(), "it was passed on");
    scene.node.upgrade();
    assert_eq!(get(scene.node.address("in"), "/x").text(), "one");
}

/// A client that stops in the middle of its handshake, and therefore stays in the old process.
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

/// A node with a listener `in` for TLS and one without, `plain`.
pub(super) fn lingering(backend: &Backend, more: &str) -> Node {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let plain =
        "[[listeners]]\nname = \"plain\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"web\"\n";
    let config =
        format!("{more}{}{plain}{}{}", https(""), certificate("site"), web(&[backend.address()], ""));
    Node::start_in(folder, &config)
}

/// The workers that have passed everything serve again too.
#[test]
fn the_old_process_serves_again_whole_when_the_new_one_dies_before_it_has_everything() {
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
    assert!(!std::path::Path::new(&format!("/proc/{}", upgraded.pid)).exists(), "nobody waited for it");
    node.upgrade();
    assert_eq!(get(node.address("plain"), "/x").text(), "one");
    assert!(node.wait().success());
}

/// It loses the workers' streams, and lives: two processes that accept would be worse.
#[test]
fn the_old_process_does_not_serve_beside_a_new_one_that_lives() {
    let mut scene = scene();
    let lives = scene
        .node
        .script("lives", &format!("{}\n{}\ncat > /dev/null", reported(&hello()), reported("\"Ready\"")));
    let _ = scene.node.cli(&["upgrade", "--binary", &lives]); // it went, or it broke: both may be said
    scene.node.line("the way to it is broken");
    assert!(scene.node.wait().success());
    assert!(!scene.node.lines().iter().any(|line| line.contains("serves again")), "{:?}", scene.node.lines());
}

/// The table of reasons in the documents, and the keys in the code that gives them.
#[test]
fn every_reason_to_stay_is_in_the_documents() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).unwrap();
    let documents = read("docs/reference/log-reasons.md");
    let code = read("proto/connection/src/upgrade_state.rs") + &read("apps/evergate/src/worker/upgrade.rs");
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
    assert!(keys.contains(&"handshake") && keys.contains(&"descriptors"), "{keys:?}");
    for key in keys {
        assert!(documents.contains(&format!("\n| `{key}` |")), "{key}");
    }
}
