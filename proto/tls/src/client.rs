//! Client side of a handshake with an upstream server.
//!
//! It is not deterministic: an upstream connection that fails in its handshake is simply made again. A seed is
//! installed all the same, because the key log returns traffic secrets through it; the ordinary provider draws nothing
//! from it.

use std::sync::Arc;

use evergate_base::seed::{Seed, scoped};
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use crate::driver::{Input, NoScreen};
use crate::error::{HandshakeError, RecordError};
use crate::extract::{Finished, SessionFacts, records};
use crate::handshake::{Progress, SeedSlot};
use crate::keys::Role;
use crate::records::record_len;

/// The error of a server whose first bytes are not a TLS record (RFC 8446 section 5.1). `None` while too few bytes have
/// arrived to decide.
pub fn foreign_answer(first: &[u8]) -> Option<HandshakeError> {
    let header = first.first_chunk()?;
    match (header, record_len(header)) {
        (b"HTTP/", _) => Some(HandshakeError::PlainHttpAnswer),
        (_, Err(RecordError::Header(_))) => Some(HandshakeError::NotTlsAnswer),
        _ => None,
    }
}

/// Handshake of one upstream connection.
pub struct ClientHandshake {
    conn: UnbufferedClientConnection,
    seed: SeedSlot,
    input: Input,
    sni: Option<String>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Done,
    Failed,
}

impl ClientHandshake {
    /// Prepares a handshake with the server called `name`.
    pub fn new(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<ClientHandshake, HandshakeError> {
        if !config.enable_secret_extraction {
            return Err(HandshakeError::Config("secret extraction is not enabled"));
        }
        let sni = match &name {
            ServerName::DnsName(name) if config.enable_sni => Some(name.as_ref().to_owned()),
            _ => None,
        };
        // The key share of the hello is drawn here, from the ordinary provider.
        let conn = UnbufferedClientConnection::new(config.clone(), name)?;
        let seed = SeedSlot(Some(Seed::new([0; 32], 0)));
        Ok(ClientHandshake { conn, seed, input: Input::default(), sni, stage: Stage::Running })
    }

    /// Appends the ClientHello.
    pub fn start(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let Self { conn, seed, input, .. } = self;
        scoped(&mut seed.0, || input.start(conn, out))
    }

    /// Processes bytes from the server in any segmentation; appends the bytes to send to `out`.
    pub fn handle_input(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        self.input.bytes.extend_from_slice(data);
        match self.stage {
            Stage::Done => return Ok(Progress::Done),
            Stage::Failed => return Err(HandshakeError::State("over: it failed before")),
            Stage::Running => {}
        }
        self.stage = Stage::Failed;
        let Self { conn, seed, input, .. } = self;
        if input.consumed == 0
            && let Some(error) = foreign_answer(&input.bytes)
        {
            return Err(error);
        }
        let done = scoped(&mut seed.0, || input.feed(conn, &mut NoScreen, out))?;
        self.stage = if done { Stage::Done } else { Stage::Running };
        Ok(if done { Progress::Done } else { Progress::NeedInput })
    }

    /// Leaves `rustls` when the handshake is done. The record layer can then accept session tickets.
    pub fn finish(mut self) -> Result<Finished, HandshakeError> {
        match self.stage {
            Stage::Done => {}
            Stage::Running => return Err(HandshakeError::State("not done")),
            Stage::Failed => return Err(HandshakeError::State("over: it failed before")),
        }
        let facts = SessionFacts::read(&self.conn, self.sni.take())?;
        let (secrets, kernel) = self.conn.dangerous_into_kernel_connection()?;
        let captured = self.seed.0.as_ref().map_or(&[][..], |seed| &seed.captured);
        let records = records(facts.version, Role::Client, &secrets, captured, Some(kernel))?;
        let leftover = self.input.bytes.as_slice().to_vec(); // without the handshake's capacity
        Ok(Finished { records, leftover, facts, consumed: self.input.consumed, session: None, audit: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_answer_names_the_protocol_of_the_server() {
        let text = |first: &[u8]| foreign_answer(first).map(|error| error.to_string());
        let http = Some("server answered in plain HTTP, not in TLS".to_owned());
        let other = Some("server does not use TLS".to_owned());
        for (first, expected) in [
            (&b""[..], None),
            (b"HTTP", None),
            (b"HTTP/", http.clone()),
            (b"HTTP/1.1 400 Bad Request\r\n", http),
            (b"SSH-2.0-OpenSSH_9.2\r\n", other.clone()),
            (b"220 mail ESMTP\r\n", other.clone()),
            (b"<html>", other.clone()),
            (&[22, 2, 0, 0, 40], other),
            (&[22, 3, 3, 0, 40], None),
            (&[21, 3, 1, 0, 2], None),
            (&[22, 3, 3, 255, 255], None), // too long: rustls names the alert
        ] {
            assert_eq!(text(first), expected, "{first:?}");
        }
    }
}
