//! The client's handshake with an upstream server.
//!
//! Not seeded: an upstream connection that dies in its handshake is simply made anew. A seed is installed all the
//! same, because the key log hands traffic secrets back through it; the ordinary provider draws nothing from it.

use std::sync::Arc;

use evergate_base::seed::{Seed, scoped};
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use crate::driver::Input;
use crate::error::HandshakeError;
use crate::extract::{Finished, SessionFacts, records};
use crate::handshake::{Progress, SeedSlot};
use crate::keys::Role;

/// One upstream connection's handshake.
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
        // The hello's key share is drawn here already, from the ordinary provider.
        let conn = UnbufferedClientConnection::new(config.clone(), name)?;
        let seed = SeedSlot(Some(Seed::new([0; 32], 0)));
        Ok(ClientHandshake { conn, seed, input: Input::default(), sni, stage: Stage::Running })
    }

    /// Appends the ClientHello.
    pub fn start(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let Self { conn, seed, input, .. } = self;
        scoped(&mut seed.0, || input.start(conn, out))
    }

    /// Takes bytes from the server in any segmentation; appends what is to be sent to `out`.
    pub fn handle_input(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        self.input.bytes.extend_from_slice(data);
        match self.stage {
            Stage::Done => return Ok(Progress::Done),
            Stage::Failed => return Err(HandshakeError::State("over: it failed before")),
            Stage::Running => {}
        }
        self.stage = Stage::Failed;
        let Self { conn, seed, input, .. } = self;
        let done = scoped(&mut seed.0, || input.feed(conn, out))?;
        self.stage = if done { Stage::Done } else { Stage::Running };
        Ok(if done { Progress::Done } else { Progress::NeedInput })
    }

    /// Leaves `rustls` when the handshake is done. The record layer keeps the means to accept session tickets.
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
        Ok(Finished { records, leftover, facts, consumed: self.input.consumed, session: None })
    }
}
