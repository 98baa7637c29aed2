//! Store of sessions for `rustls`: the slot of the current handshake.
//!
//! A stored session is a ticket that stays on the server: encrypted with the same keys, bound to the same policy, and
//! with the same end, which is that of its client's certificate at the latest. It can therefore lie in memory and
//! travel between nodes unprotected, and a session never skips a check of its server. It is also bound to its id: a
//! ticket does not open as a stored session, nor a session under another id.
//!
//! Only TLS 1.2 sessions are stored. In TLS 1.3 only tickets resume sessions, and without ticket keys none are sent.

use aws_lc_rs::digest;
use evergate_base::seed::with_current;
use evergate_base::session::{KeptSession, SEALED_BYTES_MAX, Sealed, SessionId};
use rustls::server::StoresServerSessions;

use crate::tickets::{TicketHandle, good_until};

/// The cluster's keys, the policy of one configuration, and its lifetime of sessions.
#[derive(Debug)]
pub(crate) struct PolicySessions {
    pub(crate) handle: TicketHandle,
    pub(crate) policy: [u8; 32],
    pub(crate) lifetime_s: u32,
}

impl PolicySessions {
    fn bound_to(&self, id: &SessionId) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"evergate session id 1");
        context.update(&self.policy);
        context.update(id);
        let mut bound = [0; 32];
        bound.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
        bound
    }
}

impl StoresServerSessions for PolicySessions {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        let Ok(id) = SessionId::try_from(id) else { return false };
        let Some(sealed) = self.handle.current().encrypt(&session, &self.bound_to(&id)) else { return false };
        if sealed.len() > SEALED_BYTES_MAX {
            return false;
        }
        let Some(good_until) = good_until() else { return false };
        let kept = with_current(|seed| {
            let until_unix_s = seed.unix_s.saturating_add(u64::from(self.lifetime_s)).min(good_until);
            seed.session.kept = Some(KeptSession { id, until_unix_s, sealed: Sealed(sealed) });
        });
        kept.is_some()
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let id = SessionId::try_from(id).ok()?;
        let found = with_current(|seed| seed.session.found.take())??;
        let session = self.handle.current().decrypt(&found.0, &self.bound_to(&id))?;
        with_current(|seed| seed.session.opened = Some(id));
        Some(session)
    }

    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None // only called in TLS 1.3
    }

    fn can_cache(&self) -> bool {
        with_current(|seed| seed.session.wanted) == Some(true)
    }
}
