//! Address of a server connection's own end, where its pool has `source = "client"`: the address of the client, so that
//! the server sees it. A server connection from there serves one client, see [`Connection::dedicates_legs`].
//!
//! The port is not the client's: the host chooses it. Two connections of one client to one server need two ports.

use crate::connection::Connection;
use std::fmt;
use std::net::IpAddr;

/// Why no connection to a server can start from a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSourceError {
    /// One of them has an IPv4 address, the other one an IPv6 address.
    Families {
        /// Address of the client.
        client: IpAddr,
        /// Address of the server.
        server: IpAddr,
    },
    /// An address of no single machine, which only a PROXY header can name.
    NoHost(IpAddr),
}

impl fmt::Display for ClientSourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientSourceError::Families { client, server } => write!(
                f,
                "source = \"client\": the client {client} and the server {server} have addresses of two families"
            ),
            ClientSourceError::NoHost(client) => {
                write!(f, "source = \"client\": {client} is the address of no single machine")
            }
        }
    }
}

impl std::error::Error for ClientSourceError {}

impl Connection {
    /// Address from which a new connection of the current leg to this server starts; `None`: one of the host's own.
    pub fn leg_source(&self, server: IpAddr) -> Option<Result<IpAddr, ClientSourceError>> {
        let leg = self.servers.leg.as_ref()?;
        let pool = self.snapshot.pools.get(leg.pool as usize)?;
        pool.client_source.then(|| source(self.client_address.ip(), server))
    }
}

fn source(client: IpAddr, server: IpAddr) -> Result<IpAddr, ClientSourceError> {
    let (client, server) = (client.to_canonical(), server.to_canonical());
    let is_broadcast = matches!(client, IpAddr::V4(v4) if v4.is_broadcast());
    if client.is_unspecified() || client.is_multicast() || is_broadcast {
        return Err(ClientSourceError::NoHost(client));
    }
    match client.is_ipv4() == server.is_ipv4() {
        true => Ok(client),
        false => Err(ClientSourceError::Families { client, server }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_the_client_of_the_servers_family() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let of = |client: &str, server: &str| source(ip(client), ip(server));
        assert_eq!(of("192.0.2.7", "10.0.0.1"), Ok(ip("192.0.2.7")));
        assert_eq!(of("::ffff:192.0.2.7", "10.0.0.1"), Ok(ip("192.0.2.7")));
        assert_eq!(of("192.0.2.7", "::ffff:10.0.0.1"), Ok(ip("192.0.2.7")));
        assert_eq!(of("2001:db8::7", "fd00::1"), Ok(ip("2001:db8::7")));
        for (client, server) in [("192.0.2.7", "fd00::1"), ("2001:db8::7", "10.0.0.1")] {
            let error = of(client, server).unwrap_err().to_string();
            assert!(
                error.contains(client) && error.contains(server) && error.contains("families"),
                "{error}"
            );
        }
    }

    #[test]
    fn address_of_no_single_machine_is_no_source() {
        for client in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:0.0.0.0"] {
            let client = client.parse::<IpAddr>().unwrap();
            let server = if client.to_canonical().is_ipv4() { "10.0.0.1" } else { "fd00::1" };
            let found = source(client, server.parse().unwrap());
            assert_eq!(found, Err(ClientSourceError::NoHost(client.to_canonical())));
        }
    }
}
