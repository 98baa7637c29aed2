//! Sessions that clients resume by their ids. The lookup of an id is decided once: a node that continues from a replica
//! makes the same flight, although its own cache has the opposite answer (`World::crash` sees to that).

use crate::exhaustive::{everywhere, requests, tunnel};
use crate::scenario::{Act, Scenario, Session, Step, Wire, config, noise};
use crate::world::{Cut, Mutation, World, reference};
use evergate_connection::Scratch;

const SESSIONS: [Session; 3] = [Session::New, Session::Known, Session::Forgotten];

fn short(session: Session) -> Scenario {
    Scenario { session, ..requests(Wire::Tls12, &[(0, 300), (4, 700)]) }
}

/// A client whose records make no sense in the end.
fn aborted(session: Session) -> Scenario {
    let mut scenario = short(session);
    scenario.steps.pop();
    let garbage = [&[23, 3, 3, 0, 30][..], &noise(30, 1)].concat();
    scenario.steps.push(Step { act: Act::Raw(garbage), waits: true });
    scenario.steps.push(Step { act: Act::Cut, waits: true });
    scenario
}

#[test]
fn connections_of_sessions_with_an_id_survive_at_every_step() {
    for session in SESSIONS {
        everywhere(&short(session));
        everywhere(&Scenario { session, ..tunnel(Wire::Tls12, false, None) });
        everywhere(&aborted(session));
    }
}

/// Runs a scenario with a failover at every step, and shows each world at its end to `look`.
fn looked_at(scenario: &Scenario, look: impl Fn(&World<'_>)) {
    let (config, mut scratch) = (config(scenario.behind), Scratch::new());
    let (marks, _) = reference(scenario, &config, &mut scratch);
    let mut step = 0;
    loop {
        let mut world = World::new(scenario, &config, Some(&marks), 1, Mutation::None, &mut scratch);
        while world.advance() {
            if world.step == step {
                world.crash(Cut::Least);
            }
        }
        look(&world);
        let is_last = world.step < step;
        if is_last {
            return;
        }
        step += 1;
    }
}

#[test]
fn first_lookup_of_a_session_id_stands_after_failovers() {
    for (session, resumes) in [(Session::New, false), (Session::Known, true), (Session::Forgotten, false)] {
        looked_at(&short(session), |world| {
            // A hello that is not replicated is decided again, by another cache.
            let decided = if world.crashes == 0 || world.hello_was_replicated { resumes } else { !resumes };
            let decided = decided && session != Session::New;
            assert_eq!(world.is_resumed(), Some(decided), "{session:?}: {}", world.describe());
            assert_eq!(world.kept.is_empty(), decided, "{session:?}");
            assert!(world.kept.windows(2).all(|pair| pair[0] == pair[1]), "one session under two ids");
            assert!(world.withdrawn.is_empty(), "{session:?}: an end in order");
        });
    }
}

#[test]
fn session_with_a_fatal_alert_is_withdrawn_by_any_node() {
    for session in SESSIONS {
        looked_at(&aborted(session), |world| {
            let id = world.withdrawn.first();
            assert!(id.is_some(), "{session:?}: {}", world.describe());
            assert!(world.withdrawn.iter().all(|other| Some(other) == id));
        });
    }
    looked_at(&aborted(Session::Ticket), |world| assert!(world.withdrawn.is_empty()));
}
