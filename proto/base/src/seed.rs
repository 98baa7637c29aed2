//! The scoped seed: the only source of randomness and time while a handshake step runs.
//!
//! `rustls` asks its provider for random bytes through `&'static` objects and always synchronously, inside the call
//! that processes input. So the handshake driver installs the connection's [`Seed`] on this thread for exactly that
//! call, and the provider (in `host/crypto`) draws from it. Two nodes with the same seed and the same client bytes
//! therefore write the same flight (law 0 of `docs/internals/failover.md`).
//!
//! Invariants: outside [`scoped`] there is no seed, and a draw fails instead of falling back to other randomness;
//! a draw never repeats a counter value. This module does no cryptography: the provider turns (key, counter, label)
//! into bytes.

use crate::session::{KeptSession, Sealed, SessionId};
use std::cell::RefCell;

/// What one handshake's randomness and time are derived from.
#[derive(Clone)]
pub struct Seed {
    /// Key of the pseudo-random function, bound to connection, configuration and ClientHello.
    pub key: [u8; 32],
    /// Number of draws so far; part of each draw's input.
    pub counter: u64,
    /// The accept time, in seconds since 1970: what `rustls` takes for "now".
    pub unix_s: u64,
    /// Secrets that the provider's key log hands back to the driver, in the order logged.
    pub captured: Vec<Captured>,
    /// What is known of the session, resumed or new.
    pub session: SessionSlot,
    /// Whether the client's hello offers TLS 1.3, which `rustls` does not tell who chooses a certificate.
    pub offers_tls13: bool,
    /// Whether the client's hello offers a key exchange group of first choice: X25519MLKEM768, X25519 or secp256r1.
    pub offers_first_groups: bool,
    /// Host name that the client asks for where `rustls` is shown another one.
    pub alias: Option<Alias>,
}

/// A host name in a ClientHello, and what stands for it in the hello that `rustls` parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Offset of the name in the ClientHello message.
    pub offset: usize,
    /// The name as the client sent it.
    pub real: Vec<u8>,
    /// What `rustls` sees, of the same length.
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

/// What a handshake is given of a session and what it leaves of one: values, so that the handshake asks no store. All but the
/// first two are of sessions that go by their ids.
#[derive(Clone, Debug, Default)]
pub struct SessionSlot {
    /// Up to when this session may be resumed, in seconds since 1970: noted where a client's certificate is checked and where a
    /// ticket or a kept session is opened, written into those that are made. A function of mirrored inputs, as they are.
    pub good_until_unix_s: Option<u64>,
    /// How many more tickets the client may be given, where that is bounded: it resumes, and has used one.
    pub tickets_left: Option<u8>,
    /// What was found under the id that the client named.
    pub found: Option<Sealed>,
    /// Whether a new session gets an id: its client has no other means to resume it.
    pub wanted: bool,
    /// The id under which what was found could be opened.
    pub opened: Option<SessionId>,
    /// A new session, to be kept.
    pub kept: Option<KeptSession>,
}

/// One secret of the key log, kept because a record layer needs it for KeyUpdate.
#[derive(Clone, PartialEq, Eq)]
pub struct Captured {
    /// Which secret.
    pub kind: SecretKind,
    /// The secret, of the hash's length: 32 or 48 bytes.
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captured").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The secrets that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    /// `CLIENT_HANDSHAKE_TRAFFIC_SECRET` of RFC 8446 section 7.1.
    ClientHandshake,
    /// `CLIENT_TRAFFIC_SECRET_0`.
    ClientTraffic,
    /// `SERVER_TRAFFIC_SECRET_0`.
    ServerTraffic,
    /// `EXPORTER_SECRET`.
    Exporter,
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
        }
    }
}

thread_local!(static CURRENT: RefCell<Option<Seed>> = const { RefCell::new(None) });

/// Runs `step` with `seed` installed on this thread, and takes it back afterwards, also when `step` panics.
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

/// Gives `draw` the installed seed; `None` outside [`scoped`].
pub fn with_current<R>(draw: impl FnOnce(&mut Seed) -> R) -> Option<R> {
    CURRENT.with(|current| current.borrow_mut().as_mut().map(draw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_visible_only_inside_its_scope_and_keeps_its_counter() {
        let mut seed = Some(Seed::new([7; 32], 1));
        assert!(with_current(|_| ()).is_none());
        scoped(&mut seed, || with_current(|s| s.counter += 1));
        assert!(with_current(|_| ()).is_none());
        assert_eq!(seed.unwrap().counter, 1);
    }

    #[test]
    fn a_panicking_step_gives_the_seed_back() {
        let mut seed = Some(Seed::new([7; 32], 1));
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scoped(&mut seed, || panic!("step"))));
        assert!(outcome.is_err() && seed.is_some() && with_current(|_| ()).is_none());
    }
}
