//! Additional fields and the time format of the access log.

use crate::node::{Demo, Folder, Node, Port, config, eventually, plain, read_response, text_of};
use std::io::Write;
use std::net::TcpStream;

/// A request with these header lines; its status.
fn request(port: &Port, path: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(port.address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n").unwrap();
    read_response(stream).0
}

/// The line of the request with this path.
fn line_of(folder: &Folder, path: &str) -> serde_json::Value {
    let log = folder.path("access.log");
    let line = eventually("the line is written", || {
        text_of(&log).lines().find(|line| line.contains(path)).map(str::to_owned)
    });
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// The headers come from clients: none of their values may end a line or forge a field.
#[test]
fn log_has_the_configured_fields_and_a_reload_changes_them() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let logs = "[logs]\naccess = \"access.log\"\n";
    let fields = "fields = [\"client_subject\", \"user_agent\", \"referer\"]\ntime = \"iso\"\n";
    let node = Node::with_config(&folder, &format!("{logs}{base}"));
    let hostile = "x\", \"status\": 999, \"y\": \"\\\t\u{85}\u{202e}";
    let headers = format!("User-Agent: {hostile}\r\nReferer: https://r.example/{}\r\n", "a".repeat(5000));

    assert_eq!(request(&port, "/first", &headers), 200);
    let line = line_of(&folder, "/first");
    assert!(line["time"].is_f64() && line.get("user_agent").is_none(), "{line}");

    folder.write("evergate.toml", &config(&format!("{logs}{fields}{base}")));
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert_eq!(request(&port, "/second", &headers), 200);
    let line = line_of(&folder, "/second");
    assert_eq!(line["status"], 200);
    assert_eq!(line["user_agent"], "x\", \"status\": 999, \"y\": \"\\\t\u{fffd}\u{fffd}");
    let referer = line["referer"].as_str().unwrap();
    assert!(referer.starts_with("https://r.example/aaa") && referer.len() <= 2048, "{referer}");
    assert!(line.get("client_subject").is_none(), "there is no certificate: {line}");
    let time = line["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.ends_with('Z') && &time[19..20] == ".", "{time}");

    assert_eq!(request(&port, "/third", ""), 200);
    let line = line_of(&folder, "/third");
    assert!(line.get("user_agent").is_none() && line.get("referer").is_none(), "{line}");
}
