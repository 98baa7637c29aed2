//! Admin API through the command line, and metrics.

use crate::node::{Demo, Folder, Node, Port, eventually, evergate, get, plain};
use evergate::control::status::{Certificates, Rules};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const RULES: &str = "[[rules]]\nname = \"closed\"\nwhen = 'path.path_prefix(\"/internal\")'\ndeny = 403\n\
    [[rules]]\nname = \"tag\"\nset_request_headers = { X-Tag = \"yes\" }\n";

#[test]
fn status_and_metrics_report_listeners_and_counts() {
    let (folder, port, secure, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(2));
    let https = format!(
        "[[listeners]]\nname = \"secure\"\naddress = \"{}\"\nprotocol = \"https\"\npool = \"web\"\n\
         [[certificates]]\nname = \"local\"\nself_signed = [\"localhost\"]\n",
        secure.address()
    );
    let node = Node::with_config(&folder, &(plain(&port, &demo.addresses) + &https + RULES));
    assert_eq!(get(port.address(), "/internal/x").0, 403);
    let (status, body) = get(port.address(), "/hello?a=b");
    assert_eq!(status, 200);
    let echoed: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&echoed["target"], &echoed["headers"]["x-tag"]), (&"/hello?a=b".into(), &"yes".into()));

    let status = eventually("both responses are counted", || {
        Some(node.status())
            .filter(|status| status.total.responses["2xx"] == 1 && status.connections.open == 0)
    });
    assert_eq!((status.state.as_str(), status.generation, status.pid), ("running", 1, node.id()));
    assert_eq!(status.listeners.len(), 2);
    assert_eq!(status.listeners[0].address, port.address().to_string());
    assert_eq!((status.total.accepted, status.total.responses["4xx"]), (2, 1));
    assert_eq!(status.reasons["denied_by_rule"], 1);
    assert!(status.workers.len() == 1 && status.workers[0].alive);
    let servers = &status.pools[0].servers;
    assert_eq!(servers.iter().map(|server| server.requests).sum::<u64>(), 1);
    assert!(servers.iter().all(|server| server.state == "up" && server.outstanding == 0));

    let rules: Rules = node.json(&["rules", "hits"]);
    let hits: Vec<_> =
        rules.rules.iter().map(|rule| (rule.name.as_str(), rule.action.as_str(), rule.hits)).collect();
    assert_eq!(hits, [("closed", "deny 403", 1), ("tag", "continue", 1)]);
    let certificates: Certificates = node.json(&["certificates"]);
    assert_eq!(certificates.certificates[0].names, ["localhost"]);
    assert!(certificates.certificates[0].days_left > 0);

    for (args, part) in [
        (&["status"][..], "in        http"),
        (&["servers", "list"], "web/s0"),
        (&["rules", "hits"], "closed"),
        (&["certificates"], "localhost"),
    ] {
        let output = node.cli(args);
        assert!(output.code == Some(0) && output.out.contains(part), "{args:?}: {output:?}");
    }
    let metrics = node.cli(&["metrics"]).out;
    for line in [
        "evergate_responses_total{class=\"4xx\"} 1",
        "evergate_listener_responses_total{listener=\"in\",class=\"4xx\"} 1",
        "evergate_pool_responses_total{pool=\"web\",class=\"2xx\"} 1",
        "evergate_pool_responses_total{pool=\"web\",class=\"4xx\"} 0",
        "evergate_rule_hits_total{rule=\"closed\"} 1",
        "evergate_server_up{pool=\"web\",server=\"s0\"} 1",
        "evergate_ended_total{reason=\"denied_by_rule\"} 1",
        "# TYPE evergate_connections gauge",
    ] {
        assert!(metrics.lines().any(|has| has == line), "no {line:?} in {metrics}");
    }
}

/// Server that pauses before each answer, and breaks the connection on a request for `/none`.
fn slow_server(pause: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let length = stream.read(&mut head).unwrap_or(0);
            std::thread::sleep(pause);
            if !head[..length].starts_with(b"POST /none") {
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
            }
        }
    });
    address
}

#[test]
fn response_times_of_a_server_are_counted() {
    let (folder, port) = (Folder::new(), Port::new());
    let node = Node::with_config(&folder, &plain(&port, &[slow_server(Duration::from_millis(60))]));
    for _ in 0..3 {
        assert_eq!(get(port.address(), "/").0, 204);
    }
    let request = b"POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let mut broken = TcpStream::connect(port.address()).unwrap();
    broken.write_all(request).unwrap();
    let mut answer = String::new();
    broken.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");

    let times = node.server("web/s0").response_times;
    let within = |ms| times.within.iter().find(|one| one.ms == ms).unwrap().count;
    assert_eq!((within(50), within(10_000), times.count), (0, 3, 3), "what failed has no time");
    assert!(times.sum_us >= 180_000, "{times:?}");
    let metrics = node.cli(&["metrics"]).out;
    let name = "evergate_server_response_seconds";
    for line in [
        format!("# TYPE {name} histogram"),
        format!("{name}_bucket{{pool=\"web\",server=\"s0\",le=\"0.05\"}} 0"),
        format!("{name}_bucket{{pool=\"web\",server=\"s0\",le=\"+Inf\"}} 3"),
        format!("{name}_count{{pool=\"web\",server=\"s0\"}} 3"),
    ] {
        assert!(metrics.lines().any(|has| has == line), "no {line:?} in {metrics}");
    }
}

#[test]
fn drained_server_gets_no_requests_until_it_is_ready() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(2));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let served_by = || {
        let answers = (0..8).map(|_| get(port.address(), "/").1);
        let server =
            |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap()["server"].clone();
        let mut names: Vec<String> = answers.map(|text| server(text).as_str().unwrap().to_owned()).collect();
        names.sort();
        names.dedup();
        names
    };
    assert_eq!(served_by(), ["demo-1", "demo-2"]);
    assert_eq!(node.cli(&["servers", "drain", "web/s0"]).out, "web/s0 is draining\n");
    assert_eq!(node.server("web/s0").state, "draining");
    assert_eq!(served_by(), ["demo-2"]);
    // A reload keeps the operator's commands.
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert_eq!(served_by(), ["demo-2"]);
    assert_eq!(node.cli(&["servers", "ready", "web/s0"]).code, Some(0));
    assert_eq!(served_by(), ["demo-1", "demo-2"]);

    let unknown = node.cli(&["servers", "drain", "web/nobody"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("nobody"), "{unknown:?}");
    assert_eq!(node.cli(&["servers", "drain", "web"]).code, Some(2));
}

#[test]
fn admin_socket_is_private_and_replaces_a_stale_one() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let stale = folder.path("admin.sock");
    drop(UnixListener::bind(&stale).unwrap()); // the file stays
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let mode = std::fs::metadata(&stale).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(node.status().generation, 1);
    drop(node);
}

#[test]
fn node_without_a_free_admin_socket_serves_without_it() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let path = folder.path("admin.sock");
    let text = plain(&port, &demo.addresses);
    let in_use = UnixListener::bind(&path).unwrap();
    let node = Node::with_config(&folder, &text);
    let line = node.line("no admin API");
    assert!(
        line.contains("another process answers") && line.contains("end that process, or write"),
        "{line}"
    );
    assert_eq!(get(port.address(), "/").0, 200);
    drop((node, in_use));
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    let node = Node::with_config(&folder, &text);
    let line = node.line("no admin API");
    assert!(line.contains("another kind of file") && line.contains("or remove that file"), "{line}");
    assert_eq!(get(port.address(), "/").0, 200);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn metrics_address_serves_metrics_and_nothing_else() {
    let (folder, port, metrics, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let admin = format!("[admin]\nsocket = \"admin.sock\"\nmetrics_listen = \"{}\"\n", metrics.address());
    let node = Node::with_config(&folder, &(admin + &plain(&port, &demo.addresses)));
    let (status, text) = get(metrics.address(), "/metrics");
    assert!(status == 200 && text.contains("evergate_config_generation 1\n"));
    assert_eq!(get(metrics.address(), "/healthz"), (200, "ok\n".to_owned()));
    let (status, page) = get(metrics.address(), "/");
    assert!(status == 200 && page.contains("<h1>evergate is running</h1>"), "{page}");
    for path in ["/v1/status", "/v1/reload", "/v1/log/reopen", "/v1/drain", "/v1/servers/web/s0/drain"] {
        assert_eq!(get(metrics.address(), path).0, 404, "{path}");
    }
    assert_eq!(node.status().metrics_listen, Some(metrics.address().to_string()));
}

#[test]
fn one_line_form_serves_and_drains_on_command() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let (listen, to) = (port.address().to_string(), demo.addresses[0].to_string());
    let socket = folder.path("admin.sock");
    let mut node =
        Node::start(&folder, &["--listen", &listen, "--to", &to, "--socket", socket.to_str().unwrap()]);
    assert_eq!(node.status().listeners[0].protocol, "https");
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert_eq!(node.cli(&["drain"]).out, "draining\n");
    assert_eq!(node.wait().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn commands_without_a_node_fail_and_name_the_socket() {
    let folder = Folder::new();
    let socket = folder.path("nobody.sock");
    let output = evergate(&["status", "--socket", socket.to_str().unwrap()]);
    assert!(output.code == Some(1) && output.err.contains("nobody.sock"), "{output:?}");
}

#[test]
fn status_of_a_stopped_node_fails_after_five_seconds() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    node.signal("STOP");
    for args in [&["status"][..], &["metrics"]] {
        let output = node.cli(args);
        assert_eq!(output.code, Some(1), "{output:?}");
        let reported = output.err.contains("admin.sock does not answer within 5 s: is its process stopped");
        assert!(reported && !output.err.contains("may still do"), "{output:?}");
    }
    node.signal("CONT");
    assert_eq!(node.cli(&["status"]).code, Some(0));
}

#[test]
fn command_takes_the_place_of_the_longest_idle_caller() {
    let (folder, port, metrics, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let admin = format!("[admin]\nsocket = \"admin.sock\"\nmetrics_listen = \"{}\"\n", metrics.address());
    let node = Node::with_config(&folder, &(admin + &plain(&port, &demo.addresses)));
    let mut callers: Vec<_> = (0..64).map(|_| UnixStream::connect(&node.socket).unwrap()).collect();
    assert_eq!(node.cli(&["status"]).code, Some(0));
    assert_eq!(callers[0].read(&mut [0]).unwrap_or(0), 0, "the oldest one has ended");
    callers[1].set_nonblocking(true).unwrap();
    let waits = callers[1].read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(waits, Err(ErrorKind::WouldBlock), "the time of the callers is not over");
    let _idle: Vec<_> = (0..64).map(|_| TcpStream::connect(metrics.address()).unwrap()).collect();
    assert_eq!(get(metrics.address(), "/healthz"), (200, "ok\n".to_owned()));
}

#[test]
fn status_that_cannot_be_printed_is_a_failure() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    for args in [&["status"][..], &["status", "--json"], &["metrics"], &["reload"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_evergate"));
        let output = command.args(args).arg("--socket").arg(&node.socket).stdout(full).output().unwrap();
        let reported = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && reported.contains("standard output"),
            "{args:?}: {reported}"
        );
    }
}
