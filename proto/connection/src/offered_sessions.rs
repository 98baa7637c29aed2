//! What a relayed ClientHello offers, for the choice of a server.

use evergate_base::session::{SessionHash, SessionHasher};
use evergate_tls::{ClientHello, SessionOffer};

/// Sessions that the client of a passthrough connection offers, and the name that it asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferedSessions {
    /// Names to look up, in the order in which a server prefers them. At most
    /// [`PSK_IDENTITIES_MAX`](evergate_tls::PSK_IDENTITIES_MAX) + 1.
    pub hashes: Vec<SessionHash>,
    /// Whether the client has a session for certain. Otherwise a single hash can be that of a random id.
    pub is_certain: bool,
    /// The server name in lower case.
    pub server_name: Option<String>,
}

impl OfferedSessions {
    /// What a hello offers.
    pub fn new(hello: &ClientHello<'_>, hasher: &SessionHasher) -> OfferedSessions {
        let offer = SessionOffer::new(hello, hasher);
        OfferedSessions {
            hashes: offer.hashes().collect(),
            is_certain: offer.is_certain(),
            server_name: hello.server_name(),
        }
    }
}
