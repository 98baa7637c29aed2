//! One connection of a client, plain or with TLS.

use anyhow::{Context, Result, ensure};
use evergate_crypto::{ClientSettings, Verify, client_config};
use rustls::client::Resumption;
use rustls::{CipherSuite, ClientConfig, ClientConnection, ProtocolVersion, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Connection to a server.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// TLS of all clients: any certificate is accepted, and no session is resumed.
pub(crate) fn tls_config() -> Result<Arc<ClientConfig>> {
    let settings = ClientSettings { verify: Verify::InsecureNone, alpn: Vec::new(), certificate: None };
    let mut config = Arc::unwrap_or_clone(client_config(settings).context("TLS")?);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

impl Wire {
    /// Connects. With `tls` the handshake is done too; its second part is the server name that the hello has (SNI). A
    /// read or write that takes longer than `patience` is an error.
    pub(crate) fn open(
        address: SocketAddr,
        tls: Option<(&Arc<ClientConfig>, &str)>,
        patience: Duration,
    ) -> Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let Some((config, name)) = tls else { return Ok(Wire::Plain(stream)) };
        let connection = ClientConnection::new(config.clone(), name.to_owned().try_into()?)?;
        let mut stream = StreamOwned::new(connection, stream);
        stream.conn.complete_io(&mut stream.sock)?;
        let suite = stream.conn.negotiated_cipher_suite().map(|suite| suite.suite());
        ensure!(
            stream.conn.protocol_version() == Some(ProtocolVersion::TLSv1_3)
                && suite == Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
            "not TLS 1.3 with AES-128-GCM: {suite:?}"
        );
        Ok(Wire::Tls(Box::new(stream)))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(bytes),
            Wire::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}
