//! Upgrade as operators and the service manager see it.

use crate::node::{
    Backend, Demo, Folder, Node, Port, config, eventually, evergate, get, plain, read_response, text_of,
};
use crate::service_manager::ServiceManager;
use crate::support::{Process, can_run, hello, script, upgrade_message};
use evergate::control::status::Upgraded;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

#[test]
fn new_process_owns_pid_file_metrics_log_and_notify_socket() {
    let (folder, port, metrics, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let manager = ServiceManager::new(&folder);
    let text = format!(
        "[node]\nworkers = 1\npid_file = \"evergate.pid\"\n[logs]\naccess = \"access.log\"\n\
         [admin]\nsocket = \"admin.sock\"\nmetrics_listen = \"{}\"\n{}",
        metrics.address(),
        plain(&port, &demo.addresses),
    );
    let config = folder.write("evergate.toml", &text);
    let mut node = Node::start_with(&folder, &[config.to_str().unwrap()], |command| {
        command.env("NOTIFY_SOCKET", &manager.path)
    });
    assert!(manager.next().starts_with("READY=1\n"));
    node.json::<serde_json::Value>(&["reload"]);
    assert!(manager.next().starts_with("RELOADING=1\n") && manager.next().starts_with("READY=1\n"));

    let mut slow = TcpStream::connect(port.address()).unwrap();
    write!(slow, "GET /slow?ms=1500 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    eventually("the request is under way", || (node.server("web/s0").outstanding == 1).then_some(()));
    let upgraded: Upgraded = node.json(&["upgrade"]);
    assert_eq!((upgraded.passed, upgraded.waiting.len()), (1, 0));
    assert_eq!(manager.next(), format!("MAINPID={}\n", upgraded.pid));
    assert!(manager.next().starts_with("READY=1\n"));
    assert_eq!(node.wait().code(), Some(0), "the old process");

    let status = node.status();
    assert_eq!((status.pid, status.generation, status.state.as_str()), (upgraded.pid, 2, "running"));
    assert_eq!((status.connections.open, status.total.inherited), (1, 1));
    assert_eq!(text_of(&folder.path("evergate.pid")), format!("{}\n", upgraded.pid));
    assert!(get(metrics.address(), "/metrics").1.contains("evergate_connections_inherited_total 1"));
    assert_eq!(read_response(slow).0, 200);
    let line = eventually("the request is in the log", || {
        text_of(&folder.path("access.log")).lines().last().map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["pool"], &line["server"], &line["status"]), (&"web".into(), &"s0".into(), &200.into()));
    assert!((1500.0..20_000.0).contains(&line["total_ms"].as_f64().unwrap()), "{line}");

    // Commands and signals reach the new process.
    node.json::<serde_json::Value>(&["drain"]);
    assert!(manager.next().starts_with("STOPPING=1\n"));
    eventually("its files are gone", || {
        let left = ["admin.sock", "evergate.pid"].iter().any(|file| folder.path(file).exists());
        (!left).then_some(())
    });
}

/// `evergate upgrade && evergate reload`, as a script runs it.
#[test]
fn reload_right_after_an_upgrade_succeeds() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    for round in 0..5 {
        let mut slow = TcpStream::connect(port.address()).unwrap();
        write!(slow, "GET /slow?ms=300 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        eventually("the request is under way", || (node.server("web/s0").outstanding == 1).then_some(()));
        node.json::<Upgraded>(&["upgrade"]);
        let reloaded = node.cli(&["reload"]);
        assert_eq!(reloaded.code, Some(0), "round {round}: {reloaded:?}");
        assert_eq!(read_response(slow).0, 200);
    }
    node.json::<serde_json::Value>(&["drain"]); // the new process has no parent that waits
}

/// The process that is asked is replaced before it reloads: the command asks its successor.
#[test]
fn reload_during_an_upgrade_reaches_the_new_process() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let program = env!("CARGO_BIN_EXE_evergate");
    let slow = script(&folder, "slow", &format!("sleep 1; exec {program} \"$@\""));
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| node.json::<Upgraded>(&["upgrade", "--binary", &slow]));
        node.line("upgrade: starting");
        let reloaded = node.cli(&["reload"]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        let (upgraded, status) = (upgrade.join().unwrap(), node.status());
        assert_eq!((status.pid, status.reloads.succeeded), (upgraded.pid, 1));
    });
    node.json::<serde_json::Value>(&["drain"]); // the new process has no parent that waits
}

#[test]
fn reload_during_a_failed_upgrade_follows_in_the_old_process() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let ends = script(&folder, "ends", "sleep 1; exit 1");
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| node.cli(&["upgrade", "--binary", &ends]));
        node.line("upgrade: starting");
        let reloaded = node.cli(&["reload"]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        assert_eq!(upgrade.join().unwrap().code, Some(1));
    });
    assert_eq!((node.status().pid, node.status().generation), (node.id(), 2));
}

#[test]
fn metrics_return_to_the_old_process_after_a_failed_upgrade() {
    let (folder, port, metrics, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let admin = format!("[admin]\nsocket = \"admin.sock\"\nmetrics_listen = \"{}\"\n", metrics.address());
    let node = Node::with_config(&folder, &(admin + &plain(&port, &demo.addresses)));
    let text = format!("{}\n{}\nsleep 0.5; exit 1", upgrade_message(&hello()), upgrade_message("\"Ready\""));
    let ends = script(&folder, "ends", &text);
    let _ = node.cli(&["upgrade", "--binary", &ends]); // success and failure are both possible answers
    node.line("this one serves again");
    assert!(get(metrics.address(), "/metrics").1.contains("evergate_build_info"));
    assert!(!node.lines().iter().any(|line| line.contains("cannot serve")));
}

#[test]
fn failure_counts_of_checks_survive_an_upgrade() {
    let (folder, port, mut backend) = (Folder::new(), Port::new(), Backend::new("one"));
    let health = "health = { path = \"/healthz\", interval_ms = 300, timeout_ms = 300, fall = 5 }\n";
    let node = Node::with_config(&folder, &(plain(&port, &[backend.address()]) + health));
    eventually("it is checked", || node.server("web/s0").health);
    backend.die();
    node.json::<Upgraded>(&["upgrade"]);
    let line = node.line("server web/s0");
    node.json::<serde_json::Value>(&["drain"]); // the test is not the parent of the new process
    assert!(line.contains("is down") && line.contains("(5 checks in a row)"), "{line}");
}

#[test]
fn failed_new_process_leaves_the_admin_socket_alone() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    std::fs::create_dir(folder.path("logs")).unwrap();
    let text = "[logs]\naccess = \"logs/access.log\"\n[admin]\nsocket = \"admin.sock\"\n";
    let node = Node::with_config(&folder, &(text.to_owned() + &plain(&port, &demo.addresses)));
    std::fs::rename(folder.path("logs"), folder.path("elsewhere")).unwrap();
    let refused = node.cli(&["upgrade"]);
    assert!(refused.err.contains("cannot open access log"), "{refused:?}");
    let status = node.status();
    assert_eq!((status.pid, status.state.as_str()), (node.id(), "running"));
}

#[test]
fn new_process_that_hangs_ends_with_the_node() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let mut node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let id = folder.path("id");
    let hangs = script(&folder, "hangs", &format!("echo $$ > {}; exec sleep 600", id.display()));
    let socket = node.socket.to_str().unwrap().to_owned();
    let asking = std::thread::spawn(move || evergate(&["upgrade", "--binary", &hangs, "--socket", &socket]));
    let hanging = eventually("it hangs", || Some(text_of(&id)).filter(|text| text.ends_with('\n')));
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    assert_eq!(asking.join().unwrap().code, Some(1));
    let process = format!("/proc/{}/comm", hanging.trim());
    eventually("it has ended", || (text_of(process.as_ref()) != "sleep\n").then_some(()));
}

#[test]
fn errors_of_a_refused_upgrade_precede_its_warnings() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let base = plain(&port, &demo.addresses);
    let node = Node::with_config(&folder, &base);
    let wrong = "[[rules]]\nname = \"r\"\ndeny = 405\n[[rules]]\nname = \"s\"\nroute = \"nowhere\"\n";
    folder.write("evergate.toml", &crate::node::config(&(base + wrong)));
    let refused = node.cli(&["upgrade"]);
    let heads: Vec<_> = refused.err.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(heads.len() == 2 && heads[0].starts_with("error: /"), "{refused:?}");
    assert!(heads[0].contains("rules[1].route") && heads[1].starts_with("warning: /"), "{refused:?}");
    assert_eq!((refused.code, node.status().generation), (Some(1), 1));
}

/// Unprivileged account of the tests.
const USER: &str = "nobody";

/// Whether tests run as root, the owner of this folder. Only root can change its user.
fn can_change_user(folder: &std::path::Path) -> bool {
    can_run(std::fs::metadata(folder).unwrap().uid() == 0, "root")
}

/// The old process has started as root and changed its user. Files that root created for it belong to that user.
#[test]
fn unprivileged_node_upgrades_with_a_log_created_by_root() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let log = folder.path("logs");
    std::fs::create_dir(&log).unwrap();
    if !can_change_user(&log) {
        return;
    }
    let Ok(account) = evergate_sys::Account::named(USER, None) else { panic!("no account {USER}") };
    account.own(&std::fs::File::open(&log).unwrap()).unwrap();
    let text = format!(
        "[node]\nuser = \"{USER}\"\n[logs]\naccess = \"logs/access.log\"\n[admin]\nsocket = \"admin.sock\"\n"
    );
    let node = Node::with_config(&folder, &(text + &plain(&port, &demo.addresses)));
    assert!(account.may(evergate_sys::Access::Write, &log.join("access.log")).unwrap());
    // The user may have no access to the folder of the program's build.
    let program = folder.path("program");
    std::fs::copy(env!("CARGO_BIN_EXE_evergate"), &program).unwrap();
    let upgraded = node.cli(&["upgrade", "--binary", program.to_str().unwrap()]);
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    node.json::<serde_json::Value>(&["drain"]); // the test is not the parent of the new process
}

/// The admin socket is in a folder of root: one that the process creates, and one that no other user may enter.
#[test]
fn unprivileged_node_upgrades_with_a_socket_folder_of_root() {
    for is_there in [false, true] {
        let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
        if !can_change_user(&folder.path("")) {
            return;
        }
        if is_there {
            std::fs::DirBuilder::new().mode(0o700).create(folder.path("run")).unwrap();
        }
        let text = format!("[node]\nuser = \"{USER}\"\n[admin]\nsocket = \"run/admin.sock\"\n");
        let mut node = Node::with_config(&folder, &(text + &plain(&port, &demo.addresses)));
        node.socket = folder.path("run/admin.sock");
        // The user may have no access to the folder of the program's build.
        let program = folder.path("program");
        std::fs::copy(env!("CARGO_BIN_EXE_evergate"), &program).unwrap();
        for _ in 0..2 {
            let reloaded = node.cli(&["reload"]);
            assert!(reloaded.code == Some(0) && !reloaded.err.contains("no admin API"), "{reloaded:?}");
            let upgraded = node.cli(&["upgrade", "--binary", program.to_str().unwrap()]);
            assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
            eventually("the process before has ended", || {
                (node.status().state == "running" && node.cli(&["reload"]).code == Some(0)).then_some(())
            });
        }
        node.json::<serde_json::Value>(&["drain"]); // the test is not the parent of the new process
    }
}

#[test]
fn link_in_place_of_the_access_log_gives_no_further_access() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let (log, own) = (folder.path("logs"), folder.path("own"));
    std::fs::create_dir(&log).unwrap();
    std::fs::create_dir(&own).unwrap();
    if !can_change_user(&log) {
        return;
    }
    let account = evergate_sys::Account::named(USER, None).unwrap();
    account.own(&std::fs::File::open(&log).unwrap()).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).unwrap();
    let there = folder.write("own/there", "mine");
    std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!("[node]\nuser = \"{USER}\"\n[logs]\naccess = \"logs/access.log\"\n");
    let path = folder.write("evergate.toml", &config(&(text + &plain(&port, &demo.addresses))));
    for target in ["there", "new"] {
        std::os::unix::fs::symlink(own.join(target), log.join("access.log")).unwrap();
        let mut refused = Process::spawn(|command| command.arg(&path));
        assert_eq!(refused.wait().code(), Some(1), "{:?}", refused.lines());
        let (reported, _) =
            refused.line_after(0, &format!("access.log as user \"{USER}\" (node.user): Permission denied"));
        assert!(reported.contains("if it is a link"), "{reported}");
        std::fs::remove_file(log.join("access.log")).unwrap();
    }
    assert_eq!(text_of(&there), "mine");
    assert!(!own.join("new").exists());
}
