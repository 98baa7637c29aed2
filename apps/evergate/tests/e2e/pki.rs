//! Certificates from the system's openssl, and TLS clients that accept or verify them.

use super::client::{Wire, tcp};
use super::node::Folder;
use evergate_crypto::{ClientCertificate, ClientSettings, Verify, client_config};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

pub(crate) type Tls = Wire<StreamOwned<ClientConnection, TcpStream>>;

/// Creates `NAME.pem` and `NAME.key` for a subject and host name, signed by the named authority or self-signed.
pub(crate) fn issue(folder: &Folder, name: &str, algorithm: &str, host: &str, authority: Option<&str>) {
    let is_authority = host.is_empty();
    let kind = if is_authority {
        "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign".to_owned()
    } else {
        format!("basicConstraints=critical,CA:FALSE\nsubjectAltName=DNS:{host}")
    };
    let subject = if is_authority { name } else { host };
    folder.write(
        &format!("{name}.cnf"),
        &format!("[req]\ndistinguished_name=dn\nprompt=no\nx509_extensions=ext\n[dn]\nCN={subject}\n[ext]\n{kind}\n"),
    );
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-noenc", "-days", "30", "-newkey"]);
    match algorithm {
        "rsa" => command.arg("rsa:2048"),
        "ed25519" => command.arg("ed25519"),
        "p521" => command.args(["ec", "-pkeyopt", "ec_paramgen_curve:P-521"]),
        _ => command.args(["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]),
    };
    let file = |suffix: &str| folder.path(&format!("{name}.{suffix}"));
    command.arg("-config").arg(file("cnf")).arg("-keyout").arg(file("key")).arg("-out").arg(file("pem"));
    if let Some(authority) = authority {
        command.arg("-CA").arg(folder.path(&format!("{authority}.pem")));
        command.arg("-CAkey").arg(folder.path(&format!("{authority}.key")));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Configuration `[[certificates]]` for files of [`issue`].
pub(crate) fn certificate(name: &str) -> String {
    format!("[[certificates]]\nname = \"{name}\"\nchain = \"{name}.pem\"\nkey = \"{name}.key\"\n")
}

/// Configuration of an https listener `in` with further keys.
pub(crate) fn https(more: &str) -> String {
    format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\npool = \"web\"\n{more}\n"
    )
}

/// Client that verifies nothing, with an optional certificate `NAME`.
pub(crate) fn client(own: Option<(&Folder, &str)>) -> ClientConfig {
    let read = |folder: &Folder, file: String| std::fs::read(folder.path(&file)).unwrap();
    let certificate = own.map(|(folder, name)| {
        ClientCertificate::from_pem(
            &read(folder, format!("{name}.pem")),
            &read(folder, format!("{name}.key")),
        )
        .unwrap()
    });
    let config =
        client_config(ClientSettings { verify: Verify::InsecureNone, alpn: Vec::new(), certificate })
            .unwrap();
    Arc::unwrap_or_clone(config)
}

/// TLS 1.2 client that trusts the authority `ca`.
pub(crate) fn tls12(folder: &Folder) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(stored(folder, "ca").into()).unwrap();
    ClientConfig::builder_with_provider(evergate_crypto::client_provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Connects; the handshake happens with the first bytes.
pub(crate) fn tls(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> Tls {
    let name = name.to_owned().try_into().unwrap();
    let connection = ClientConnection::new(config.clone(), name).unwrap();
    Wire::new(StreamOwned::new(connection, tcp(address)))
}

/// Certificate of the server.
pub(crate) fn shown(wire: &Tls) -> Vec<u8> {
    wire.stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Certificate in `NAME.pem`, as DER.
pub(crate) fn stored(folder: &Folder, name: &str) -> Vec<u8> {
    let output = Command::new("openssl")
        .args(["x509", "-outform", "DER", "-in"])
        .arg(folder.path(&format!("{name}.pem")))
        .output()
        .unwrap();
    output.stdout
}
