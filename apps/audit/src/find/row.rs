//! Rows that `find` shows.

use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::index::RecordPlace;
use crate::when;

/// A connection of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    /// Its last record.
    pub(crate) record: RecordPlace,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) vlan: u16,
    /// Host name in lower case, in the form of the index.
    pub(crate) sni: String,
    pub(crate) alpn: String,
    pub(crate) client_random: Option<[u8; 32]>,
    pub(crate) server_random: Option<[u8; 32]>,
    pub(crate) version: u16,
    pub(crate) suite: u16,
    pub(crate) counts: Counts,
}

/// Counts of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) bytes_c2s: u64,
    pub(crate) bytes_s2c: u64,
    pub(crate) holes: u64,
    pub(crate) is_final: bool,
}

/// A request of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) seq: u64,
    pub(crate) id: String,
    pub(crate) given_id: String,
    pub(crate) switch_connection: u64,
    pub(crate) client_random: Option<[u8; 32]>,
    pub(crate) n: u32,
    pub(crate) time_ns: u64,
    pub(crate) status: u16,
    pub(crate) audit: u16,
}

/// Packets of a connection in 64 MiB of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentRow {
    pub(crate) segment: u64,
    pub(crate) part: u64,
    pub(crate) first_offset: u64,
    pub(crate) last_offset: u64,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) packets: u64,
}

impl Connection {
    /// The connection as JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "connection": self.number,
            "first": when::shown_ns(self.first_ns),
            "last": when::shown_ns(self.last_ns),
            "client": self.client.to_string(),
            "server": self.server.to_string(),
            "vlan": self.vlan,
            "sni": self.sni,
            "alpn": self.alpn,
            "client_random": self.client_random.map(|random| hex(&random)),
            "server_random": self.server_random.map(|random| hex(&random)),
            "version": self.version,
            "suite": self.suite,
            "packets": self.counts.packets,
            "bytes_c2s": self.counts.bytes_c2s,
            "bytes_s2c": self.counts.bytes_s2c,
            "holes": self.counts.holes,
            "final": self.counts.is_final,
            "record_seq": self.record.seq,
        })
    }
}

impl Request {
    /// The request as JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "given_id": self.given_id,
            "switch_connection": self.switch_connection,
            "index": self.n,
            "time": when::shown_ns(self.time_ns),
            "status": self.status,
            "seq": self.seq,
        })
    }
}

impl ExtentRow {
    /// The extent as JSON. `is_deleted`: its segment was deleted.
    pub(crate) fn to_json(self, is_deleted: bool) -> Value {
        json!({
            "segment": self.segment,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "packets": self.packets,
            "deleted": is_deleted,
        })
    }
}

/// The 4 or 16 bytes of an address.
pub(crate) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address of 4 or 16 bytes.
pub(crate) fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
