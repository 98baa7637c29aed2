//! Sessions that a client offers to resume, as hashes.

use evergate_base::session::{SessionHash, SessionHasher, SessionName};

use crate::client_hello::ClientHello;

const TLS13: u16 = 0x0304;

/// Limit of the identities that are read, in the client's order. Usual clients offer one or two.
pub const PSK_IDENTITIES_MAX: usize = 8;

/// Hashes of the sessions in a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOffer {
    pub(crate) id: Option<SessionHash>,
    pub(crate) ticket: Option<SessionHash>,
    pub(crate) identities: Vec<SessionHash>,
    pub(crate) has_early_data: bool,
    pub(crate) has_tls13: bool,
}

impl SessionOffer {
    /// The sessions of a hello.
    pub fn new(hello: &ClientHello<'_>, hasher: &SessionHasher) -> SessionOffer {
        let named = |kind, name: &[u8]| (!name.is_empty()).then(|| hasher.hash(kind, name));
        let identities = hello.psk().map(|psk| {
            let first = psk.identities().take(PSK_IDENTITIES_MAX);
            first.map(|identity| hasher.hash(SessionName::Identity, identity)).collect()
        });
        SessionOffer {
            id: named(SessionName::Id, hello.session_id),
            ticket: hello.ticket().and_then(|ticket| named(SessionName::Ticket, ticket)),
            identities: identities.unwrap_or_default(),
            has_early_data: hello.has_early_data(),
            has_tls13: hello.versions().is_some_and(|versions| versions.contains(&TLS13)),
        }
    }

    /// Hashes to look up, in the order in which a server prefers them: at most
    /// [`PSK_IDENTITIES_MAX`] + 1.
    ///
    /// A session id counts only without a ticket and without pre-shared keys. Clients send it as noise beside both (RFC
    /// 5077 section 3.4, RFC 8446 section 4.1.2). The id of a client of TLS 1.3 without either can be noise, too.
    pub fn hashes(&self) -> impl Iterator<Item = SessionHash> + '_ {
        let id = self.id.filter(|_| self.ticket.is_none() && self.identities.is_empty());
        self.identities.iter().copied().chain(self.ticket).chain(id)
    }

    /// Whether the client offers anything to resume; an id of a client of TLS 1.3 can be noise.
    pub fn is_empty(&self) -> bool {
        self.hashes().next().is_none()
    }

    /// Whether the client offers a session for certain. The id of a client of TLS 1.3 counts only if it is known:
    /// without a session such a client sends a random one (RFC 8446 section 4.1.2).
    pub fn is_certain(&self) -> bool {
        let id = self.id.filter(|_| !self.has_tls13);
        !self.identities.is_empty() || self.ticket.is_some() || id.is_some()
    }
}
