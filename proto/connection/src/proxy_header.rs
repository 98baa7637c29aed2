//! PROXY header towards a server: the first bytes of the connection, before TLS.
//!
//! Its content follows from replicated state alone: addresses, TLS session and id of the client's connection, and the
//! settings in the route. After a failover the same bytes are made again. A server connection with a header serves one
//! client.

use crate::Io;
use crate::bound::Carrier;
use crate::connection::Connection;
use evergate_base::{ProxyHeader, ProxyVersion};
use evergate_proxy_protocol::{Endpoints, Extras, encode_v1, encode_v2};

impl Connection {
    /// Whether connections to this pool begin with a header.
    pub(crate) fn heads_pool(&self, pool: u32) -> bool {
        self.snapshot.pools.get(pool as usize).is_some_and(|pool| pool.proxy_header.is_some())
    }

    /// Writes the header of a leg that has just opened on a new connection, or whose server lacks it after a failover.
    /// Call it before the idle bound leg is used up.
    pub(crate) fn send_proxy_header(&mut self, io: &mut Io<'_>) {
        let greeted = self.listener().protocol.is_greeted();
        let Some(leg) = &mut self.servers.leg else { return };
        if !leg.restored {
            let is_new = leg.attempt.carrier == Carrier::Any || leg.attempt.connects;
            let pool = self.snapshot.pools.get(leg.pool as usize).filter(|_| is_new);
            leg.route.flags.header = pool.and_then(|pool| pool.proxy_header);
        }
        let Some(header) = leg.route.flags.header.filter(|_| leg.out_pos == 0) else { return };
        let relayed = if greeted { leg.route.offer.clone() } else { Vec::new() };
        let bytes = self.proxy_header(header, &relayed);
        if let Some(leg) = &mut self.servers.leg {
            leg.push(io, &bytes);
        }
    }

    /// The bytes of the header; `relayed` is the server name of a relayed hello.
    fn proxy_header(&self, header: ProxyHeader, relayed: &[u8]) -> Vec<u8> {
        let ends = Endpoints::new(self.client_address, self.local_address);
        let session = self.client.info.as_deref();
        let id = format!("{:016x}", self.id.0);
        let mut out = Vec::new();
        if header.version == ProxyVersion::V1 {
            encode_v1(Some(&ends), &mut out);
            return out;
        }
        let name = session.and_then(|session| session.sni.as_deref()).map(str::as_bytes);
        let name = name.or(Some(relayed).filter(|name| !name.is_empty()));
        let alpn = session.and_then(|session| session.alpn.as_deref());
        let extras = Extras {
            authority: name.filter(|_| header.authority),
            alpn: alpn.map(str::as_bytes).filter(|_| header.alpn),
            unique_id: Some(id.as_bytes()).filter(|_| header.unique_id),
            ..Extras::default()
        };
        if encode_v2(Some(&ends), &extras, &mut out).is_err() {
            // A name too long for the header is left out; without fields no header is too long.
            let _ = encode_v2(Some(&ends), &Extras { authority: None, ..extras }, &mut out);
        }
        out
    }
}
