//! Signals, service manager and pid file.

use crate::node::{Demo, Folder, Node, Port, eventually, get, plain, read_response, text_of};
use crate::service_manager::ServiceManager;
use crate::support::Process;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Request that is under way at the server.
fn slow_request(node: &Node, port: &Port) -> TcpStream {
    let mut stream = TcpStream::connect(port.address()).unwrap();
    write!(stream, "GET /slow?ms=1500 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    eventually("the request is under way", || (node.server("web/s0").outstanding == 1).then_some(()));
    stream
}

#[test]
fn sigterm_finishes_requests_and_refuses_connections() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let mut node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let slow = slow_request(&node, &port);
    node.signal("TERM");
    node.line("draining (SIGTERM)");
    eventually("the listener is closed", || TcpStream::connect(port.address()).err());
    assert_eq!(node.status().state, "draining");
    let (status, body) = read_response(slow);
    assert!(status == 200 && body.contains("/slow"));
    assert_eq!(node.wait().code(), Some(0));
    node.line("stopped");
    assert!(!folder.path("admin.sock").exists());
}

#[test]
fn second_signal_ends_a_drain_at_once() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let mut node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let mut slow = TcpStream::connect(port.address()).unwrap();
    write!(slow, "GET /slow?ms=600000 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    eventually("the request is under way", || (node.server("web/s0").outstanding == 1).then_some(()));
    node.signal("INT");
    node.line("draining (SIGINT)");
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn unused_signals_are_logged_and_sigquit_drains() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let mut node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    for signal in ["USR2", "ALRM"] {
        node.signal(signal);
        let line = node.line(&format!("SIG{signal} does nothing here"));
        assert!(line.starts_with("warning: ") && line.contains("`evergate upgrade`"), "{line}");
    }
    let slow = slow_request(&node, &port);
    node.signal("QUIT");
    node.line("draining (SIGQUIT)");
    assert_eq!(read_response(slow).0, 200);
    assert_eq!(node.wait().code(), Some(0));
}

/// A process that waits for its predecessor has read nothing yet.
#[test]
fn unused_signals_do_not_end_a_starting_process() {
    let (folder, port, server) = (Folder::new(), Port::new(), Port::new());
    let config = folder.write("evergate.toml", &crate::node::config(&plain(&port, &[server.address()])));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    let mut process = Process::spawn(|command| command.arg(config).arg("--successor").stdin(theirs));
    ours.read_exact(&mut [0]).unwrap();
    for signal in ["HUP", "USR1", "USR2", "ALRM"] {
        process.signal(signal);
    }
    drop(ours);
    assert_eq!(process.wait().code(), Some(1));
}

#[test]
fn draining_ends_at_its_limit() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = plain(&port, &demo.addresses) + "[timeouts]\ndrain_ms = 50\n";
    let mut node = Node::with_config(&folder, &text);
    let mut slow = TcpStream::connect(port.address()).unwrap();
    write!(slow, "GET /slow?ms=600000 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    eventually("the request is under way", || (node.server("web/s0").outstanding == 1).then_some(()));
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    node.line("draining took too long (timeouts.drain_ms): 1 open connections end");
}

#[test]
fn reopening_the_log_creates_a_file_and_reloads_nothing() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = "[logs]\naccess = \"access.log\"\n".to_owned() + &plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &text);
    let (log, old) = (folder.path("access.log"), folder.path("access.log.1"));
    let logged = |path: &str| {
        assert_eq!(get(port.address(), path).0, 200);
        eventually("the line is in the file", || text_of(&log).contains(path).then_some(()));
    };
    logged("/first");
    folder.write("evergate.toml", "edited, and not valid yet");
    std::fs::rename(&log, &old).unwrap();
    node.signal("USR1");
    node.line("access log: reopening");
    eventually("the file is there before a line", || log.exists().then_some(()));
    logged("/second");
    assert!(!text_of(&old).contains("/second"));
    std::fs::rename(&log, &old).unwrap();
    let output = node.cli(&["log", "reopen"]);
    assert_eq!((output.code, output.out), (Some(0), format!("access log: reopening {}\n", log.display())));
    logged("/third");
    let status = node.status();
    assert_eq!((status.generation, status.reloads.succeeded, status.reloads.failed), (1, 0, 0));
}

#[test]
fn reload_keeps_the_file_of_the_access_log() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = "[logs]\naccess = \"access.log\"\n".to_owned() + &plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &text);
    let (log, old) = (folder.path("access.log"), folder.path("access.log.1"));
    std::fs::rename(&log, &old).unwrap();
    node.signal("HUP");
    node.line("reloaded ");
    assert_eq!(node.cli(&["reload"]).code, Some(0));
    assert_eq!(get(port.address(), "/first").0, 200);
    eventually("the line is in the old file", || text_of(&old).contains("/first").then_some(()));
    assert!(!log.exists());
}

#[test]
fn reopening_a_log_without_a_file_changes_nothing() {
    for (access, result) in [("stdout", "lines go to standard output"), ("off", "`logs.access` is off")] {
        let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
        let text = format!("[logs]\naccess = \"{access}\"\n{}", plain(&port, &demo.addresses));
        let node = Node::with_config(&folder, &text);
        let output = node.cli(&["log", "reopen"]);
        assert_eq!(
            (output.code, output.out),
            (Some(0), format!("access log: nothing to reopen: {result}\n"))
        );
    }
}

#[test]
fn failed_reopening_is_logged_once_and_retried() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let logs = "[logs]\naccess = \"access.log\"\n";
    let node = Node::with_config(&folder, &(logs.to_owned() + &plain(&port, &demo.addresses)));
    let (log, old) = (folder.path("access.log"), folder.path("access.log.1"));
    assert_eq!(get(port.address(), "/first").0, 200);
    eventually("the first line is written", || text_of(&log).contains("/first").then_some(()));
    std::fs::rename(&log, &old).unwrap();
    std::fs::create_dir(&log).unwrap(); // not even root can write to it
    node.signal("USR1");
    assert_eq!(get(port.address(), "/second").0, 200);
    let warning = node.line("access log: cannot reopen");
    assert!(warning.contains("access.log: Is a directory") && warning.contains("as it was"), "{warning}");
    eventually("the second line is in the old file", || text_of(&old).contains("/second").then_some(()));
    std::fs::remove_dir(&log).unwrap();
    eventually("lines are in the new file", || {
        get(port.address(), "/third");
        text_of(&log).contains("/third").then_some(())
    });
    node.line("is open again");
    let warnings = node.lines().iter().filter(|line| line.contains("cannot reopen")).count();
    assert_eq!(warnings, 1);
    assert_eq!(node.status().total.log_lines_lost, 0);
}

#[test]
fn pipe_as_access_log_is_refused_at_start_and_reopening() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = "[logs]\naccess = \"access.log\"\n".to_owned() + &plain(&port, &demo.addresses);
    let (config, log, old) =
        (crate::node::config(&text), folder.path("access.log"), folder.path("access.log.1"));
    let pipe = || assert!(std::process::Command::new("mkfifo").arg(&log).status().unwrap().success());
    pipe();
    let path = folder.write("evergate.toml", &config);
    let output = crate::node::evergate(&["run", path.to_str().unwrap()]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.err.contains("access.log: it is neither a regular file nor a character device"),
        "{output:?}"
    );
    std::fs::remove_file(&log).unwrap();
    let node = Node::with_config(&folder, &text);
    std::fs::rename(&log, &old).unwrap();
    pipe();
    node.signal("USR1");
    node.line("access log: reopening");
    assert_eq!(get(port.address(), "/first").0, 200);
    node.line("access.log: it is neither a regular file");
    eventually("the line is in the old file", || text_of(&old).contains("/first").then_some(()));
}

#[test]
fn lines_lost_on_a_full_disk_are_counted_and_logged_once() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let logs = "[logs]\naccess = \"/dev/full\"\n";
    let node = Node::with_config(&folder, &(logs.to_owned() + &plain(&port, &demo.addresses)));
    for _ in 0..3 {
        assert_eq!(get(port.address(), "/").0, 200);
    }
    eventually("all are counted", || (node.status().total.log_lines_lost == 3).then_some(()));
    let output = node.cli(&["metrics"]);
    assert!(output.out.contains("\nevergate_log_lines_lost_total 3\n"), "{}", output.out);
    node.line("access log: cannot write to /dev/full: No space left");
    assert_eq!(node.lines().iter().filter(|line| line.contains("access log")).count(), 1);
}

#[test]
fn lines_beyond_the_file_size_limit_are_counted() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = format!("[logs]\naccess = \"access.log\"\n{}", plain(&port, &demo.addresses));
    let config = folder.write("evergate.toml", &crate::node::config(&text));
    let node = Node::start_under(&folder, &["prlimit", "--fsize=2000"], &[config.to_str().unwrap()]);
    for _ in 0..20 {
        assert_eq!(get(port.address(), "/").0, 200);
    }
    let line = node.line("access log: cannot write to");
    assert!(line.contains("File too large"), "{line}");
    eventually("they are counted", || (node.status().total.log_lines_lost > 0).then_some(()));
}

#[test]
fn unread_standard_output_does_not_block_the_node() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = format!("[logs]\naccess = \"stdout\"\n{}", plain(&port, &demo.addresses));
    let config = folder.write("evergate.toml", &crate::node::config(&text));
    let (reader, writer) = std::io::pipe().unwrap();
    let mut node = Node::start_with(&folder, &[config.to_str().unwrap()], |command| command.stdout(writer));
    // More than a pipe of 64 KiB holds.
    for _ in 0..40 {
        assert_eq!(get(port.address(), &format!("/{}", "a".repeat(4000))).0, 200);
    }
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    node.line("access log: standard output accepts nothing any more: the last ");
    node.line("stopped");
    drop(reader);
}

#[test]
fn unread_standard_error_does_not_block_the_node() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let (mut node, unread) = Node::start_with_unread_stderr(&folder, &plain(&port, &demo.addresses));
    for command in ["drain", "ready"] {
        assert_eq!(node.cli(&["servers", command, "web/s0"]).code, Some(0));
    }
    assert_eq!(get(port.address(), "/").0, 200);
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    drop(unread);
}

#[test]
fn service_manager_receives_start_reload_and_stop() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let manager = ServiceManager::new(&folder);
    let config = folder.write("evergate.toml", &crate::node::config(&plain(&port, &demo.addresses)));
    let mut node = Node::start_with(&folder, &[config.to_str().unwrap()], |command| {
        command.env("NOTIFY_SOCKET", &manager.path)
    });
    let ready = manager.next();
    assert!(ready.starts_with("READY=1\nSTATUS=1 listener on 1 worker"), "{ready}");
    node.signal("HUP");
    let reloading = manager.next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert!(manager.next().contains("generation 2"));
    node.signal("TERM");
    assert!(manager.next().starts_with("STOPPING=1\n"));
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn pid_file_is_there_as_long_as_the_process() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text =
        "[node]\nworkers = 1\npid_file = \"evergate.pid\"\n".to_owned() + &plain(&port, &demo.addresses);
    let mut node = Node::with_config(&folder, &text);
    let path = folder.path("evergate.pid");
    assert_eq!(text_of(&path), format!("{}\n", node.id()));
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn pid_file_does_not_take_the_place_of_another_file() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = "[node]\npid_file = \"secret.key\"\n".to_owned() + &plain(&port, &demo.addresses);
    let config = folder.write("evergate.toml", &crate::node::config(&text));
    let secret = folder.write("secret.key", "-----BEGIN PRIVATE KEY-----\n");
    let output = crate::node::evergate(&["run", config.to_str().unwrap()]);
    assert_eq!(output.code, Some(1), "{output:?}");
    let reported = "secret.key: the existing file holds no process id";
    assert!(output.err.contains(reported) && output.err.contains("node.pid_file"), "{output:?}");
    assert_eq!(text_of(&secret), "-----BEGIN PRIVATE KEY-----\n");
}
