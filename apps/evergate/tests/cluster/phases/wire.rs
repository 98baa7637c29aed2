//! Client whose bytes on the wire the test controls one by one.

use crate::traffic::{PATIENCE, Transport, content};
use std::io::{Error, Read, Result, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;

/// Connection of a client.
pub(super) struct Wire {
    socket: TcpStream,
    tls: Option<rustls::ClientConnection>,
}

impl Wire {
    /// Connects without a handshake.
    pub(super) fn connect(
        transport: Transport,
        to: IpAddr,
        roots: &Arc<rustls::RootCertStore>,
    ) -> Result<Wire> {
        let socket = TcpStream::connect(SocketAddr::new(to, transport.port(transport.server())))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut tls = match transport {
            Transport::Tcp | Transport::Http => None,
            _ => Some(transport.client(roots)?),
        };
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(None);
        }
        Ok(Wire { socket, tls })
    }

    /// Local port.
    pub(super) fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// TLS client.
    pub(super) fn tls(&mut self) -> &mut rustls::ClientConnection {
        self.tls.as_mut().unwrap()
    }

    /// Bytes that TLS has ready to send.
    pub(super) fn outgoing(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            tls.write_tls(&mut out)?;
        }
        Ok(out)
    }

    /// Bytes on the wire for this plaintext.
    pub(super) fn sealed(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        let Some(tls) = &mut self.tls else { return Ok(bytes.to_vec()) };
        tls.writer().write_all(bytes)?;
        self.outgoing()
    }

    /// Sends bytes as they are.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket.write_all(bytes)
    }

    /// Sends pieces of this length, each in a segment of its own if the window has room.
    pub(super) fn put_pieces(&mut self, bytes: &[u8], length: usize) -> Result<()> {
        bytes.chunks(length).try_for_each(|piece| self.put(piece))
    }

    /// Sends the first half of these bytes as they are; the second half.
    pub(super) fn put_half(&mut self, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        assert!(bytes.len() > 1, "nothing to halve");
        let rest = bytes.split_off(bytes.len() / 2);
        self.put(&bytes)?;
        Ok(rest)
    }

    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let wire = self.sealed(bytes.as_ref())?;
        self.put(&wire)
    }

    /// Makes the whole handshake, if there is TLS.
    pub(super) fn shake(&mut self) -> Result<()> {
        let Wire { socket, tls: Some(tls) } = self else { return Ok(()) };
        while tls.is_handshaking() {
            tls.complete_io(socket)?;
        }
        let last = self.outgoing()?;
        self.put(&last)
    }

    /// Reads the server's flight; the client's answer to it, unsent.
    pub(super) fn take_flight(&mut self) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        loop {
            let Wire { socket, tls: Some(tls) } = self else { return Ok(answer) };
            if tls.read_tls(socket)? == 0 {
                return Err(Error::other("the end instead of the server's flight"));
            }
            tls.process_new_packets().map_err(Error::other)?;
            let older = tls.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_2);
            let complete = !tls.is_handshaking() || (older && tls.wants_write());
            answer.extend(self.outgoing()?);
            if complete {
                return Ok(answer);
            }
        }
    }

    /// Sends close_notify, if there is TLS.
    pub(super) fn notify_close(&mut self) -> Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        let last = self.outgoing()?;
        self.put(&last)
    }

    /// Sends close_notify, if there is TLS, and FIN.
    pub(super) fn end(&mut self) -> Result<()> {
        self.notify_close()?;
        self.socket.shutdown(Shutdown::Write)
    }

    /// Sends FIN alone after the other side's end. That side may have dropped the connection, and would refuse more
    /// bytes.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.socket.shutdown(Shutdown::Write)?;
        match self.socket.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Error::other("more bytes after the end")),
        }
    }

    /// Checks that the next event is a clean end.
    pub(super) fn expect_end(&mut self) -> Result<()> {
        match self.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Error::other("more bytes instead of the end")),
        }
    }

    /// Checks that the next bytes are this range of the content.
    pub(super) fn expect_content(&mut self, range: Range<usize>) -> Result<()> {
        let mut bytes = vec![0; range.len()];
        self.read_exact(&mut bytes)?;
        match bytes == content(range.start, range.end) {
            true => Ok(()),
            false => Err(Error::other(format!("other bytes in {range:?}"))),
        }
    }

    /// Checks that a response head with this status comes; the whole head.
    pub(super) fn expect_head(&mut self, status: u16) -> Result<String> {
        let head = crate::traffic::head(self)?;
        match head.starts_with(&format!("HTTP/1.1 {status} ")) {
            true => Ok(head),
            false => Err(Error::other(head)),
        }
    }

    /// Checks that a response with exactly this body comes.
    pub(super) fn expect_text(&mut self, text: &str) -> Result<()> {
        let head = self.expect_head(200)?.to_ascii_lowercase();
        if !head.contains(&format!("content-length: {}\r\n", text.len())) {
            return Err(Error::other(format!("another length than that of {text:?}: {head}")));
        }
        let mut reported = vec![0; text.len()];
        self.read_exact(&mut reported)?;
        if reported == text.as_bytes() {
            Ok(())
        } else {
            Err(Error::other(format!("another answer than {text:?}")))
        }
    }

    /// Sends short requests with these numbers and checks each answer.
    pub(super) fn ask(&mut self, numbers: Range<u32>) -> Result<()> {
        for number in numbers {
            self.send(format!("GET /n/{number} HTTP/1.1\r\nHost: shop.test\r\n\r\n"))?;
            self.expect_text(&number.to_string())
                .map_err(|error| Error::other(format!("/n/{number}: {error}")))?;
        }
        Ok(())
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match &mut self.tls {
            None => self.socket.read(buffer),
            Some(tls) => rustls::Stream::new(tls, &mut self.socket).read(buffer),
        }
    }
}
