//! Certificates, keys and ticket keys, which a node reads again when their files change.

use crate::node::{Demo, Folder, Node, Port, config, eventually, plain};
use evergate::control::status::Certificates;
use std::os::unix::fs::PermissionsExt;

fn make(folder: &Folder, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let (certificate, key) = evergate_crypto::self_signed(&names).unwrap();
    folder.write("cert.pem", &certificate);
    folder.write("key.pem", &key);
}

/// Node that serves first.example and polls its files frequently.
fn node(folder: &Folder, (port, secure): (&Port, &Port), demo: &Demo) -> Node {
    make(folder, &["first.example"]);
    let text = format!(
        "{}[[listeners]]\nname = \"secure\"\naddress = \"{}\"\nprotocol = \"https\"\npool = \"web\"\n\
         [[certificates]]\nname = \"c\"\nchain = \"cert.pem\"\nkey = \"key.pem\"\n",
        plain(port, &demo.addresses),
        secure.address()
    );
    let path = folder.write("evergate.toml", &config(&text));
    Node::start(folder, &[path.to_str().unwrap(), "--watch-interval-ms", "20"])
}

fn names(node: &Node) -> Vec<String> {
    node.json::<Certificates>(&["certificates"]).certificates.remove(0).names
}

#[test]
fn replaced_certificate_is_used_and_a_broken_one_ignored() {
    let (folder, port, secure, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let node = node(&folder, (&port, &secure), &demo);
    assert_eq!(names(&node), ["first.example"]);
    // An edited configuration file must not take effect together with the certificate.
    folder.write("evergate.toml", "this is no configuration");
    make(&folder, &["second.example", "www.second.example"]);
    eventually("the new certificate is in use", || {
        (names(&node) == ["second.example", "www.second.example"]).then_some(())
    });
    let before = node.line_count();
    folder.write("key.pem", "broken");
    let (line, _) = node.line_after(before, "cannot use changed files");
    assert!(line.contains("key.pem") && line.contains("previous ones stay in use"), "{line}");
    assert_eq!(names(&node)[0], "second.example");
    assert!(node.status().reloads.files_stale);
    make(&folder, &["third.example"]);
    eventually("the repaired pair is in use", || (names(&node) == ["third.example"]).then_some(()));
    assert!(!node.status().reloads.files_stale);
    // The node does not block on a pipe in place of the file.
    let before = node.line_count();
    std::fs::remove_file(folder.path("key.pem")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(folder.path("key.pem")).status().unwrap().success());
    let (line, _) = node.line_after(before, "not a regular file");
    assert!(line.contains("cannot use changed files"), "{line}");
    assert_eq!(names(&node)[0], "third.example");
    std::fs::remove_file(folder.path("key.pem")).unwrap();
    make(&folder, &["third.example"]);
    // An expired certificate is used, and the node warns.
    assert!(!node.lines().iter().any(|line| line.contains("expired")));
    let mut params = rcgen::CertificateParams::new(vec!["fourth.example".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let key = rcgen::KeyPair::generate().unwrap();
    folder.write("cert.pem", &params.self_signed(&key).unwrap().pem());
    folder.write("key.pem", &key.serialize_pem());
    let line = node.line("the certificate has expired, on 2020-01-02T00:00:00Z");
    assert!(line.starts_with("warning: certificate \"c\": ") && line.contains("clients refuse it"), "{line}");
    assert_eq!(names(&node), ["fourth.example"]);
}

#[test]
fn world_readable_key_is_used_with_a_warning() {
    let (folder, port, secure, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let node = node(&folder, (&port, &secure), &demo);
    let mode = |file: &str, mode| {
        std::fs::set_permissions(folder.path(file), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, open) in [("second.example", true), ("third.example", false)] {
        let before = node.line_count();
        let (certificate, key) = evergate_crypto::self_signed(&[name.to_owned()]).unwrap();
        folder.write("new.pem", &key);
        mode("new.pem", if open { 0o644 } else { 0o600 });
        std::fs::rename(folder.path("new.pem"), folder.path("key.pem")).unwrap();
        folder.write("cert.pem", &certificate);
        eventually("the new certificate is in use", || (names(&node) == [name]).then_some(()));
        if open {
            let (line, _) = node.line_after(before, "may read the secret in `");
            assert!(line.starts_with("warning: ") && line.contains("key.pem"), "{line}");
        } else {
            node.line_after(before, "loaded changed files");
            assert!(!node.lines()[before..].iter().any(|line| line.contains("may read the secret")));
        }
    }
}

#[test]
fn returned_certificate_is_logged_once() {
    let (folder, port, secure, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let node = node(&folder, (&port, &secure), &demo);
    let (here, away) = (folder.path("cert.pem"), folder.path("away.pem"));
    std::fs::rename(&here, &away).unwrap();
    node.line("cannot use changed files");
    assert!(node.status().reloads.files_stale);
    std::fs::rename(&away, &here).unwrap();
    let line = node.line("are again those that are in use");
    assert!(line.starts_with("info: "), "{line}");
    assert!(!node.status().reloads.files_stale);
    assert_eq!(node.lines().iter().filter(|line| line.contains("again those")).count(), 1);
}
