//! TLS connection whose two directions two threads use.
//!
//! The TLS state has one lock, held while bytes are encrypted or decrypted and never while a socket blocks. A second
//! lock keeps encrypted bytes in order on the socket.

use evergate_crypto::spki_hash;
use evergate_evidence::cursor::Malformed;
use evergate_evidence::merkle::Hash;
use evergate_evidence::submission::first_frame;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const READ_BYTES: usize = 16 << 10;

/// Reason why a channel ended.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The socket failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer is not the expected one, or broke TLS.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The peer sent no valid frame.
    #[error("malformed frame: {0}")]
    Malformed(#[from] Malformed),
    /// The peer closed the connection.
    #[error("connection closed by the peer")]
    Closed,
    /// A time limit passed.
    #[error("no progress within {0:?}")]
    Slow(Duration),
}

struct Shared {
    socket: TcpStream,
    tls: Mutex<Connection>,
    order: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Encrypts and sends, and sends what TLS itself has to send.
    fn send(&self, plain: &[u8]) -> Result<(), ChannelError> {
        let _order = lock(&self.order);
        let mut wire = Vec::new();
        {
            let mut tls = lock(&self.tls);
            tls.writer().write_all(plain)?;
            while tls.wants_write() {
                tls.write_tls(&mut wire)?;
            }
        }
        Ok((&self.socket).write_all(&wire)?)
    }

    /// Decrypts bytes of the socket.
    fn decrypt(&self, mut wire: &[u8], plain: &mut Vec<u8>) -> Result<(), ChannelError> {
        let answers = {
            let mut tls = lock(&self.tls);
            while !wire.is_empty() {
                tls.read_tls(&mut wire)?;
                let processed = tls.process_new_packets();
                let mut reader = tls.reader();
                let mut chunk = [0; READ_BYTES];
                loop {
                    match reader.read(&mut chunk) {
                        Ok(0) => break,
                        Ok(len) => plain.extend_from_slice(&chunk[..len]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                if let Err(error) = processed {
                    drop(tls);
                    let _ = self.send(&[]); // the alert
                    return Err(error.into());
                }
            }
            tls.wants_write()
        };
        if answers { self.send(&[]) } else { Ok(()) }
    }

    /// Bytes of the socket within the time limit; `None` when it passes.
    fn read(&self, buffer: &mut [u8], limit: Duration) -> Result<Option<usize>, ChannelError> {
        self.socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        loop {
            return match (&self.socket).read(buffer) {
                Ok(0) => Err(ChannelError::Closed),
                Ok(len) => Ok(Some(len)),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => continue, // a signal, or the machine stood still
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(None),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(ChannelError::Closed),
                    _ => Err(error.into()),
                },
            };
        }
    }

    fn handshake(&self, limit: Duration) -> Result<Vec<u8>, ChannelError> {
        let deadline = Instant::now() + limit;
        let mut plain = Vec::new();
        let mut buffer = [0; READ_BYTES];
        self.send(&[])?;
        while lock(&self.tls).is_handshaking() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ChannelError::Slow(limit));
            }
            if let Some(len) = self.read(&mut buffer, left)? {
                self.decrypt(&buffer[..len], &mut plain)?;
            }
        }
        Ok(plain)
    }
}

/// Both directions of a connection.
pub struct Channel {
    shared: Arc<Shared>,
    plain: Vec<u8>,
    peer: Hash,
}

impl Channel {
    /// Connection of a Recorder, after its handshake.
    pub fn connect(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        limit: Duration,
    ) -> Result<Channel, ChannelError> {
        Channel::new(socket, ClientConnection::new(config, name)?.into(), limit)
    }

    /// Connection of the Master, after its handshake.
    pub fn accept(
        socket: TcpStream,
        config: Arc<ServerConfig>,
        limit: Duration,
    ) -> Result<Channel, ChannelError> {
        Channel::new(socket, ServerConnection::new(config)?.into(), limit)
    }

    fn new(socket: TcpStream, tls: Connection, limit: Duration) -> Result<Channel, ChannelError> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(limit))?;
        let shared = Arc::new(Shared { socket, tls: Mutex::new(tls), order: Mutex::new(()) });
        let plain = shared.handshake(limit)?;
        let certificate = lock(&shared.tls).peer_certificates().and_then(|chain| chain.first().cloned());
        let certificate = certificate.ok_or(rustls::Error::NoCertificatesPresented)?;
        let peer = spki_hash(&certificate)
            .map_err(|_| rustls::CertificateError::BadEncoding)
            .map_err(rustls::Error::from)?;
        Ok(Channel { shared, plain, peer })
    }

    /// Id of the peer's certificate.
    pub fn peer(&self) -> Hash {
        self.peer
    }

    /// Both directions, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (Sender { shared: self.shared.clone() }, Receiver { shared: self.shared, plain: self.plain })
    }
}

/// Sending direction of a channel.
#[derive(Clone)]
pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// Sends whole frames.
    pub fn send(&self, frames: &[u8]) -> Result<(), ChannelError> {
        self.shared.send(frames)
    }

    /// Closes this direction behind what was sent. The peer can still send.
    pub fn finish(&self) {
        lock(&self.shared.tls).send_close_notify();
        let _ = self.shared.send(&[]);
        let _ = self.shared.socket.shutdown(Shutdown::Write);
    }

    /// Closes both directions; the receiver's thread returns.
    pub fn close(&self) {
        self.finish();
        let _ = self.shared.socket.shutdown(Shutdown::Both);
    }
}

/// Receiving direction of a channel.
pub struct Receiver {
    shared: Arc<Shared>,
    plain: Vec<u8>,
}

impl Receiver {
    /// The next frame: kind and body. `None` if none is complete within the limit.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, ChannelError> {
        let deadline = Instant::now() + limit;
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some((frame, len)) = first_frame(&self.plain)? {
                let frame = frame.to_vec();
                self.plain.drain(..len);
                return Ok(Some(frame));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shared.read(&mut buffer, left)? {
                Some(len) => self.shared.decrypt(&buffer[..len], &mut self.plain)?,
                None if Instant::now() >= deadline => return Ok(None),
                None => {}
            }
        }
    }
}
