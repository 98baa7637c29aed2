//! Record of a TCP connection: its addresses and counts, and what its two TLS hellos have.

use crate::cursor::Cursor;
use crate::record::{RecordError, put_short, zeros};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A TCP connection at the time of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Number of the connection in the Recorder: 1, 2, …
    pub connection: u64,
    /// Whether the connection has ended: then `packets` is the highest `packet_seq`.
    pub is_final: bool,
    /// Both ends and the VLAN.
    pub endpoints: Endpoints,
    /// Counts of its packets.
    pub counts: Counts,
    /// Content of its hellos; all zero and empty without TLS.
    pub tls: TlsHellos,
}

/// Both ends of a connection, and its VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the server.
    pub server: SocketAddr,
    /// VLAN id of the outermost tag; 0 without one.
    pub vlan: u16,
}

/// Counts of a connection's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Time of the first packet in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of the last packet in nanoseconds since 1970.
    pub last_ns: u64,
    /// Packets of both directions.
    pub packets: u64,
    /// TCP payload from client to server in bytes, retransmissions counted again.
    pub bytes_c2s: u64,
    /// TCP payload from server to client in bytes, retransmissions counted again.
    pub bytes_s2c: u64,
    /// Jumps of the sequence number over bytes that no packet before it had.
    pub holes: u64,
}

/// Content of a connection's hellos.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsHellos {
    /// Random of the ClientHello; zeros without one.
    pub client_random: [u8; 32],
    /// Random of the ServerHello; zeros without one.
    pub server_random: [u8; 32],
    /// Negotiated version: 0x0304 is TLS 1.3; 0 without a ServerHello.
    pub version: u16,
    /// Negotiated cipher suite; 0 without a ServerHello.
    pub suite: u16,
    /// Host name of the ClientHello, at most 255 bytes.
    pub sni: Vec<u8>,
    /// First application protocol of the ClientHello, at most 255 bytes.
    pub alpn: Vec<u8>,
}

impl ConnectionRecord {
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.connection.to_be_bytes());
        to.push(u8::from(self.is_final));
        to.extend_from_slice(&[0; 7]);
        let Endpoints { client, server, vlan } = self.endpoints;
        for end in [client, server] {
            to.extend_from_slice(&mapped(end.ip()));
            to.extend_from_slice(&end.port().to_be_bytes());
        }
        to.extend_from_slice(&vlan.to_be_bytes());
        to.extend_from_slice(&[0; 2]);
        let Counts { first_ns, last_ns, packets, bytes_c2s, bytes_s2c, holes } = self.counts;
        for count in [first_ns, last_ns, packets, bytes_c2s, bytes_s2c, holes] {
            to.extend_from_slice(&count.to_be_bytes());
        }
        to.extend_from_slice(&self.tls.client_random);
        to.extend_from_slice(&self.tls.server_random);
        to.extend_from_slice(&self.tls.version.to_be_bytes());
        to.extend_from_slice(&self.tls.suite.to_be_bytes());
        put_short(to, &self.tls.sni);
        put_short(to, &self.tls.alpn);
    }

    pub(crate) fn decode(reader: &mut Cursor<'_>) -> Result<ConnectionRecord, RecordError> {
        let connection = reader.u64()?;
        let is_final = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(RecordError::Value("final")),
        };
        zeros(reader, 7)?;
        let client = read_end(reader)?;
        let server = read_end(reader)?;
        let vlan = reader.u16()?;
        zeros(reader, 2)?;
        let counts = Counts {
            first_ns: reader.u64()?,
            last_ns: reader.u64()?,
            packets: reader.u64()?,
            bytes_c2s: reader.u64()?,
            bytes_s2c: reader.u64()?,
            holes: reader.u64()?,
        };
        let tls = TlsHellos::read(reader)?;
        let endpoints = Endpoints { client, server, vlan };
        Ok(ConnectionRecord { connection, is_final, endpoints, counts, tls })
    }
}

impl TlsHellos {
    fn read(reader: &mut Cursor<'_>) -> Result<TlsHellos, RecordError> {
        Ok(TlsHellos {
            client_random: reader.array()?,
            server_random: reader.array()?,
            version: reader.u16()?,
            suite: reader.u16()?,
            sni: reader.short()?.to_vec(),
            alpn: reader.short()?.to_vec(),
        })
    }
}

/// The 16 bytes of an address; IPv4 as `::ffff:a.b.c.d`.
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address of 16 bytes; `::ffff:a.b.c.d` is IPv4.
pub fn unmapped(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

fn read_end(reader: &mut Cursor<'_>) -> Result<SocketAddr, RecordError> {
    let address = unmapped(reader.array()?);
    Ok(SocketAddr::new(address, reader.u16()?))
}
