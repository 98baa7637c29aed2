//! Second process of a running node: it is refused, and the first process is unaffected.

use crate::node::{Demo, Folder, Node, Port, config, evergate, get, plain, text_of};

/// Runs `evergate run`, which must refuse to start; its messages.
fn refused(folder: &Folder, text: &str) -> String {
    let path = folder.write("second.toml", &config(text));
    let output = evergate(&["run", path.to_str().unwrap()]);
    assert_eq!(output.code, Some(1), "{output:?}");
    output.err
}

#[test]
fn second_process_gets_no_port_or_pid_file_of_the_first() {
    let (folder, port, metrics, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let listener = plain(&port, &demo.addresses);
    let admin = format!("[admin]\nsocket = \"admin.sock\"\nmetrics_listen = \"{}\"\n", metrics.address());
    let node = "[node]\nworkers = 2\npid_file = \"evergate.pid\"\n";
    let first = Node::with_config(&folder, &format!("{node}{admin}{listener}"));

    let text = refused(&folder, &format!("[admin]\nsocket = \"off\"\n{listener}"));
    let expected = format!("listener \"in\" cannot listen on \"{}\": Address already in use", port.address());
    assert!(text.contains(&expected) && text.contains("ss -ltnp") && !text.contains("CAP_NET"), "{text}");

    let elsewhere = plain(&Port::new(), &demo.addresses);
    let metrics_only = admin.replace("admin.sock", "other.sock");
    let text = refused(&folder, &format!("{metrics_only}{elsewhere}"));
    assert!(text.contains("admin.metrics_listen: cannot serve metrics") && text.contains("in use"), "{text}");

    let text = refused(&folder, &format!("{node}[admin]\nsocket = \"off\"\n{elsewhere}"));
    assert!(text.contains("evergate.pid") && text.contains(&format!("({}) is alive", first.id())), "{text}");

    assert_eq!(text_of(&folder.path("evergate.pid")), format!("{}\n", first.id()));
    for _ in 0..20 {
        assert_eq!(get(port.address(), "/").0, 200);
    }
    assert_eq!(first.status().total.accepted, 20, "the first process has accepted all connections");
}

#[test]
fn process_starts_beside_the_remains_of_a_killed_one() {
    let (folder, port, demo) = (Folder::new(), Port::new(), Demo::start(1));
    let text = format!("[node]\nworkers = 2\npid_file = \"evergate.pid\"\n{}", plain(&port, &demo.addresses));
    let mut killed = Node::with_config(&folder, &text);
    let _open = std::net::TcpStream::connect(port.address()).unwrap();
    assert_eq!(get(port.address(), "/").0, 200);
    killed.signal("KILL");
    killed.wait();
    assert_eq!(text_of(&folder.path("evergate.pid")), format!("{}\n", killed.id()));
    let next = Node::with_config(&folder, &text);
    assert_eq!(get(port.address(), "/").0, 200);
    assert_eq!(text_of(&folder.path("evergate.pid")), format!("{}\n", next.id()));
}

#[test]
fn reload_refuses_a_used_port_and_keeps_a_renamed_listener() {
    let (folder, port, taken, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(1));
    let node = Node::with_config(&folder, &plain(&port, &demo.addresses));
    let other_folder = Folder::new();
    let _other = Node::with_config(&other_folder, &plain(&taken, &demo.addresses));
    let reload = |text: &str| {
        folder.write("evergate.toml", &config(text));
        node.cli(&["reload"])
    };
    let output = reload(&plain(&taken, &demo.addresses));
    assert!(output.code == Some(2) && output.err.contains("Address already in use"), "{output:?}");
    assert_eq!(get(port.address(), "/").0, 200);
    assert_eq!(node.status().generation, 1);
    // A refused reload uses no generation number.
    let everywhere = format!("0.0.0.0:{}", port.number);
    let wider = plain(&port, &demo.addresses).replace(&port.address().to_string(), &everywhere);
    for (generation, text) in
        [(2, plain(&port, &demo.addresses).replace("name = \"in\"", "name = \"other\"")), (3, wider)]
    {
        let output = reload(&text);
        assert_eq!(output.out, format!("reloaded: generation {generation} is in force\n"), "{output:?}");
        assert_eq!(get(port.address(), "/").0, 200);
    }
}

#[test]
fn ipv6_listener_accepts_ipv6_only_and_a_bare_port_both() {
    let (folder, demo) = (Folder::new(), Demo::start(1));
    if !crate::support::can_run(std::net::TcpListener::bind("[::1]:0").is_ok(), "IPv6") {
        return;
    }
    let port = Port::new();
    let listener = plain(&port, &demo.addresses);
    let (own, number) = (port.address().to_string(), port.number);
    for (address, has_ipv4) in [(format!("[::]:{number}"), false), (format!(":{number}"), true)] {
        let node = Node::with_config(&folder, &listener.replace(&own, &address));
        assert_eq!(get(([0, 0, 0, 0, 0, 0, 0, 1], number).into(), "/").0, 200, "{address}");
        let ipv4 = std::net::TcpStream::connect(("127.0.0.1", number));
        assert_eq!(ipv4.is_ok(), has_ipv4, "{address}");
        drop(node);
    }
}
