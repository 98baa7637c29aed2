//! Scoped seed: the only source of randomness and time while a handshake step runs.
//!
//! `rustls` calls its provider for random bytes through `&'static` objects and always synchronously, inside the call
//! that processes input. The handshake driver therefore installs the connection's [`Seed`] on this thread for exactly
//! that call, and the provider (in `host/crypto`) draws from it. Two nodes with the same seed and the same client bytes
//! write the same flight (law 0 of `docs/internals/failover.md`).
//!
//! Invariants: outside [`scoped`] there is no seed, and a draw fails instead of falling back to other randomness; a
//! draw never repeats a counter value. This module does no cryptography: the provider turns (key, counter, label) into
//! bytes.

use crate::session::{KeptSession, Sealed, SessionId};
use std::cell::RefCell;

/// Seed of one handshake's randomness and time.
#[derive(Clone)]
pub struct Seed {
    /// Key of the pseudo-random function, bound to connection, configuration and ClientHello.
    pub key: [u8; 32],
    /// Number of draws so far; part of each draw's input.
    pub counter: u64,
    /// The accept time, in seconds since 1970: the current time for `rustls`.
    pub unix_s: u64,
    /// Secrets that the provider's key log passes back to the driver, in the order logged.
    pub captured: Vec<Captured>,
    /// State of the session, resumed or new.
    pub session: SessionSlot,
    /// Whether the client's hello offers TLS 1.3; `rustls` does not pass this on to the choice of a certificate.
    pub offers_tls13: bool,
    /// Whether the client's hello offers a preferred key exchange group: X25519MLKEM768, X25519 or secp256r1.
    pub offers_first_groups: bool,
    /// Host name that the client requests, if `rustls` is shown another one.
    pub alias: Option<Alias>,
    /// Secrets that the key log keeps.
    pub kept_secrets: KeptSecrets,
    /// Whether the session is never resumed: no ticket, and no ticket is opened.
    pub is_unresumable: bool,
}

/// Secrets of a handshake that the key log keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptSecrets {
    /// Those of TLS 1.3 that the connection itself uses: for the record layer, and for the client's records in the
    /// handshake.
    #[default]
    RecordLayer,
    /// Also the secrets of the handshake, and the master secret of TLS 1.2: the connection is audited.
    Audit,
}

/// A host name in a ClientHello, and its replacement in the hello that `rustls` parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Offset of the name in the ClientHello message.
    pub offset: usize,
    /// The name as the client sent it.
    pub real: Vec<u8>,
    /// The replacement, of the same length.
    pub shown: Vec<u8>,
}

impl Alias {
    /// The client's own bytes in three parts, when `hashed` begins with the hello that `rustls` parsed.
    pub fn restore<'a>(&'a self, hashed: &'a [u8]) -> Option<[&'a [u8]; 3]> {
        const CLIENT_HELLO: u8 = 1;
        let (before, rest) = hashed.split_at_checked(self.offset)?;
        let after = rest.strip_prefix(self.shown.as_slice())?;
        (before.first() == Some(&CLIENT_HELLO)).then_some([before, &self.real, after])
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seed")
            .field("counter", &self.counter)
            .field("unix_s", &self.unix_s)
            .finish_non_exhaustive()
    }
}

/// Input and output of a handshake about its session, as values, so that the handshake needs no store. All fields
/// except the first two are for sessions with an id.
#[derive(Clone, Debug, Default)]
pub struct SessionSlot {
    /// End of this session's resumption, in seconds since 1970. It is set when a client's certificate is checked and
    /// when a ticket or a stored session is opened. New tickets and sessions contain it. It depends only on replicated
    /// inputs.
    pub good_until_unix_s: Option<u64>,
    /// Number of further tickets for the client, if limited: a resumed client has used one.
    pub tickets_left: Option<u8>,
    /// The session found under the client's id.
    pub found: Option<Sealed>,
    /// Whether a new session gets an id: its client has no other means to resume it.
    pub wanted: bool,
    /// The id under which the found session could be opened.
    pub opened: Option<SessionId>,
    /// A new session, to be stored.
    pub kept: Option<KeptSession>,
}

/// One secret of the key log; [`KeptSecrets`] has the reasons to keep it.
#[derive(Clone, PartialEq, Eq)]
pub struct Captured {
    /// Kind of the secret.
    pub kind: SecretKind,
    /// The secret, of the hash's length: 32 or 48 bytes.
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captured").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Kinds of captured secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    /// Master secret of TLS 1.2 (RFC 5246 section 8.1); only of audited connections.
    Master,
    /// `CLIENT_HANDSHAKE_TRAFFIC_SECRET` of RFC 8446 section 7.1: opens the client's protected records up to Finished.
    ClientHandshake,
    /// `SERVER_HANDSHAKE_TRAFFIC_SECRET`; only of audited connections.
    ServerHandshake,
    /// `CLIENT_TRAFFIC_SECRET_0`.
    ClientTraffic,
    /// `SERVER_TRAFFIC_SECRET_0`.
    ServerTraffic,
}

impl Seed {
    /// A seed with nothing drawn yet.
    pub fn new(key: [u8; 32], unix_s: u64) -> Seed {
        let session = SessionSlot::default();
        Seed {
            key,
            counter: 0,
            unix_s,
            captured: Vec::new(),
            session,
            offers_tls13: false,
            offers_first_groups: false,
            alias: None,
            kept_secrets: KeptSecrets::default(),
            is_unresumable: false,
        }
    }
}

thread_local!(static CURRENT: RefCell<Option<Seed>> = const { RefCell::new(None) });

/// Runs `step` with `seed` installed on this thread, and returns the seed afterwards, also when `step` panics.
pub fn scoped<R>(seed: &mut Option<Seed>, step: impl FnOnce() -> R) -> R {
    struct Restore<'a>(&'a mut Option<Seed>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            CURRENT.with(|current| std::mem::swap(&mut *current.borrow_mut(), self.0));
        }
    }
    CURRENT.with(|current| std::mem::swap(&mut *current.borrow_mut(), seed));
    let _restore = Restore(seed);
    step()
}

/// Calls `draw` with the installed seed; `None` outside [`scoped`].
pub fn with_current<R>(draw: impl FnOnce(&mut Seed) -> R) -> Option<R> {
    CURRENT.with(|current| current.borrow_mut().as_mut().map(draw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_is_visible_only_inside_its_scope() {
        let mut seed = Some(Seed::new([7; 32], 1));
        assert!(with_current(|_| ()).is_none());
        scoped(&mut seed, || with_current(|s| s.counter += 1));
        assert!(with_current(|_| ()).is_none());
        assert_eq!(seed.unwrap().counter, 1);
    }

    #[test]
    fn panicking_step_returns_the_seed() {
        let mut seed = Some(Seed::new([7; 32], 1));
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scoped(&mut seed, || panic!("step"))));
        assert!(outcome.is_err() && seed.is_some() && with_current(|_| ()).is_none());
    }
}
