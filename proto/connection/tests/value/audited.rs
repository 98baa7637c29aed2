//! Audited connections: the secrets are sealed once the handshake ends, and every node that continues the connection
//! sends an envelope.

use crate::exhaustive::requests;
use crate::scenario::{Scenario, Session, Wire, config};
use crate::world::{Cut, Mutation, World, reference};
use evergate_base::seed::SecretKind;
use evergate_connection::{AuditScope, Scratch, Snapshot};
use std::sync::Arc;

/// Bytes of the test node's envelope before the kinds of secrets.
const HEAD: usize = 8 + 64;
/// Facts of a session have fewer bytes without an envelope.
pub(crate) const ENVELOPE_BYTES_MIN: usize = HEAD;

fn audited(behind: Wire) -> Arc<Snapshot> {
    let mut snapshot = Arc::into_inner(config(behind)).expect("one owner");
    snapshot
        .listeners
        .iter_mut()
        .filter(|listener| listener.tls.is_some())
        .for_each(|one| one.audit = AuditScope::AllRequests);
    Arc::new(snapshot)
}

fn kinds(envelope: &[u8]) -> Vec<u8> {
    let mut kinds = envelope[HEAD..].to_vec();
    kinds.sort_unstable();
    kinds
}

fn expected(wire: Wire) -> Vec<u8> {
    use SecretKind::{ClientHandshake, ClientTraffic, Master, ServerHandshake, ServerTraffic};
    let kinds: &[SecretKind] = match wire {
        Wire::Tls12 => &[Master],
        _ => &[ClientHandshake, ServerHandshake, ClientTraffic, ServerTraffic],
    };
    let mut kinds: Vec<u8> = kinds.iter().map(|kind| *kind as u8).collect();
    kinds.sort_unstable();
    kinds
}

/// Runs with a failover at every step, and shows each world at its end to `look`.
fn with_failovers(scenario: &Scenario, config: &Arc<Snapshot>, look: impl Fn(&World<'_>)) {
    let mut scratch = Scratch::new();
    let (marks, _) = reference(scenario, config, &mut scratch);
    for cut in [Cut::Least, Cut::Most] {
        let mut step = 0;
        loop {
            let mut world = World::new(scenario, config, Some(&marks), 1, Mutation::None, &mut scratch);
            while world.advance() {
                if world.step == step {
                    world.crash(cut);
                }
            }
            look(&world);
            if world.step < step {
                break;
            }
            step += 1;
        }
    }
}

#[test]
fn every_node_that_serves_an_audited_connection_feeds_it() {
    for wire in [Wire::Tls12, Wire::Tls13] {
        let scenario = requests(wire, &[(0, 300), (4, 700)]);
        with_failovers(&scenario, &audited(Wire::Plain), |world| {
            let last = world.fed.last().unwrap_or_else(|| panic!("nothing was fed: {}", world.describe()));
            assert_eq!(last.0, world.crashes, "{wire:?}: {}", world.describe());
            for (_, envelope) in &world.fed {
                assert_eq!(kinds(envelope), expected(wire), "{wire:?}");
                assert_eq!(envelope[8..HEAD], last.1[8..HEAD], "both randoms");
            }
        });
    }
}

#[test]
fn envelope_that_backups_have_is_fed_again_unchanged() {
    let scenario = requests(Wire::Tls13, &[(0, 300), (4, 700)]);
    with_failovers(&scenario, &audited(Wire::Plain), |world| {
        if world.envelope_was_replicated {
            assert!(world.fed.windows(2).all(|pair| pair[0].1 == pair[1].1), "{}", world.describe());
        }
    });
}

/// All resumptions of a TLS 1.2 session share one master secret: a disclosure of one would open the others.
#[test]
fn tls12_sessions_of_audited_listeners_are_never_resumed() {
    for session in [Session::New, Session::Known, Session::Ticket] {
        let scenario = Scenario { session, ..requests(Wire::Tls12, &[(0, 300)]) };
        with_failovers(&scenario, &audited(Wire::Plain), |world| {
            assert_eq!(world.is_resumed(), Some(false), "{session:?}");
            assert!(world.kept.is_empty(), "{session:?}");
        });
    }
}

#[test]
fn listeners_without_audit_seal_nothing() {
    with_failovers(&requests(Wire::Tls13, &[(0, 300)]), &config(Wire::Plain), |world| {
        assert!(world.fed.is_empty());
    });
}
