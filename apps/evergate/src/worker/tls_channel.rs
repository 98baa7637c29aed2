//! Replication channels of a worker: TLS 1.3 with the cluster's own key at both ends (see
//! `evergate_crypto::channel`). Any error closes a channel.

use crate::agent::ReplicationEnds;
use evergate_base::net::Transfer;
use evergate_worker::host::{Channel, Channels};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Makes and accepts the replication channels of one worker.
pub struct TlsChannels {
    ends: Arc<ReplicationEnds>,
    worker: usize,
}

impl TlsChannels {
    pub(super) fn new(ends: Arc<ReplicationEnds>, worker: usize) -> TlsChannels {
        TlsChannels { ends, worker }
    }
}

impl Channels for TlsChannels {
    type Channel = TlsChannel;

    fn listener(&self) -> Option<i32> {
        self.ends.listeners.get(self.worker).map(AsRawFd::as_raw_fd)
    }

    fn accept(&self) -> io::Result<Option<(TlsChannel, SocketAddr)>> {
        let Some(listener) = self.listener() else { return Ok(None) };
        let Some((socket, address)) = evergate_sys::accept(listener)? else { return Ok(None) };
        let tls = rustls::ServerConnection::new(self.ends.server_tls.clone()).map_err(io::Error::other)?;
        Ok(Some((TlsChannel::new(socket, tls), address)))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<TlsChannel> {
        let socket = evergate_sys::connect(to)?;
        let name = rustls::pki_types::ServerName::IpAddress(to.ip().into());
        let tls =
            rustls::ClientConnection::new(self.ends.client_tls.clone(), name).map_err(io::Error::other)?;
        Ok(TlsChannel::new(socket, tls))
    }
}

/// Most that is taken from the socket in one turn.
const READ_MAX: usize = 4 << 20;
/// A socket as `rustls` wants it.
struct Wire {
    fd: i32,
    /// The last read took all there was.
    drained: bool,
}

impl Wire {
    fn new(fd: i32) -> Wire {
        Wire { fd, drained: false }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = transfer(evergate_sys::read(self.fd, buffer))?;
        self.drained = count < buffer.len();
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        transfer(evergate_sys::write(self.fd, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn transfer(result: Transfer) -> io::Result<usize> {
    match result {
        Transfer::Moved(count) => Ok(count),
        Transfer::End => Ok(0),
        Transfer::Blocked => Err(io::ErrorKind::WouldBlock.into()),
        Transfer::Broken(error) => Err(error),
    }
}

/// One TLS connection of either direction, and its received plaintext.
pub struct TlsChannel {
    socket: OwnedFd,
    tls: rustls::Connection,
    input: Vec<u8>,
    /// The other side has sent its end: only the socket's content remains.
    ends: bool,
    ended: bool,
    /// The socket may hold unread data, for which no further event comes.
    has_more: bool,
}

impl TlsChannel {
    fn new(socket: OwnedFd, tls: impl Into<rustls::Connection>) -> TlsChannel {
        TlsChannel { socket, tls: tls.into(), input: Vec::new(), ends: false, ended: false, has_more: false }
    }
}

impl Channel for TlsChannel {
    fn descriptor(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    fn connect_error(&self) -> io::Result<()> {
        evergate_sys::connect_error(self.descriptor())
    }

    fn input(&mut self) -> &mut Vec<u8> {
        &mut self.input
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn receive(&mut self, ends: bool) -> io::Result<()> {
        let mut taken = 0;
        self.ends |= ends;
        self.has_more = false;
        let mut wire = Wire::new(self.descriptor());
        loop {
            match self.tls.read_tls(&mut wire) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            let state = self.tls.process_new_packets().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, evergate_tls::error_text(&error))
            })?;
            let start = self.input.len();
            self.input.resize(start + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut self.input[start..])?;
            if wire.drained && !self.ends {
                break; // further input causes an event
            }
            if taken >= READ_MAX {
                self.has_more = true;
                break;
            }
        }
        self.send(&[])?;
        if self.ended { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut Wire::new(self.socket.as_raw_fd())) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sent),
                    Err(error) => return Err(error),
                }
            }
            if sent == bytes.len() || self.tls.is_handshaking() {
                return Ok(sent);
            }
            sent += self.tls.writer().write(&bytes[sent..])?;
        }
    }
}
