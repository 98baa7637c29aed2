//! Connection between a switch and a Recorder: a Unix socket, or TLS with certificates on both ends. Frames inside.

use crate::{Channel, ChannelError, Identity, Receiver, Sender, Trust, client_config};
use evergate_evidence::merkle::Hash;
use evergate_evidence::submission::first_frame;
use rustls::pki_types::ServerName;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const READ_BYTES: usize = 16 << 10;

/// Place of a Recorder's feed.
#[derive(Clone, Debug)]
pub enum FeedAddress {
    /// Unix socket: every process that may open it is trusted.
    Unix(PathBuf),
    /// `HOST:PORT`, the switch's own certificate, and the Recorder's id.
    Tls(String, Identity, Hash),
}

/// Connection of a switch with a Recorder, for one thread.
pub struct FeedChannel(End);

enum End {
    Unix { socket: UnixStream, received: Vec<u8> },
    Tls { sender: Sender, receiver: Receiver, peer: Hash },
}

impl FeedChannel {
    /// Connects to a Recorder; each step has the limit.
    pub fn connect(address: &FeedAddress, limit: Duration) -> Result<FeedChannel, ChannelError> {
        match address {
            FeedAddress::Unix(path) => FeedChannel::of_unix(UnixStream::connect(path)?, limit),
            FeedAddress::Tls(address, identity, recorder) => {
                let resolved = address.to_socket_addrs()?.next();
                let resolved = resolved.ok_or_else(|| std::io::Error::from(ErrorKind::AddrNotAvailable))?;
                let socket = TcpStream::connect_timeout(&resolved, limit)?;
                let config = client_config(identity, &Trust::Pinned(vec![*recorder]))?;
                let name = ServerName::from(resolved.ip());
                FeedChannel::of_tls(Channel::connect(socket, config, name, limit)?)
            }
        }
    }

    /// Either end of a Unix socket. A write that makes no progress within the limit fails.
    pub fn of_unix(socket: UnixStream, limit: Duration) -> Result<FeedChannel, ChannelError> {
        socket.set_write_timeout(Some(limit))?;
        Ok(FeedChannel(End::Unix { socket, received: Vec::new() }))
    }

    /// Either end of a TLS channel.
    pub fn of_tls(channel: Channel) -> Result<FeedChannel, ChannelError> {
        let peer = channel.peer();
        let (sender, receiver) = channel.split();
        Ok(FeedChannel(End::Tls { sender, receiver, peer }))
    }

    /// Id of the peer's certificate; `None` on a Unix socket.
    pub fn peer(&self) -> Option<Hash> {
        match &self.0 {
            End::Unix { .. } => None,
            End::Tls { peer, .. } => Some(*peer),
        }
    }

    /// Sends frames, one behind the other.
    pub fn send(&mut self, frames: &[u8]) -> Result<(), ChannelError> {
        match &mut self.0 {
            End::Unix { socket, .. } => Ok(socket.write_all(frames)?),
            End::Tls { sender, .. } => sender.send(frames),
        }
    }

    /// The next frame behind its length; `None` if none comes within the limit.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, ChannelError> {
        match &mut self.0 {
            End::Tls { receiver, .. } => receiver.receive(limit),
            End::Unix { socket, received } => receive_unix(socket, received, limit),
        }
    }
}

fn receive_unix(
    socket: &mut UnixStream,
    received: &mut Vec<u8>,
    limit: Duration,
) -> Result<Option<Vec<u8>>, ChannelError> {
    loop {
        if let Some((frame, length)) = first_frame(received)? {
            let frame = frame.to_vec();
            received.drain(..length);
            return Ok(Some(frame));
        }
        socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let mut chunk = [0; READ_BYTES];
        match socket.read(&mut chunk) {
            Ok(0) => return Err(ChannelError::Closed),
            Ok(length) => received.extend_from_slice(&chunk[..length]),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {} // a signal, or the machine stood still
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(None),
                _ => return Err(error.into()),
            },
        }
    }
}

/// Whether the text names a Unix socket: it has a slash.
pub fn is_unix_path(text: &str) -> bool {
    Path::new(text).components().count() > 1 || text.starts_with('/')
}
