//! Upgrades that cannot be: everything goes on as if nobody had asked.

use super::backend::Backend;
use super::client::{Wire, connect, get};
use super::node::{Node, eventually, plain};
use crate::support::{hello, said};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

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
        assert_eq!(self.node.serving(), before);
        assert_eq!(self.kept.get("/x").unwrap().text(), "one");
        assert_eq!(get(self.node.address("in"), "/x").text(), "one");
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.node.folder.write(name, &format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn a_program_that_is_not_there_or_ends_changes_nothing() {
    let mut scene = scene();
    scene.expect_refusal(&["--binary", "/nowhere/evergate"], "cannot start /nowhere/evergate: No such file");
    let ends = scene.script("ends", "exit 3");
    scene.expect_refusal(&["--binary", &ends], "ends ended before it was ready (exit status: 3)");
    let babbles = scene.script("babbles", "echo hello, what is this >&0; cat > /dev/null");
    scene.expect_refusal(&["--binary", &babbles], "does not speak as expected");
    scene.node.upgrade();
    assert_eq!(scene.kept.get("/x").unwrap().text(), "one");
}

#[test]
fn a_program_that_takes_connections_in_another_form_is_refused() {
    let mut scene = scene();
    let hello = r#"{"Hello":{"version":"9.9.9","handover":99,"parcel":1}}"#;
    let other = scene.script("other", &format!("{}\ncat > /dev/null", said(hello)));
    scene.expect_refusal(&["--binary", &other], "is evergate 9.9.9 and takes connections in form 99.1");
}

/// It does not read what it is offered, and has ended before all of that is sent.
#[test]
fn a_program_that_says_why_before_it_hears_anything_is_heard() {
    let mut scene = scene();
    let says = scene.script("says", &format!("{}\n{}", said(&hello()), said(r#"{"Failed":"no such luck"}"#)));
    for _ in 0..5 {
        scene.expect_refusal(&["--binary", &says], "no such luck");
    }
}

#[test]
fn a_configuration_that_is_broken_or_another_one_is_refused_in_the_new_process_words() {
    let mut scene = scene();
    scene.node.write("[[listeners]]\nname = \"in\"\n");
    scene.expect_refusal(&[], "address");
    scene.node.write(&format!("{}# another text\n", scene.config));
    scene.expect_refusal(&[], "`evergate reload` first");
    scene.node.reload();
    scene.node.upgrade();
    assert_eq!(scene.kept.get("/x").unwrap().text(), "one");
    assert!(scene.backend.connections() > 0);
}

/// It says that it is ready and ends when connections are on their way to it: these are lost, and only these.
#[test]
fn the_old_process_serves_again_when_the_new_one_ends_too_early() {
    let mut scene = scene();
    let ends = scene.script("ends", &format!("{}\n{}\nsleep 0.5", said(&hello()), said("\"Ready\"")));
    let before = scene.node.serving();
    let _ = scene.node.cli(&["upgrade", "--binary", &ends]); // it went, or it broke: both may be said
    scene.node.line("this one serves again");
    assert_eq!(eventually("it serves", || Some(scene.node.serving())), before);
    assert_eq!(get(scene.node.address("in"), "/x").text(), "one");
    assert!(scene.kept.get("/x").is_err(), "it was passed on");
    scene.node.upgrade();
    assert_eq!(get(scene.node.address("in"), "/x").text(), "one");
}
