//! Reload, which is complete or has no effect, and disturbs no connection.

use crate::node::{DEADLINE, Demo, Folder, Node, Port, config, get, plain};
use evergate::control::status::Reloaded;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

fn deny(path: &str) -> String {
    format!("[[rules]]\nname = \"deny\"\nwhen = 'path == \"{path}\"'\ndeny = 403\n")
}

/// Sends one request on a connection that stays open; the status.
fn ask(stream: &mut BufReader<TcpStream>, path: &str) -> u16 {
    write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest[..3].parse().unwrap();
        } else if let Some(rest) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = rest.trim().parse().unwrap();
        } else if line == "\r\n" {
            stream.read_exact(&mut vec![0; length]).unwrap();
            return status;
        }
    }
}

#[test]
fn reload_changes_rules_under_an_open_connection() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &(base.clone() + &deny("/a")));
    let mut open = BufReader::new(TcpStream::connect(port.address()).unwrap());
    assert_eq!((ask(&mut open, "/a"), ask(&mut open, "/b")), (403, 200));
    folder.write("evergate.toml", &config(&(base + &deny("/b"))));
    let output = node.cli(&["reload"]);
    assert_eq!((output.code, output.out.as_str()), (Some(0), "reloaded: generation 2 is in force\n"));
    assert_eq!(node.status().generation, 2);
    assert_eq!((ask(&mut open, "/a"), ask(&mut open, "/b")), (200, 403));
    assert_eq!(node.status().total.accepted, 1);
}

#[test]
fn bad_file_is_refused_with_its_problems_and_changes_nothing() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &(base.clone() + &deny("/a")));
    folder.write(
        "evergate.toml",
        &config(&(base.clone() + "[[rules]]\nname = \"x\"\nwhen = 'pth == 1'\ndeny = 403\n")),
    );
    let output = node.cli(&["reload", "--json"]);
    assert_eq!(output.code, Some(2));
    let reloaded: Reloaded = serde_json::from_str(&output.out).unwrap();
    assert!(!reloaded.ok && reloaded.generation == 1);
    assert!(reloaded.problems.iter().any(|problem| problem.is_error() && problem.key == "rules[0].when"));
    assert_eq!(get(port.address(), "/a").0, 403);
    let status = node.status();
    assert_eq!((status.generation, status.reloads.succeeded, status.reloads.failed), (1, 0, 1));
    // A file that only this machine rejects changes nothing either.
    folder.write("evergate.toml", &config(&("[node]\nworkers = 2\n".to_owned() + &base)));
    let output = node.cli(&["reload"]);
    assert!(output.code == Some(2) && output.err.contains("[node]"), "{output:?}");
    assert_eq!(get(port.address(), "/a").0, 403);
}

#[test]
fn keys_that_need_a_restart_are_reported() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &text);
    let changed = config(&text).replace("workers = 1", "workers = 2");
    assert_ne!(changed, config(&text));
    folder.write("evergate.toml", &changed);
    let reloaded: Reloaded = serde_json::from_str(&node.cli(&["reload", "--json"]).out).unwrap();
    let problem = reloaded.problems.iter().find(|problem| problem.is_error()).unwrap();
    assert!(problem.what.contains("restart to change it"), "{problem:?}");
    assert_eq!(problem.remedy, "or put back what it was");
}

#[test]
fn listeners_come_and_go_with_a_reload() {
    let (folder, first, second, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&first, &demo.addresses));
    assert_eq!(get(first.address(), "/").0, 200);
    folder.write("evergate.toml", &config(&plain(&second, &demo.addresses)));
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert_eq!(get(second.address(), "/").0, 200);
    assert_eq!(node.status().listeners[0].address, second.address().to_string());
    crate::node::eventually("the old listener is closed", || TcpStream::connect(first.address()).err());
}

/// Inode of the socket that listens on a port of 127.0.0.1.
fn listening(port: &Port) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{:04X}", port.address().port());
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row[1] == local && row[3] == "0A");
    ours.map(|row| row[9].to_owned()).collect()
}

/// With a new socket the kernel would reset clients whose handshake is unfinished.
#[test]
fn listener_that_is_only_renamed_keeps_its_socket() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &base);
    let before = listening(&port);
    assert_eq!(before.len(), 1);
    for name in ["other", "in"] {
        folder.write("evergate.toml", &config(&base.replace("name = \"in\"", &format!("name = \"{name}\""))));
        assert_eq!(node.cli(&["reload"]).code, Some(0));
        assert_eq!((get(port.address(), "/").0, listening(&port)), (200, before.clone()));
        assert_eq!(node.status().listeners[0].name, name);
    }
}

#[test]
fn admin_socket_move_is_reported_by_reload_and_log() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &base);
    let to = |name: &str| {
        folder.write("evergate.toml", &config(&format!("[admin]\nsocket = \"{name}\"\n{base}")));
        node.cli(&["reload"])
    };
    folder.write("taken", "a file of the user\n");
    let output = to("taken");
    assert_eq!((output.code, output.out.as_str()), (Some(0), "reloaded: generation 2 is in force\n"));
    assert!(
        output.err.contains("warning: ") && output.err.contains("/taken: another kind of file"),
        "{output:?}"
    );
    assert!(
        output.err.contains("the admin API stays on ") && output.err.contains("admin.sock;"),
        "{output:?}"
    );
    node.line("/taken: another kind of file");
    assert_eq!(node.status().generation, 2);
    let output = to("other.sock");
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    let line = node.line("/other.sock now");
    assert!(line.starts_with("info: admin API on "), "{line}");
}

#[test]
fn deleted_admin_socket_is_created_again_by_a_reload() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    std::fs::remove_file(folder.path("admin.sock")).unwrap();
    assert_eq!(node.cli(&["status"]).code, Some(1));
    node.signal("HUP");
    node.line("generation 2");
    assert_eq!(node.status().generation, 2);
    // A file in place of the socket stays, and the node warns.
    std::fs::remove_file(folder.path("admin.sock")).unwrap();
    folder.write("admin.sock", "");
    node.signal("HUP");
    assert!(node.line("another kind of file has this name").contains("no command reaches this node"));
}

#[test]
fn admin_socket_and_the_metrics_move_with_a_reload() {
    let (folder, port, metrics, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &base);
    let admin = format!("[admin]\nsocket = \"other.sock\"\nmetrics_listen = \"{}\"\n", metrics.address());
    folder.write("evergate.toml", &config(&(admin + &base)));
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert_eq!(get(metrics.address(), "/healthz").0, 200);
    assert!(!folder.path("admin.sock").exists());
    let other = folder.path("other.sock");
    assert_eq!(crate::node::evergate(&["status", "--socket", other.to_str().unwrap()]).code, Some(0));
}

#[test]
fn changed_access_log_path_is_reported_at_every_reload() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &base);
    for (access, is_reported) in [("access.log", true), ("access.log", true), ("off", false)] {
        folder.write("evergate.toml", &config(&format!("[logs]\naccess = \"{access}\"\n{base}")));
        let reloaded: Reloaded = node.json(&["reload"]);
        let reported = reloaded.problems.iter().any(|problem| problem.what.contains("`logs.access`"));
        assert_eq!((reloaded.ok, reported), (true, is_reported), "{access}");
    }
}

#[test]
fn listener_and_the_metrics_change_ports_in_one_reload() {
    let (folder, first, second, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let text = |clients: &Port, metrics: &Port| {
        let admin = format!("[admin]\nsocket = \"admin.sock\"\nmetrics_listen = \"{}\"\n", metrics.address());
        config(&(admin + &plain(clients, &demo.addresses)))
    };
    let path = folder.write("evergate.toml", &text(&first, &second));
    let node = Node::start(&folder, &[path.to_str().unwrap()]);
    for (clients, metrics) in [(&second, &first), (&first, &second)] {
        folder.write("evergate.toml", &text(clients, metrics));
        let output = node.cli(&["reload"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        // Until the old sockets are closed, either side or none may answer.
        crate::node::eventually("each has its port", || {
            let is_metrics = |port: &Port| Some(answer(port)?.contains("evergate_build_info"));
            (is_metrics(metrics)? && !is_metrics(clients)?).then_some(())
        });
    }
    assert_eq!(node.status().metrics_listen, Some(second.address().to_string()));
}

fn answer(port: &Port) -> Option<String> {
    let mut stream = TcpStream::connect(port.address()).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}
