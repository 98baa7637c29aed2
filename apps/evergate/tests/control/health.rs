//! Active health checks against servers that die, return, and answer badly.

use crate::node::{Backend, DEADLINE, Demo, Folder, Node, Port, config, eventually, get, plain};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

const HTTP: &str =
    "health = { path = \"/healthz\", interval_ms = 100, timeout_ms = 100, rise = 2, fall = 2 }\n";

fn in_state(node: &Node, server: &str, state: &str) {
    eventually(&format!("{server} is {state}"), || (node.server(server).state == state).then_some(()));
}

#[test]
fn a_server_that_dies_gets_no_requests_until_it_returns() {
    let (folder, port, mut first, second) =
        (Folder::new(), Port::new(), Backend::new("one"), Backend::new("two"));
    let node = Node::with_config(&folder, &(plain(&port, &[first.address(), second.address()]) + HTTP));
    eventually("both are checked", || {
        ["web/s0", "web/s1"]
            .iter()
            .all(|name| node.server(name).health.is_some_and(|last| last.ok))
            .then_some(())
    });
    first.die();
    let (line, seen) = node.line_after(0, "server web/s0");
    assert!(line.contains("is down: cannot connect: ") && line.contains("2 checks in a row"), "{line}");
    in_state(&node, "web/s0", "down");
    assert!((0..6).all(|_| get(port.address(), "/").1 == "two"));
    assert_eq!(node.server("web/s0").health.map(|last| last.ok), Some(false));
    first.rise();
    let (line, _) = node.line_after(seen, "server web/s0");
    assert!(line.contains("is up: status 200 (2 checks in a row)"), "{line}");
    in_state(&node, "web/s0", "up");
    let mut seen: Vec<String> = (0..6).map(|_| get(port.address(), "/").1).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["one", "two"]);
}

#[test]
fn a_server_that_is_dead_at_start_is_down_after_one_check() {
    let (folder, port, no_node, alive) = (Folder::new(), Port::new(), Port::new(), Backend::new("alive"));
    let slow = "health = { path = \"/\", interval_ms = 3600000, timeout_ms = 1000, fall = 5 }\n";
    let node = Node::with_config(&folder, &(plain(&port, &[no_node.address(), alive.address()]) + slow));
    assert!(node.line("server web/s0").contains("(1 check)"));
    in_state(&node, "web/s0", "down");
    assert_eq!(get(port.address(), "/").1, "alive");
}

#[test]
fn a_wrong_status_counts_as_failure_and_says_so() {
    let (folder, port, backend) = (Folder::new(), Port::new(), Backend::new("one"));
    let node = Node::with_config(&folder, &(plain(&port, &[backend.address()]) + HTTP));
    eventually("it is checked", || node.server("web/s0").health);
    backend.state_text(503);
    let (line, seen) = node.line_after(0, "is down");
    assert!(line.contains("status 503, expected 200-399"), "{line}");
    assert_eq!(get(port.address(), "/").0, 503); // evergate's own: no server is up
    assert_eq!(node.status().pools[0].unavailable, 1);
    backend.state_text(204);
    node.line_after(seen, "is up");
}

#[test]
fn a_reload_keeps_the_state_and_follows_the_new_servers() {
    let (folder, port, mut first, second) =
        (Folder::new(), Port::new(), Backend::new("one"), Backend::new("two"));
    let text = plain(&port, &[first.address()]) + HTTP;
    let node = Node::with_config(&folder, &text);
    eventually("it is checked", || node.server("web/s0").health);
    first.die();
    in_state(&node, "web/s0", "down");
    let failed = node.server("web/s0").health.unwrap().failed;
    folder.write("evergate.toml", &config(&(plain(&port, &[first.address(), second.address()]) + HTTP)));
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    let carried = node.server("web/s0");
    assert!(carried.state == "down" && carried.health.unwrap().failed >= failed);
    assert_eq!(get(port.address(), "/").1, "two");
    first.rise();
    in_state(&node, "web/s0", "up");
    // Without checks a server counts as up, and nobody asks it any more.
    folder.write("evergate.toml", &config(&plain(&port, &[first.address(), second.address()])));
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert!(node.server("web/s0").health.is_none());
    let asked = second.requests();
    assert_eq!(get(port.address(), "/").0, 200);
    assert_eq!(get(port.address(), "/").0, 200);
    assert_eq!(second.requests(), asked + 1);
}

/// Its check is not begun anew by each of them, or it would never end.
#[test]
fn a_server_that_hangs_is_found_by_a_node_that_is_reloaded_all_the_time() {
    let (folder, port) = (Folder::new(), Port::new());
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = "health = { path = \"/\", interval_ms = 2000, timeout_ms = 2000, fall = 1 }\n";
    let node = Node::with_config(&folder, &(plain(&port, &[hanging.local_addr().unwrap()]) + slow));
    eventually("it is down", || {
        assert_eq!(node.cli(&["reload"]).code, Some(0));
        (node.server("web/s0").state == "down").then_some(())
    });
    assert!(node.server("web/s0").health.unwrap().detail.contains("no answer within"));
}

#[test]
fn pools_with_tls_are_checked_over_tls() {
    let (folder, behind, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let (certificate, key) = evergate_crypto::self_signed(&["localhost".to_owned()]).unwrap();
    let (other, _) = evergate_crypto::self_signed(&["localhost".to_owned()]).unwrap();
    for (name, text) in [("cert.pem", &certificate), ("key.pem", &key), ("other.pem", &other)] {
        folder.write(name, text);
    }
    let origin = format!(
        "[admin]\nsocket = \"origin.sock\"\n\
         [[listeners]]\nname = \"in\"\naddress = \"{}\"\nprotocol = \"https\"\npool = \"web\"\n\
         [[certificates]]\nname = \"c\"\nchain = \"cert.pem\"\nkey = \"key.pem\"\n\
         [[pools]]\nname = \"web\"\nservers = [{{ address = \"{}\" }}]\n",
        behind.address(),
        demo.addresses[0]
    );
    let _origin = Node::with_config(&folder, &origin);
    let port = Port::new();
    let pool = |name: &str, tls: &str, health: &str| {
        format!(
            "[[pools]]\nname = \"{name}\"\nservers = [{{ name = \"s\", address = \"{}\" }}]\n\
             tls = {{ server_name = \"localhost\", {tls} }}\n\
             health = {{ interval_ms = 2000, timeout_ms = 2000, {health} }}\n\
             [[rules]]\nname = \"{name}\"\nwhen = 'path == \"/{name}\"'\nroute = \"{name}\"\n",
            behind.address()
        )
    };
    let text =
        format!("[[listeners]]\nname = \"in\"\naddress = \"{}\"\nprotocol = \"http\"\n", port.address())
            + &pool("trusting", "ca = \"cert.pem\"", "path = \"/\"")
            + &pool("connecting", "ca = \"cert.pem\"", "kind = \"tcp\"")
            + &pool("careless", "verify = false", "path = \"/status?code=500\", expect_status = [500]")
            + &pool("distrusting", "ca = \"other.pem\"", "path = \"/\"");
    let node = Node::with_config(&folder, &text);
    let last = |pool: &str| {
        let server = format!("{pool}/s");
        let health = eventually("it is checked", || node.server(&server).health);
        (health.ok, health.detail, node.server(&server).state)
    };
    assert_eq!(last("trusting"), (true, "status 200".to_owned(), "up".to_owned()));
    assert_eq!(last("connecting"), (true, "TLS handshake completed".to_owned(), "up".to_owned()));
    assert_eq!(last("careless"), (true, "status 500".to_owned(), "up".to_owned()));
    let (ok, detail, state) = last("distrusting");
    assert!(
        !ok && detail.starts_with("TLS handshake: invalid peer certificate") && state == "down",
        "{detail}"
    );
    assert_eq!(get(port.address(), "/trusting").0, 200);
}

/// A RST would stand in the server's log at each check, and destroy what it has not sent yet.
#[test]
fn health_check_reads_its_answer_to_the_end_before_fin() {
    let chunked = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec(),
        b"0\r\n\r\n".to_vec(),
    ];
    let sized = |size: usize| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
        [head.into_bytes(), vec![b'x'; size]]
    };
    for (kind, answer) in [
        ("http", sized(5)),
        ("http", sized(300_000)),
        ("http", chunked),
        ("tcp", [b"220 mail ESMTP\r\n".to_vec(), Vec::new()]),
    ] {
        let (folder, port) = (Folder::new(), Port::new());
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let health = format!("health = {{ kind = \"{kind}\", interval_ms = 5000, timeout_ms = 5000 }}\n");
        let node = Node::with_config(&folder, &(plain(&port, &[server.local_addr().unwrap()]) + &health));
        let (mut checked, _) = server.accept().unwrap();
        if kind == "http" {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut next = [0; 1];
                checked.read_exact(&mut next).unwrap();
                asked.extend(next);
            }
        }
        for part in answer {
            checked.write_all(&part).unwrap();
        }
        assert_eq!(checked.read(&mut [0; 1]).unwrap(), 0, "{kind}: FIN, not RST");
        let health = eventually("it is checked", || node.server("web/s0").health);
        assert!(health.ok, "{kind}: {}", health.detail);
    }
}

#[test]
fn failed_tls_server_is_explained_in_log_and_check() {
    let (folder, behind, demo) = (Folder::new(), Port::new(), Demo::start(1));
    for name in ["own", "other"] {
        let (certificate, key) = evergate_crypto::self_signed(&["localhost".to_owned()]).unwrap();
        folder.write(&format!("{name}.pem"), &certificate);
        folder.write(&format!("{name}.key"), &key);
    }
    let clear = demo.addresses[0];
    let origin = format!(
        "[admin]\nsocket = \"origin.sock\"\n\
         [[listeners]]\nname = \"in\"\naddress = \"{}\"\nprotocol = \"https\"\npool = \"web\"\n\
         [[certificates]]\nname = \"c\"\nchain = \"own.pem\"\nkey = \"own.key\"\n\
         [[pools]]\nname = \"web\"\nservers = [{{ address = \"{clear}\" }}]\n",
        behind.address(),
    );
    let _origin = Node::with_config(&folder, &origin);
    let port = Port::new();
    let pool = |name: &str, address: SocketAddr, tls: &str| {
        format!(
            "[[pools]]\nname = \"{name}\"\nservers = [{{ name = \"s\", address = \"{address}\" }}]\n\
             tls = {{ server_name = \"localhost\", {tls} }}\nretries = 0\n\
             health = {{ kind = \"tcp\", interval_ms = 2000, timeout_ms = 2000, fall = 100 }}\n\
             [[rules]]\nname = \"{name}\"\nwhen = 'path == \"/{name}\"'\nroute = \"{name}\"\n"
        )
    };
    let text = format!(
        "[logs]\naccess = \"access.log\"\n\
         [[listeners]]\nname = \"in\"\naddress = \"{}\"\nprotocol = \"http\"\n",
        port.address()
    ) + &pool("untrusted", behind.address(), "ca = \"other.pem\"")
        + &pool("clear", clear, "verify = false");
    // The first check would take the servers down before they are asked.
    let unchecked = text
        .lines()
        .filter(|line| !line.starts_with("health"))
        .fold(String::new(), |all, line| all + line + "\n");
    let node = Node::with_config(&folder, &unchecked);
    let causes = [
        ("untrusted", "self-signed certificate of unknown issuer"),
        ("clear", "server answered in plain HTTP"),
    ];
    for (name, cause) in causes {
        assert_eq!(get(port.address(), &format!("/{name}")).0, 502);
        let logged = || {
            let log = std::fs::read_to_string(folder.path("access.log")).unwrap_or_default();
            log.lines().find(|line| line.contains(&format!("/{name}"))).map(str::to_owned)
        };
        let line = eventually("the request is logged", logged);
        assert!(line.contains("upstream_tls") && line.contains(cause), "{line}");
    }
    folder.write("evergate.toml", &config(&text));
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    for (name, cause) in causes {
        let health = eventually("it is checked", || node.server(&format!("{name}/s")).health);
        assert!(!health.ok && health.detail.contains(cause), "{}", health.detail);
    }
}

const OFTEN: &str = "health = { path = \"/healthz\", interval_ms = 500, timeout_ms = 500, fall = 1 }\n";

/// A node that may have so many descriptors.
fn with_descriptors(folder: &Folder, count: u32, text: &str) -> Node {
    let path = folder.write("evergate.toml", &config(text));
    Node::start_with(folder, &[], |command| {
        let limited = format!("ulimit -n {count}; exec \"$0\" run \"$1\"");
        *command = Command::new("sh");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_evergate")]).arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped())
    })
}

#[test]
fn clients_that_take_all_descriptors_leave_the_servers_checked_and_the_operator_heard() {
    let (folder, port, backend) = (Folder::new(), Port::new(), Backend::new("one"));
    let node = with_descriptors(&folder, 100, &(plain(&port, &[backend.address()]) + OFTEN));
    let warning = node.line("limits.connections_max = 100000");
    assert!(warning.contains("may have 100:") && warning.contains("LimitNOFILE=201024"), "{warning}");
    let crowd: Vec<_> = (0..200).map(|_| TcpStream::connect(port.address()).unwrap()).collect();
    let warning = node.line("accept_failed");
    assert!(warning.contains("kept for servers"), "{warning}");
    let checked = || node.server("web/s0").health.map_or(0, |health| health.passed);
    let before = checked();
    eventually("checks go on", || (checked() > before + 3).then_some(()));
    assert_eq!(node.server("web/s0").state, "up");
    drop(crowd);
    assert_eq!(get(port.address(), "/").1, "one");
    assert!(!node.lines().iter().any(|line| line.contains("is down")));
    assert_eq!(node.lines().iter().filter(|line| line.contains("accept_failed")).count(), 1);
}

#[test]
fn idle_connections_give_their_descriptors_to_new_ones() {
    for workers in [1, 2] {
        give_descriptors_to_new_connections(workers);
    }
}

fn give_descriptors_to_new_connections(workers: usize) {
    let (folder, port, backend) = (Folder::new(), Port::new(), Backend::new("one"));
    let text = format!("{}{OFTEN}[node]\nworkers = {workers}\n", plain(&port, &[backend.address()]));
    let node = with_descriptors(&folder, 100, &text);
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let serve = |_| {
        let mut client = TcpStream::connect(port.address()).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.write_all(request).unwrap();
        client.read_exact(&mut [0; 15]).unwrap();
        client
    };
    let clients: Vec<TcpStream> = (0..200).map(serve).collect();
    let status = node.status();
    assert!(status.total.evicted_idle > 100 && status.total.evicted_silent == 0, "{status:?}");
    assert_eq!((status.total.refused, node.server("web/s0").state.as_str()), (0, "up"));
    drop(clients);
}

#[test]
fn a_check_that_this_machine_cannot_make_counts_for_nothing() {
    let (folder, port, backend) = (Folder::new(), Port::new(), Backend::new("one"));
    let node = Node::with_config(&folder, &(plain(&port, &[backend.address()]) + OFTEN));
    eventually("it is checked", || node.server("web/s0").health);
    let limit = |count: u32| {
        let pid = node.id().to_string();
        let status =
            Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={count}:20000")]).status();
        assert!(status.unwrap().success());
    };
    limit(3);
    node.line("health checks cannot be made: cannot connect: Too many open files");
    limit(1000);
    node.line("health checks of all servers are made again");
    assert!(!node.lines().iter().any(|line| line.contains("is down")));
    assert_eq!(node.server("web/s0").state, "up");
}
