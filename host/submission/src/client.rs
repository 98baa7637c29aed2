//! A Recorder's connection to the Master.

use crate::{Channel, ChannelError, Identity, Receiver, Sender, Trust, client_config};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::cursor::Malformed;
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::merkle::Hash;
use evergate_evidence::note::{NoteError, VerifyingKey};
use evergate_evidence::proof::{Receipt, ReceiptError};
use evergate_evidence::statement::Statement;
use evergate_evidence::submission::{Hello, Refusal, ToMaster, ToRecorder, Welcome};
use rustls::pki_types::ServerName;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Reason why a connection to the Master cannot be made or ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Address that does not resolve, or does not answer.
    #[error("cannot connect to the Master at {address}: {error}")]
    Connect {
        /// Address as given.
        address: String,
        /// The cause.
        error: std::io::Error,
    },
    /// The connection failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The Master refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The Master sent something else than the protocol asks for.
    #[error("unexpected message of the Master: {0}")]
    Unexpected(String),
    /// The Master's key cannot be read.
    #[error("key of the Master's log: {0}")]
    Key(#[from] NoteError),
    /// Receipt that proves nothing.
    #[error("receipt of the Master: {0}")]
    Receipt(#[from] ReceiptError),
}

impl From<Malformed> for ClientError {
    fn from(error: Malformed) -> ClientError {
        ClientError::Unexpected(error.to_string())
    }
}

/// Connection after HELLO and WELCOME.
pub struct Connected {
    /// What the Master has.
    pub welcome: Welcome,
    /// Id of the Master's certificate.
    pub master: Hash,
    /// Sending direction.
    pub sender: RecorderSender,
    /// Receiving direction.
    pub receiver: RecorderReceiver,
}

/// Answer of the Master, verified against the log's key only by [`Answer::check_statement`] or [`Answer::check_event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the batch, or of the event's request.
    pub number: u64,
    /// Whether it answers an event.
    pub is_event: bool,
    /// Time that the Master put into the entry, in ms since 1970.
    pub received_ms: u64,
    /// Text of the tlog-proof, to be stored as it is.
    pub proof: Vec<u8>,
}

impl Answer {
    /// The statement as logged, and its receipt, if the receipt proves it under the log's key.
    pub fn check_statement(
        &self,
        sent: &Statement,
        log: &VerifyingKey,
    ) -> Result<(Statement, Receipt), ClientError> {
        let logged = Statement { received_ms: self.received_ms, ..sent.clone() };
        let receipt = Receipt::parse(&self.proof)?;
        receipt.verify(&logged.leaf(), log, &[], &EvidenceVerifier)?;
        Ok((logged, receipt))
    }

    /// The entry as logged, and its receipt, if the receipt proves it under the log's key.
    pub fn check_event(&self, sent: &Event, log: &VerifyingKey) -> Result<(Entry, Receipt), ClientError> {
        let logged = Entry::Event(self.received_ms, sent.clone());
        let receipt = Receipt::parse(&self.proof)?;
        receipt.verify(&logged.leaf(), log, &[], &EvidenceVerifier)?;
        Ok((logged, receipt))
    }
}

/// Sending direction of a Recorder.
#[derive(Clone)]
pub struct RecorderSender(Sender);

impl RecorderSender {
    /// Sends a statement. The caller has at most 64 of them unanswered.
    pub fn send_statement(&self, statement: &Statement) -> Result<(), ClientError> {
        Ok(self.0.send(&ToMaster::Statement(statement.clone()).to_frame())?)
    }

    /// Sends an event: a deletion or a hold. The answer repeats `request`.
    pub fn send_event(&self, request: u64, event: &Event) -> Result<(), ClientError> {
        Ok(self.0.send(&ToMaster::Event { request, event: event.clone() }.to_frame())?)
    }

    /// Closes the connection; the receiver's thread returns.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Receiving direction of a Recorder.
pub struct RecorderReceiver(Receiver);

impl RecorderReceiver {
    /// The next answer; `None` if none comes within the limit.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<Answer>, ClientError> {
        let Some(frame) = self.0.receive(limit)? else { return Ok(None) };
        match ToRecorder::decode(&frame)? {
            ToRecorder::Receipt { batch, received_ms, proof } => {
                Ok(Some(Answer { number: batch, is_event: false, received_ms, proof }))
            }
            ToRecorder::EventReceipt { request, received_ms, proof } => {
                Ok(Some(Answer { number: request, is_event: true, received_ms, proof }))
            }
            ToRecorder::Refused(refusal) => Err(refusal.into()),
            _ => Err(ClientError::Unexpected("a second WELCOME, or an answer to a Revealer".into())),
        }
    }
}

/// Connects, sends HELLO and receives WELCOME, all within the limit for each step. `address` is `HOST:PORT`.
pub fn connect(
    address: &str,
    identity: &Identity,
    master: &Trust,
    hello: Hello,
    limit: Duration,
) -> Result<Connected, ClientError> {
    let Greeted { welcome, master, sender, receiver } = greet(address, identity, master, hello, limit)?;
    Ok(Connected { welcome, master, sender: RecorderSender(sender), receiver: RecorderReceiver(receiver) })
}

/// Channel after HELLO and WELCOME.
pub(crate) struct Greeted {
    pub(crate) welcome: Welcome,
    pub(crate) master: Hash,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

/// Connects, sends HELLO and receives WELCOME, for either kind of peer.
pub(crate) fn greet(
    address: &str,
    identity: &Identity,
    master: &Trust,
    hello: Hello,
    limit: Duration,
) -> Result<Greeted, ClientError> {
    let failed = |error| ClientError::Connect { address: address.to_owned(), error };
    let socket = dial(address, limit).map_err(failed)?;
    let config = client_config(identity, master).map_err(ChannelError::from)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, error)))?;
    let channel = Channel::connect(socket, config, name, limit)?;
    let master = channel.peer();
    let (sender, mut receiver) = channel.split();
    sender.send(&ToMaster::Hello(hello).to_frame())?;
    let frame = receiver.receive(limit)?.ok_or(ChannelError::Slow(limit))?;
    match ToRecorder::decode(&frame)? {
        ToRecorder::Welcome(welcome) => Ok(Greeted { welcome, master, sender, receiver }),
        ToRecorder::Refused(refusal) => Err(refusal.into()),
        _ => Err(ClientError::Unexpected("no WELCOME".into())),
    }
}

/// First address that answers.
fn dial(address: &str, limit: Duration) -> std::io::Result<TcpStream> {
    let deadline = Instant::now() + limit;
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "no address");
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(10));
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
