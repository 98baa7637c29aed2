//! Session tickets that any node of the cluster accepts: AES-256-GCM-SIV under keys that the cluster shares.
//!
//! Invariants: tickets are encrypted with the newest key that was active when the connection was accepted. The time of
//! encryption does not count, because a node that recovers a handshake after a rotation must write the same ticket. A
//! ticket is bound to a policy, so that a session without client authentication opens no listener that requires it.
//! Nonces are drawn per ticket, so that clients stay unlinkable. Ticket keys serve no other purpose.
//!
//! Resumption renews neither the client certificate nor, in TLS 1.2, the master secret: both are from the full
//! handshake, and no later check follows. A ticket therefore contains the end of its session. A ticket that replaces it
//! contains the same end; only a full handshake starts a new session.
//!
//! A ticket is: key name (16) | nonce (12) | encrypted (time of issue (8) | valid until (8) | session) | tag (16).

use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use evergate_base::seed::with_current;
use rustls::server::ProducesTickets;
use zeroize::{Zeroize, Zeroizing};

use crate::base64;
use crate::derive::derive;
use crate::error::TicketKeyError;
use crate::random::{draw, random_bytes};

/// Longest time after a full handshake in which its session can be resumed, if the key of its ticket still exists.
pub const TICKET_LIFETIME_S: u32 = 12 * 3600;
/// Number of keys: the next one, the current one, and the previous one.
const KEYS_MAX: usize = 3;
/// Size of a key in files, in bytes.
const MATERIAL: usize = 64;
/// Number of tickets after a resumption: one, which replaces the used one. After a full handshake `rustls` makes two,
/// for a client that opens several connections (RFC 8446 appendix C.4: a client uses each ticket once).
const TICKETS_FOR_ONE: u8 = 1;
const NAME: usize = 16;
const NONCE: usize = 12;
const TIME: usize = 8;
/// Version of the ticket format, authenticated with each ticket: a ticket of another version does not open.
pub const TICKET_FORM: u8 = 2;
const TAG: usize = 16;
/// Tolerated difference between the clocks of nodes, before a ticket counts as coming from the future.
const CLOCK_SKEW_S: u64 = 300;

struct Key {
    material: Zeroizing<[u8; MATERIAL]>,
    name: [u8; NAME],
    cipher: LessSafeKey,
    active_from_unix_s: u64,
}

impl Key {
    fn new(material: Zeroizing<[u8; MATERIAL]>, active_from_unix_s: u64) -> Key {
        let master = hmac::Key::new(hmac::HMAC_SHA256, &material[..]);
        let derive = |label: &[u8]| hmac::sign(&master, label);
        let mut name = [0; NAME];
        name.iter_mut().zip(derive(b"evergate ticket name 1").as_ref()).for_each(|(to, from)| *to = *from);
        let cipher = UnboundKey::new(&AES_256_GCM_SIV, derive(b"evergate ticket key 1").as_ref())
            .expect("an HMAC-SHA256 tag is as long as an AES-256 key");
        Key { material, name, cipher: LessSafeKey::new(cipher), active_from_unix_s }
    }

    fn copy(&self) -> Key {
        Key::new(self.material.clone(), self.active_from_unix_s)
    }
}

/// The ticket keys of a cluster at one time.
pub struct TicketKeys {
    /// Newest first, never empty.
    keys: Vec<Key>,
}

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TicketKeys({})", self.keys.len())
    }
}

impl TicketKeys {
    /// One new key, active from `now_unix_s`.
    pub fn random(now_unix_s: u64) -> TicketKeys {
        TicketKeys { keys: vec![Key::new(Zeroizing::new(random_bytes()), now_unix_s)] }
    }

    /// The keys that every holder of `secret` derives in the epoch of `rotate_s` seconds around `now_unix_s`. These are
    /// the keys of the next epoch, of this one, and of the previous one. A node whose clock is ahead already encrypts
    /// with the next key.
    pub fn of_epoch(secret: &[u8; 32], now_unix_s: u64, rotate_s: u64) -> TicketKeys {
        let rotate_s = rotate_s.max(1);
        let newest = (now_unix_s / rotate_s).saturating_add(1);
        let epochs = (newest.saturating_sub(KEYS_MAX as u64 - 1)..=newest).rev();
        let key = |epoch: u64| {
            let material = derive(secret, &format!("ticket keys, {rotate_s} s, epoch {epoch}"));
            Key::new(Zeroizing::new(material), epoch.saturating_mul(rotate_s))
        };
        TicketKeys { keys: epochs.map(key).collect() }
    }

    /// Reads a key file, newest key first: either consecutive 64-byte keys, or a line per key. A line has 64 bytes in
    /// base64 and optionally the unix time from which the key encrypts (`#` starts a comment).
    pub fn from_file_bytes(bytes: &[u8]) -> Result<TicketKeys, TicketKeyError> {
        let keys = match std::str::from_utf8(bytes) {
            Ok(text) => from_text(text)?,
            Err(_) => from_row(bytes)?,
        };
        if keys.is_empty() {
            return Err(TicketKeyError::Empty);
        }
        if keys.len() > KEYS_MAX {
            return Err(TicketKeyError::TooMany(keys.len()));
        }
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].iter().any(|other| other.name == key.name) {
                return Err(TicketKeyError::Duplicate(index + 1));
            }
        }
        Ok(TicketKeys { keys })
    }

    /// The keys in the format of [`from_file_bytes`](Self::from_file_bytes), for transfer between nodes.
    pub fn to_file_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::new());
        for key in &self.keys {
            let line =
                Zeroizing::new(format!("{} {}\n", base64::encode(&key.material[..]), key.active_from_unix_s));
            out.extend_from_slice(line.as_bytes());
        }
        out
    }

    /// A new key that encrypts for connections accepted from `now_unix_s` on, and the newest of these keys, which still
    /// decrypts; older ones are dropped. If several nodes share the keys, choose a time by which all of them have the
    /// new one.
    pub fn rotated(&self, now_unix_s: u64) -> TicketKeys {
        let mut keys = vec![Key::new(Zeroizing::new(random_bytes()), now_unix_s)];
        keys.extend(self.keys.first().map(Key::copy));
        TicketKeys { keys }
    }

    pub(crate) fn encrypt(&self, plain: &[u8], policy: &[u8; 32]) -> Option<Vec<u8>> {
        let now = with_current(|seed| seed.unix_s)?;
        let good_until = good_until()?;
        let newest_active = self.keys.iter().find(|key| key.active_from_unix_s <= now);
        let key = newest_active.or(self.keys.last())?;
        let mut nonce = [0; NONCE];
        draw(b"ticket nonce", plain, &mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(NAME + NONCE + 2 * TIME + plain.len() + TAG);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(&now.to_be_bytes());
        ticket.extend_from_slice(&good_until.to_be_bytes());
        ticket.extend_from_slice(plain);
        let (_, body) = ticket.split_at_mut_checked(NAME + NONCE)?;
        let tag = key
            .cipher
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad(&key.name, policy), body)
            .ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    pub(crate) fn decrypt(&self, ticket: &[u8], policy: &[u8; 32]) -> Option<Vec<u8>> {
        let now = with_current(|seed| seed.unix_s)?;
        let (name, rest) = ticket.split_first_chunk::<NAME>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        let key = self.keys.iter().find(|key| key.name == *name)?;
        let mut body = Zeroizing::new(sealed.to_vec());
        let plain = key
            .cipher
            .open_in_place(Nonce::assume_unique_for_key(*nonce), aad(name, policy), &mut body)
            .ok()?;
        let (issued, rest) = plain.split_first_chunk::<TIME>()?;
        let (good_until, session) = rest.split_first_chunk::<TIME>()?;
        let (issued, good_until) = (u64::from_be_bytes(*issued), u64::from_be_bytes(*good_until));
        let fresh = issued <= now.saturating_add(CLOCK_SKEW_S) && now <= good_until;
        let session = fresh.then(|| session.to_vec())?;
        with_current(|seed| {
            seed.session.good_until_unix_s = Some(good_until);
            seed.session.tickets_left = Some(TICKETS_FOR_ONE);
        });
        Some(session)
    }
}

/// End of the session of the current handshake, in seconds since 1970. A handshake that opened a ticket, could not use
/// it and continued as a full one without a certificate inherits the ticket's end: earlier than necessary, never later.
pub(crate) fn good_until() -> Option<u64> {
    with_current(|seed| {
        let of_full = seed.unix_s.saturating_add(u64::from(TICKET_LIFETIME_S));
        seed.session.good_until_unix_s.unwrap_or(of_full)
    })
}

fn aad(name: &[u8; NAME], policy: &[u8; 32]) -> Aad<[u8; NAME + 33]> {
    let mut aad = [TICKET_FORM; NAME + 33];
    aad[..NAME].copy_from_slice(name);
    aad[NAME..NAME + 32].copy_from_slice(policy);
    Aad::from(aad)
}

fn from_row(bytes: &[u8]) -> Result<Vec<Key>, TicketKeyError> {
    let (keys, []) = bytes.as_chunks::<MATERIAL>() else {
        return Err(TicketKeyError::Length(bytes.len()));
    };
    Ok(keys.iter().map(|&material| Key::new(Zeroizing::new(material), 0)).collect())
}

fn from_text(text: &str) -> Result<Vec<Key>, TicketKeyError> {
    let mut keys = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let wrong = |reason| TicketKeyError::Line { line, reason };
        let content = content.split('#').next().unwrap_or_default();
        let mut words = content.split_whitespace();
        let Some(word) = words.next() else { continue };
        let mut bytes = Zeroizing::new(base64::decode(word).ok_or(wrong("not base64"))?);
        let material = bytes.as_slice().try_into().map_err(|_| wrong("not 64 bytes"))?;
        bytes.zeroize();
        let active_from = match words.next() {
            None => 0,
            Some(word) => word.parse().map_err(|_| wrong("not a unix time after the key"))?,
        };
        if words.next().is_some() {
            return Err(wrong("more than a key and a time"));
        }
        keys.push(Key::new(Zeroizing::new(material), active_from));
    }
    Ok(keys)
}

/// Handle of the keys in use, which can be exchanged while connections run. Clones share them.
#[derive(Clone, Debug)]
pub struct TicketHandle(Arc<RwLock<Arc<TicketKeys>>>);

impl TicketHandle {
    /// A handle that starts with `keys`.
    pub fn new(keys: TicketKeys) -> TicketHandle {
        TicketHandle(Arc::new(RwLock::new(Arc::new(keys))))
    }

    /// The current keys.
    pub fn current(&self) -> Arc<TicketKeys> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the keys in use.
    pub fn replace(&self, keys: TicketKeys) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }
}

/// Ticket producer for `rustls`: the cluster's keys and the policy of one configuration.
#[derive(Debug)]
pub(crate) struct PolicyTickets {
    pub(crate) handle: TicketHandle,
    pub(crate) policy: [u8; 32],
}

impl ProducesTickets for PolicyTickets {
    /// Not for a session that is never resumed.
    fn enabled(&self) -> bool {
        with_current(|seed| !seed.is_unresumable).unwrap_or(true)
    }

    /// Lifetime of the ticket that was just made.
    fn lifetime(&self) -> u32 {
        let left_s = with_current(|seed| seed.unix_s).zip(good_until());
        let left_s = left_s.map_or(0, |(now, good_until)| good_until.saturating_sub(now));
        u32::try_from(left_s).unwrap_or(TICKET_LIFETIME_S).min(TICKET_LIFETIME_S)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        with_current(|seed| {
            if let Some(left) = &mut seed.session.tickets_left {
                *left = left.checked_sub(1)?;
            }
            Some(())
        })??;
        self.handle.current().encrypt(plain, &self.policy)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.handle.current().decrypt(ticket, &self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_base::seed::{Seed, scoped};

    fn at<R>(unix_s: u64, step: impl FnOnce() -> R) -> R {
        scoped(&mut Some(Seed::new([5; 32], unix_s)), step)
    }

    #[test]
    fn ticket_opens_only_under_its_policy_and_in_its_lifetime() {
        let keys = TicketKeys::random(0);
        let ticket = at(1000, || keys.encrypt(b"session", &[1; 32])).unwrap();
        let lifetime = u64::from(TICKET_LIFETIME_S);
        for (unix_s, policy, opens) in [
            (1000, 1, true),
            (1000 + lifetime, 1, true),
            (1001 + lifetime, 1, false),
            (1000 - CLOCK_SKEW_S, 1, true),
            (999 - CLOCK_SKEW_S, 1, false),
            (1000, 2, false),
        ] {
            let opened = at(unix_s, || keys.decrypt(&ticket, &[policy; 32]));
            assert_eq!(opened.is_some_and(|session| session == b"session"), opens, "{unix_s} {policy}");
        }
        assert_eq!(keys.encrypt(b"session", &[1; 32]), None, "outside a seeded scope");
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(at(1000, || keys.decrypt(&changed, &[1; 32])), None);
            assert_eq!(at(1000, || keys.decrypt(&ticket[..index], &[1; 32])), None);
        }
    }

    #[test]
    fn renewed_ticket_ends_with_the_session_of_the_first() {
        let keys = TicketKeys::random(0);
        let lifetime = u64::from(TICKET_LIFETIME_S);
        let first = at(1000, || keys.encrypt(b"session", &[1; 32])).unwrap();
        let second = at(1000 + lifetime / 2, || {
            keys.decrypt(&first, &[1; 32]).unwrap();
            keys.encrypt(b"session", &[1; 32]).unwrap()
        });
        assert!(at(1000 + lifetime, || keys.decrypt(&second, &[1; 32])).is_some());
        assert!(at(1001 + lifetime, || keys.decrypt(&second, &[1; 32])).is_none());
    }

    #[test]
    fn ticket_of_another_version_does_not_open() {
        let keys = TicketKeys::random(0);
        let key = &keys.keys[0];
        let mut body = [&1000_u64.to_be_bytes()[..], b"session that is long enough"].concat();
        let nonce = [3; NONCE];
        let aad = Aad::from([&key.name[..], &[1; 32]].concat());
        key.cipher.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body).unwrap();
        let ticket = [&key.name[..], &nonce, &body].concat();
        assert_eq!(at(1000, || keys.decrypt(&ticket, &[1; 32])), None);
    }

    #[test]
    fn rotation_keeps_one_old_key_and_accept_time_selects() {
        let first = TicketKeys::random(0);
        let old = at(99, || first.encrypt(b"x", &[0; 32])).unwrap();
        let second = first.rotated(100);
        assert_eq!(
            at(99, || second.encrypt(b"x", &[0; 32])).as_ref(),
            Some(&old),
            "accepted before the rotation"
        );
        assert_ne!(at(100, || second.encrypt(b"x", &[0; 32])).as_ref(), Some(&old));
        let third = second.rotated(200);
        assert!(at(101, || second.decrypt(&old, &[0; 32])).is_some());
        assert!(at(201, || third.decrypt(&old, &[0; 32])).is_none());
    }

    #[test]
    fn epoch_keys_are_equal_on_nodes_with_different_clocks() {
        let at_node = |unix_s| TicketKeys::of_epoch(&[3; 32], unix_s, 100);
        assert_eq!(*at_node(710).to_file_bytes(), *at_node(790).to_file_bytes());
        // The clock of one node is a minute ahead of the other, and in the next epoch.
        let (ahead, behind) = (at_node(805), at_node(745));
        let ticket = at(805, || ahead.encrypt(b"x", &[0; 32])).unwrap();
        assert!(at(745, || behind.decrypt(&ticket, &[0; 32])).is_some());
        let ticket = at(745, || behind.encrypt(b"x", &[0; 32])).unwrap();
        assert!(at(805, || ahead.decrypt(&ticket, &[0; 32])).is_some());
        assert!(at(905, || at_node(905).decrypt(&ticket, &[0; 32])).is_none(), "a key is dropped in time");
        let other = TicketKeys::of_epoch(&[4; 32], 745, 100);
        assert!(at(745, || other.decrypt(&ticket, &[0; 32])).is_none());
        assert_eq!(TicketKeys::of_epoch(&[3; 32], 0, 0).keys.len(), 2, "no epoch before the first");
    }

    #[test]
    fn tickets_of_one_connection_have_different_nonces() {
        let keys = TicketKeys::random(0);
        let both = at(1, || (keys.encrypt(b"x", &[0; 32]).unwrap(), keys.encrypt(b"x", &[0; 32]).unwrap()));
        assert_ne!(both.0[NAME..NAME + NONCE], both.1[NAME..NAME + NONCE]);
    }

    #[test]
    fn key_files_are_read_in_both_formats_or_refused() {
        let keys = TicketKeys::random(7).rotated(70);
        let file = keys.to_file_bytes();
        let read = TicketKeys::from_file_bytes(&file).unwrap();
        assert_eq!(*read.to_file_bytes(), *file);
        let ticket = at(70, || keys.encrypt(b"x", &[0; 32])).unwrap();
        assert!(at(70, || read.decrypt(&ticket, &[0; 32])).is_some());

        let row: Vec<u8> = (0..128).map(|i| if i < 64 { 0xff } else { 0xfe }).collect();
        assert_eq!(TicketKeys::from_file_bytes(&row).unwrap().keys.len(), 2);
        let key = base64::encode(&[1; 64]);
        for (file, error) in [
            (b"".to_vec(), TicketKeyError::Empty),
            (b"# nothing\n".to_vec(), TicketKeyError::Empty),
            (vec![0xff; 63], TicketKeyError::Length(63)),
            (vec![0xff; 128], TicketKeyError::Duplicate(2)),
            (format!("{key}\n?").into_bytes(), TicketKeyError::Line { line: 2, reason: "not base64" }),
            (b"Zm9v".to_vec(), TicketKeyError::Line { line: 1, reason: "not 64 bytes" }),
            (
                format!("{key} soon").into_bytes(),
                TicketKeyError::Line { line: 1, reason: "not a unix time after the key" },
            ),
        ] {
            assert_eq!(TicketKeys::from_file_bytes(&file).unwrap_err(), error);
        }
        let many: String = (0..4).map(|i| base64::encode(&[i; 64]) + "\n").collect();
        assert_eq!(TicketKeys::from_file_bytes(many.as_bytes()).unwrap_err(), TicketKeyError::TooMany(4));
    }
}
