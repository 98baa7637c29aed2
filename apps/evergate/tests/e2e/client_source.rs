//! `source = "client"`: servers behind the node see the addresses of its clients, and answer through the node.
//!
//! Three network namespaces stand in a row: clients, the node as the gateway, servers. The node has `CAP_NET_RAW` and
//! no other right.

use super::client::{Wire, connect_from};
use super::node::{Folder, Node, eventually, has_ended, web};
use super::pki::client;
use crate::support::{Port, Process, can_run, evergate, plain_at};
use evergate_netns::Namespace;
use rustls::ClientConnection;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

const MARKS: &str = include_str!("../../../../examples/networks/client-source.nft");
const CLIENTS: [&str; 2] = ["192.0.2.7", "192.0.2.8"];
const CLIENTS_V6: [&str; 2] = ["2001:db8:1::7", "2001:db8:1::8"];
const SERVER: &str = "10.9.0.2";
const SERVER_V6: &str = "2001:db8:9::2";
/// Ports of the listeners, at both addresses of the node.
const HTTP: u16 = 8000;
const TCP: u16 = 8001;
const PASSTHROUGH: u16 = 8002;
const BEHIND_PROXY: u16 = 8003;

/// Prefix that runs a command as an unprivileged user with the capabilities of this set, such as `,+net_raw`.
fn rights(capabilities: &str) -> Vec<String> {
    let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}=-all{capabilities}"));
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned);
    user.into_iter().chain(sets).chain(["--no-new-privs".to_owned()]).collect()
}

fn has_needs() -> bool {
    let prefix = rights(",+net_raw");
    let drops = Command::new(&prefix[0]).args(&prefix[1..]).arg("true").status();
    let can = drops.is_ok_and(|status| status.success()) && Namespace::new().is_ok();
    can_run(can, "root, network namespaces, and setpriv")
}

/// Folder whose files the unprivileged user may use.
fn open_folder() -> Folder {
    let folder = Folder::new();
    std::fs::set_permissions(folder.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

struct World {
    clients: Namespace,
    gateway: Namespace,
    servers: Namespace,
}

impl World {
    fn new() -> World {
        let [clients, gateway, servers] = [(); 3].map(|()| Namespace::new().unwrap());
        gateway.connect("out", "02:00:00:00:00:01", &clients, "eth").unwrap();
        gateway.connect("in", "02:00:00:00:00:02", &servers, "eth").unwrap();
        let addresses = [
            (&gateway, "192.0.2.1/24 dev out"),
            (&gateway, "2001:db8:1::1/64 dev out nodad"),
            (&gateway, "10.9.0.1/24 dev in"),
            (&gateway, "2001:db8:9::1/64 dev in nodad"),
            (&servers, "10.9.0.2/24 dev eth"),
            (&servers, "2001:db8:9::2/64 dev eth nodad"),
        ];
        for (place, address) in addresses {
            place.ip(&format!("addr add {address}")).unwrap();
        }
        for (v4, v6) in CLIENTS.iter().zip(CLIENTS_V6) {
            clients.ip(&format!("addr add {v4}/24 dev eth")).unwrap();
            clients.ip(&format!("addr add {v6}/64 dev eth nodad")).unwrap();
        }
        servers.ip("route add default via 10.9.0.1").unwrap();
        servers.ip("-6 route add default via 2001:db8:9::1").unwrap();
        // The commands of the guide.
        for family in ["", "-6 "] {
            let all = if family.is_empty() { "0.0.0.0/0" } else { "::/0" };
            gateway.ip(&format!("{family}rule add fwmark 1 lookup 100")).unwrap();
            gateway.ip(&format!("{family}route add local {all} dev lo table 100")).unwrap();
        }
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let marked = gateway.run(|| Command::new("nft").env("PATH", path).arg(MARKS).status().unwrap());
        assert!(marked.success());
        World { clients, gateway, servers }
    }

    /// Node in the gateway, in front of a server of this family.
    fn node(&self, server: SocketAddr, more: &str) -> Node {
        let listeners: Vec<String> = [("192.0.2.1", "4"), ("[2001:db8:1::1]", "6")]
            .iter()
            .flat_map(|(ip, family)| {
                [("http", HTTP), ("tcp", TCP), ("passthrough", PASSTHROUGH)].map(|(protocol, port)| {
                    format!(
                        "[[listeners]]\nname = \"{protocol}{family}\"\naddress = \"{ip}:{port}\"\n\
                         protocol = \"{protocol}\"\npool = \"web\"\n"
                    )
                })
            })
            .collect();
        let behind = format!(
            "[[listeners]]\nname = \"behind\"\naddress = \"192.0.2.1:{BEHIND_PROXY}\"\nprotocol = \"http\"\n\
             pool = \"web\"\nproxy_protocol = true\ntrusted_proxies = [\"192.0.2.0/24\"]\n"
        );
        let pool = web(&[server], "source = \"client\"\nretries = 0\n");
        let config = format!("{}{behind}{pool}{more}", listeners.concat());
        Node::start_by(open_folder(), &config, |path| {
            let run = move || {
                let prefix = rights(",+net_raw");
                let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
                let process = Process::spawn_under(&prefix, |command| {
                    command.arg(path).args(["--watch-interval-ms", "3600000"])
                });
                process.line_after(0, "ready: ");
                process
            };
            self.gateway.run(run)
        })
    }

    /// Connection of a client with this address to a port of the node.
    fn connect(&self, from: &str, port: u16) -> Wire<TcpStream> {
        let from: IpAddr = from.parse().unwrap();
        let node = if from.is_ipv4() { "192.0.2.1" } else { "2001:db8:1::1" };
        let to = SocketAddr::new(node.parse().unwrap(), port);
        self.clients.run(move || connect_from(from, to))
    }

    /// Server that answers each request with its client's address and the number of the connection; or, where `greets`,
    /// writes that at the beginning of each connection and returns what it receives.
    fn server(&self, ip: &str, greets: bool) -> SocketAddr {
        let at = SocketAddr::new(ip.parse().unwrap(), 0);
        let listener = self.servers.run(move || TcpListener::bind(at).unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let name = format!("{} {number}\n", stream.peer_addr().unwrap().ip());
                std::thread::spawn(move || serve(stream, &name, greets));
            }
        });
        address
    }
}

fn serve(mut stream: TcpStream, name: &str, greets: bool) {
    if !greets {
        let mut wire = Wire::new(stream);
        while let Ok(Some(_)) = wire.read_head() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            if wire.send(head).is_err() {
                return;
            }
        }
        return;
    }
    let mut buffer = [0; 4096];
    let _ = stream.write_all(name.as_bytes());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Reads as many bytes as `expected` has, and compares them.
#[track_caller]
fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut seen = vec![0; expected.len()];
    stream.read_exact(&mut seen).unwrap();
    assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(expected));
}

#[test]
fn servers_see_the_addresses_of_keep_alive_clients() {
    if !has_needs() {
        return;
    }
    let world = World::new();
    for (server, clients) in [(SERVER, CLIENTS), (SERVER_V6, CLIENTS_V6)] {
        let _node = world.node(world.server(server, false), "");
        let mut wires = clients.map(|client| world.connect(client, HTTP));
        for _ in 0..3 {
            for (number, (wire, client)) in wires.iter_mut().zip(clients).enumerate() {
                assert_eq!(wire.get("/x").unwrap().text(), format!("{client} {number}\n"));
            }
        }
        // A client that comes after others uses none of their connections.
        drop(wires);
        let mut third = world.connect(clients[0], HTTP);
        assert_eq!(third.get("/x").unwrap().text(), format!("{} 2\n", clients[0]));
    }
}

#[test]
fn servers_see_the_client_that_a_proxy_header_names() {
    if !has_needs() {
        return;
    }
    let world = World::new();
    let _node = world.node(world.server(SERVER, false), "");
    for (number, named) in ["203.0.113.9", "203.0.113.10"].iter().enumerate() {
        let mut wire = world.connect(CLIENTS[0], BEHIND_PROXY);
        wire.send(format!("PROXY TCP4 {named} 203.0.113.80 5555 443\r\n")).unwrap();
        for _ in 0..2 {
            assert_eq!(wire.get("/x").unwrap().text(), format!("{named} {number}\n"));
        }
    }
}

#[test]
fn servers_see_the_addresses_of_tunnels_clients() {
    if !has_needs() {
        return;
    }
    let world = World::new();
    for (server, clients) in [(SERVER, CLIENTS), (SERVER_V6, CLIENTS_V6)] {
        let _node = world.node(world.server(server, true), "");
        for (number, client) in clients.iter().enumerate() {
            let mut stream = world.connect(client, TCP).stream;
            expect(&mut stream, format!("{client} {number}\n").as_bytes());
            stream.write_all(b"ping").unwrap();
            expect(&mut stream, b"ping");
        }
        for (number, address) in clients.iter().enumerate() {
            let mut hello = Vec::new();
            let name = "site.example".try_into().unwrap();
            let mut session = ClientConnection::new(Arc::new(client(None)), name).unwrap();
            session.write_tls(&mut hello).unwrap();
            let mut stream = world.connect(address, PASSTHROUGH).stream;
            stream.write_all(&hello).unwrap();
            expect(&mut stream, format!("{address} {}\n", number + 2).as_bytes());
            expect(&mut stream, &hello);
        }
    }
}

#[test]
fn upgrade_keeps_connections_from_clients_addresses() {
    if !has_needs() {
        return;
    }
    let world = World::new();
    let node = world.node(world.server(SERVER, false), "");
    let mut wires = CLIENTS.map(|client| world.connect(client, HTTP));
    for round in 0..2 {
        for (number, (wire, client)) in wires.iter_mut().zip(CLIENTS).enumerate() {
            assert_eq!(wire.get("/x").unwrap().text(), format!("{client} {number}\n"), "round {round}");
        }
        if round == 0 {
            let old = node.pid();
            node.upgrade();
            assert!(has_ended(old));
        }
    }
    let mut fresh = world.connect(CLIENTS[1], HTTP);
    assert_eq!(fresh.get("/x").unwrap().text(), format!("{} 2\n", CLIENTS[1]));
}

#[test]
fn client_of_another_family_gets_502_and_a_logged_cause() {
    if !has_needs() {
        return;
    }
    let world = World::new();
    let node = world.node(world.server(SERVER, false), "[logs]\naccess = \"access.log\"\n");
    assert_eq!(world.connect(CLIENTS_V6[0], HTTP).get("/x").unwrap().status, 502);
    assert_eq!(world.connect(CLIENTS[0], HTTP).get("/x").unwrap().status, 200, "the server has not failed");
    assert_eq!(node.metric("evergate_ended_total{reason=\"connect_failed\"}"), 1);
    assert_eq!(node.metric("evergate_server_failures_total"), 0);
    eventually("the cause is logged", || {
        let log = std::fs::read_to_string(node.folder.path("access.log")).unwrap();
        let cause = format!("the client {} and the server {SERVER}", CLIENTS_V6[0]);
        (log.contains("\"connect_failed\"") && log.contains(&cause)).then_some(())
    });
}

/// The kernel refuses the address later, when each client would get 502: so start and reload refuse the setting.
#[test]
fn node_without_the_right_refuses_the_setting() {
    if !has_needs() {
        return;
    }
    let folder = open_folder();
    let (port, servers) = (Port::new(), [SocketAddr::from(([127, 0, 0, 1], 1))]);
    let config = |pool: &str| {
        let common = "[node]\nworkers = 1\n[logs]\naccess = \"off\"\n[admin]\nsocket = \"admin.sock\"\n";
        format!("{common}{}", plain_at(&port.address().to_string(), &servers, "", pool))
    };
    let file = folder.write("evergate.toml", &config("source = \"client\""));
    let prefix = rights("");
    let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
    let mut refused = Process::spawn_under(&prefix, |command| command.arg(&file));
    let (found, _) = refused.line_after(0, "pool \"web\" has source");
    assert!(!refused.wait().success());
    for part in ["source = \"client\"", "CAP_NET_RAW", "AmbientCapabilities=CAP_NET_RAW"] {
        assert!(found.contains(part), "{found}");
    }
    let check = [&prefix[1..], &[env!("CARGO_BIN_EXE_evergate"), "check", file.to_str().unwrap()]].concat();
    let check = Command::new(prefix[0]).args(check).output().unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.success() && text.contains("may not use the addresses of clients"), "{text}");

    folder.write("evergate.toml", &config("source = \"node\""));
    let node = Process::spawn_under(&prefix, |command| command.arg(&file));
    node.line_after(0, "ready: ");
    folder.write("evergate.toml", &config("source = \"client\""));
    let reload = evergate(&["reload", "--socket", folder.path("admin.sock").to_str().unwrap()]);
    let text = reload.out + &reload.err;
    assert!(reload.code != Some(0) && text.contains("may not use the addresses of clients"), "{text}");
}
