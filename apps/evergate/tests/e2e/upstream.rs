//! TLS towards servers.

use super::backend::pattern;
use super::client::{Wire, get};
use super::node::{Folder, Node};
use super::pki::issue;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// TLS configuration of a server with the certificate of this name.
pub(crate) fn secure_config(folder: &Folder, name: &str) -> Arc<ServerConfig> {
    let read = |suffix: &str| std::fs::read(folder.path(&format!("{name}.{suffix}"))).unwrap();
    let own = evergate_crypto::ClientCertificate::from_pem(&read("pem"), &read("key")).unwrap();
    let config = ServerConfig::builder_with_provider(evergate_crypto::client_provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(own.chain, own.key)
        .unwrap();
    Arc::new(config)
}

/// TLS server that answers the first request of each connection and has its own session cache.
pub(crate) fn secure_backend(folder: &Folder, name: &str) -> SocketAddr {
    let config = secure_config(folder, name);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            let mut buffer = [0; 4096];
            if stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    address
}

/// TLS server with persistent connections. It answers with the requested number of bytes.
pub(crate) fn keeping_secure_backend(folder: &Folder, name: &str) -> SocketAddr {
    let config = secure_config(folder, name);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let config = config.clone();
            std::thread::spawn(move || {
                let mut wire = Wire::new(StreamOwned::new(ServerConnection::new(config).unwrap(), stream));
                while let Ok(Some(head)) = wire.read_head() {
                    let count = head.start.split(['/', ' ']).filter_map(|part| part.parse().ok()).next();
                    let body = pattern(count.unwrap_or(3));
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    if wire.send([head.as_bytes(), &body].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn server_is_accepted_only_with_expected_name_and_authority() {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "other", "ecdsa", "", None);
    issue(&folder, "orders", "ecdsa", "orders.internal", Some("ca"));
    let address = secure_backend(&folder, "orders");
    let mut config = String::new();
    for (name, tls) in [
        ("right", "server_name = \"orders.internal\", ca = \"ca.pem\""),
        ("name", "server_name = \"bills.internal\", ca = \"ca.pem\""),
        ("authority", "server_name = \"orders.internal\", ca = \"other.pem\""),
        ("unchecked", "verify = false"),
    ] {
        config += &format!(
            "[[listeners]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"{name}\"\n\
             [[pools]]\nname = \"{name}\"\nservers = [{{ address = \"{address}\" }}]\ntls = {{ {tls} }}\n"
        );
    }
    let node = Node::start_in(folder, &config);
    for (listener, status) in [("right", 200), ("name", 502), ("authority", 502), ("unchecked", 200)] {
        assert_eq!(get(node.address(listener), "/").status, status, "{listener}");
    }
    assert_eq!(get(node.address("right"), "/").text(), "secret");
}

#[test]
fn reload_with_another_authority_reuses_no_old_connection() {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "other", "ecdsa", "", None);
    issue(&folder, "orders", "ecdsa", "orders.internal", Some("ca"));
    let address = keeping_secure_backend(&folder, "orders");
    let config = |tls: &str| {
        format!(
            "[node]\nworkers = 1\n[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
             pool = \"web\"\n\
             [[pools]]\nname = \"web\"\nservers = [{{ address = \"{address}\" }}]\ntls = {{ {tls} }}\n"
        )
    };
    let node = Node::start_in(folder, &config("verify = false"));
    let at = node.address("in");
    let reused = || node.metric("evergate_connections_reused_total");
    let status = || get(at, "/").status;
    assert_eq!((status(), status(), reused()), (200, 200, 1));
    node.reload();
    assert_eq!((status(), reused()), (200, 2), "nothing has changed");
    node.write(&config("server_name = \"orders.internal\", ca = \"other.pem\""));
    node.reload();
    assert_eq!(status(), 502);
    node.write(&config("server_name = \"orders.internal\", ca = \"ca.pem\""));
    node.reload();
    assert_eq!((status(), status(), reused()), (200, 200, 3));
    let ca = node.folder.path("ca.pem");
    std::fs::copy(node.folder.path("other.pem"), ca).unwrap();
    node.reload();
    assert_eq!(status(), 502, "the file holds another authority");
}
