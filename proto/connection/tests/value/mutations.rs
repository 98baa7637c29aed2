//! The checks see what they are there for: each law (`docs/internals/failover.md`) broken on purpose makes runs fail.

use crate::exhaustive::requests_to;
use crate::random::run;
use crate::scenario::{LOGIN, LOGIN_ENDS, WHO, Wire, config};
use crate::world::{Cut, Mutation, reference};
use evergate_connection::Scratch;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How many of the runs with a failover somewhere fail.
fn failures(mutation: Mutation) -> usize {
    // Records towards the server exist only with TLS; a client without TLS has its stream cut anywhere.
    let (wire, behind) = match mutation {
        Mutation::LostLegBoundary => (Wire::Plain, Wire::Tls13),
        _ => (Wire::Tls13, Wire::Plain),
    };
    let config = config(behind);
    let mut scratch = Scratch::new();
    let mut scenario = requests_to(wire, behind, &[(0, 20_000), (4, 3000), (1, 5000)]);
    if mutation == Mutation::LostReserve {
        // Records are reserved where more than the first ones of a response follow each other fast.
        scenario = requests_to(wire, behind, &[(0, 600_000)]);
        scenario.window = 400_000;
    }
    if mutation == Mutation::LostBound {
        scenario = requests_to(wire, behind, &[(LOGIN, 0), (LOGIN_ENDS, 0), (WHO, 300), (WHO, 10)]);
    }
    let expected = reference(&scenario, &config, &mut scratch);
    let mut failed = 0;
    for step in (10..400).step_by(3) {
        let crashes = [(step, Cut::Least)];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run(&scenario, &config, &expected, step, &crashes, mutation, &mut scratch)
        }));
        if outcome.is_err() {
            scratch = Scratch::new();
            failed += 1;
        }
    }
    failed
}

#[test]
fn broken_laws_are_found() {
    assert_eq!(failures(Mutation::None), 0);
    for mutation in [
        Mutation::EarlyAck,
        Mutation::EarlyOutput,
        Mutation::LostBoundary,
        Mutation::LostLegBoundary,
        Mutation::LostRoute,
        Mutation::LostReserve,
        Mutation::LostBound,
    ] {
        let found = failures(mutation);
        eprintln!("{mutation:?}: {found}");
        assert!(found > 0, "{mutation:?} goes unnoticed");
    }
}
