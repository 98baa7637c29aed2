//! The checks find violations: each law broken on purpose makes runs fail.

use crate::run::{PAIR, Plan, Script, Shape, TWO_BACKUPS, run, run_quietly};
use crate::scenario::Wire;
use crate::scripts::{broken_off, requests, tunnel};
use evergate_sim_cluster::{Fault, Mutation, Target, Time};

/// Failures of the runs with this law broken.
fn found(
    mutation: Mutation,
    shape: Shape,
    faults: impl Fn(Time) -> Vec<(Time, Target, Fault)>,
) -> Vec<String> {
    let scenarios = [
        requests(Wire::Tls13, &[(0, 20_000), (4, 3_000)], false),
        tunnel(Wire::Tls13, false, &[9_000, 700], None),
    ];
    let mut complaints = Vec::new();
    for scenario in scenarios {
        let script = Script::new(scenario);
        for step in 0..40 {
            let at = 4_000 + step * 350;
            let mut plan = Plan { mutation, buffer: 12_000, faults: faults(at), ..Plan::new(step, shape) };
            plan.weather.outside.loss = 100; // output may have to be sent again
            complaints.extend(run_quietly(&script, &plan).err());
        }
    }
    complaints
}

fn power(at: Time) -> Vec<(Time, Target, Fault)> {
    vec![(at, Target::Owner, Fault::Power { lossy: true })]
}

fn assert_found(
    mutation: Mutation,
    shape: Shape,
    faults: fn(Time) -> Vec<(Time, Target, Fault)>,
    what: &str,
) {
    let sound = found(Mutation::None, shape, faults);
    assert!(sound.is_empty(), "without a mutation: {}", sound[0]);
    let complaints = found(mutation, shape, faults);
    assert!(!complaints.is_empty(), "{mutation:?} is not found");
    let seen = complaints.iter().any(|complaint| complaint.contains(what));
    println!(
        "{mutation:?}: {} complaints, the first: {}",
        complaints.len(),
        complaints[0].lines().next().unwrap_or("")
    );
    assert!(seen, "{mutation:?} is found, but not as {what:?}: {}", complaints[0]);
}

#[test]
fn ack_before_its_entry_is_found() {
    assert_found(Mutation::EarlyAck, PAIR, power, "left on");
}

#[test]
fn output_before_its_entry_is_found() {
    assert_found(Mutation::EarlyOutput, PAIR, power, "");
}

#[test]
fn lost_boundary_is_found() {
    assert_found(Mutation::LostBoundary, PAIR, power, "another byte");
}

#[test]
fn lost_route_is_found() {
    assert_found(Mutation::LostRoute, PAIR, power, "");
}

#[test]
fn gate_without_leases_is_found() {
    let pause = |at| vec![(at, Target::Owner, Fault::Pause(200_000))];
    assert_found(Mutation::NoFence, PAIR, pause, "are open");
    let halt = |at| vec![(at, Target::Owner, Fault::Halt(200_000))];
    assert_found(Mutation::NoFence, PAIR, halt, "are open");
}

#[test]
fn ends_that_pass_the_gate_are_found() {
    let process = |at| vec![(at, Target::Owner, Fault::Process)];
    assert_found(Mutation::EndsPass, PAIR, process, "");
}

#[test]
fn socket_restored_above_its_peers_position_is_found() {
    assert_found(Mutation::SendAbove, PAIR, power, "");
}

#[test]
fn gap_in_a_replica_is_found() {
    let channels = |at| vec![(at, Target::Owner, Fault::Channels)];
    assert_found(Mutation::GapsFollow, PAIR, channels, "");
}

/// A backup is filled again under traffic: output just before it counts waits for it.
#[test]
fn backup_that_counts_too_early_is_found() {
    let script = Script::new(requests(Wire::Tls13, &[(0, 3_000); 24], false));
    let mut complaints = Vec::new();
    for number in 0..600 {
        let channels = (5_000 + number * 137, Target::Owner, Fault::Channels);
        for mutation in [Mutation::None, Mutation::EarlyInSync] {
            let mut plan = Plan { mutation, faults: vec![channels], ..Plan::new(number, PAIR) };
            plan.weather.outside.latency = 4_000; // there is still traffic when it is filled, 0.1 s later
            let outcome = run_quietly(&script, &plan);
            assert!(mutation != Mutation::None || outcome.is_ok(), "without a mutation: {outcome:?}");
            complaints.extend(outcome.err());
        }
    }
    let seen = complaints.iter().filter(|complaint| complaint.contains("left on")).count();
    println!("{seen} complaints, the first: {:?}", complaints.first().and_then(|c| c.lines().next()));
    assert!(seen > 0, "is not found");
}

/// The channel breaks again at the moment at which the agent lists the backup.
#[test]
fn backup_with_a_break_while_it_is_listed_is_waited_for() {
    let script = Script::new(requests(Wire::Tls13, &[(0, 3_000); 24], false));
    for number in 0..600 {
        let first = (5_000 + number * 11, Target::Owner, Fault::Channels);
        let second = (first.0 + 50_000 + number % 60 * 900, Target::Owner, Fault::Channels);
        let mut plan = Plan { faults: vec![first, second], ..Plan::new(number, PAIR) };
        plan.weather.outside.latency = 4_000;
        let outcome = run_quietly(&script, &plan);
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

/// Two nodes fail: the first after it replicated to only one backup, the second just after the connection resumed on
/// it. With two backups that is survived, unless the second sends before the third has its state.
#[test]
fn resuming_before_the_other_backup_acknowledged_is_found() {
    let script = Script::new(tunnel(Wire::Tls13, false, &[6_000, 700], None));
    let plan = Plan { buffer: 12_000, ..Plan::new(1, TWO_BACKUPS) };
    let moments = run(&script, &plan).moments;
    let mut complaints = Vec::new();
    for at in moments.iter().copied().filter(|at| *at > 7_000) {
        let first = (at, Target::Owner, Fault::Power { lossy: false });
        for mutation in [Mutation::None, Mutation::EagerFailover] {
            let once = Plan { faults: vec![first], mutation, ..plan.clone() };
            let resumed_at = match run_quietly(&script, &once) {
                Ok(ran) => ran.resumed_at,
                Err(what) => {
                    assert!(mutation != Mutation::None, "without a mutation: {what}");
                    complaints.push(what);
                    None
                }
            };
            let Some(resumed_at) = resumed_at else { continue };
            for after in [1, 10, 60] {
                let second = (resumed_at + after, Target::Owner, Fault::Power { lossy: true });
                let twice = Plan { faults: vec![first, second], ..once.clone() };
                let outcome = run_quietly(&script, &twice);
                assert!(
                    mutation != Mutation::None || outcome.is_ok(),
                    "without a mutation: {outcome:?} {twice:?}"
                );
                complaints.extend(outcome.err());
            }
        }
    }
    println!(
        "{} complaints, the first: {:?}",
        complaints.len(),
        complaints.first().and_then(|c| c.lines().next())
    );
    assert!(!complaints.is_empty(), "is not found");
}

#[test]
fn waiting_for_a_silent_backup_without_limit_is_found() {
    let stuck = |at| vec![(at, Target::Other(0), Fault::Stuck(40_000_000))];
    let script = Script::new(tunnel(Wire::Tls13, false, &[700, 20], None));
    for at in [6_000, 7_000] {
        let plan = Plan { faults: stuck(at), ..Plan::new(1, PAIR) };
        run(&script, &plan);
        let waiting = Plan { mutation: Mutation::WaitsForever, ..plan };
        let complaint = run_quietly(&script, &waiting).err().unwrap_or_default();
        assert!(complaint.starts_with("not done"), "{complaint}");
    }
}

/// The next owner fails before its first frame.
#[test]
fn bucket_without_a_keeping_node_during_a_handoff_is_found() {
    let script = Script::new(requests(Wire::Tls13, &[(0, 20_000), (4, 3_000)], false));
    let plan = Plan { buffer: 12_000, ..Plan::new(1, PAIR) };
    let moments = run(&script, &plan).moments;
    let mut complaints = Vec::new();
    for part in 1..4 {
        let drain = (moments[moments.len() * part / 4], Target::Owner, Fault::Drain(true));
        let moves = run(&script, &Plan { faults: vec![drain], ..plan.clone() }).moments;
        for at in moves.into_iter().filter(|at| (drain.0..drain.0 + 2_000).contains(at)) {
            for node in [0, 1] {
                let failure = (at, Target::Node(node), Fault::Power { lossy: true });
                let plan = Plan { faults: vec![drain, failure], ..plan.clone() };
                run(&script, &plan);
                let mutated = Plan { mutation: Mutation::DropsFrozen, ..plan };
                complaints.extend(run_quietly(&script, &mutated).err());
            }
        }
    }
    println!("{} complaints, the first: {:?}", complaints.len(), complaints.first());
    assert!(!complaints.is_empty(), "is not found");
}

/// A client ends its connection while the connection waits for its socket.
#[test]
fn reset_of_an_idle_connection_is_found() {
    let script = Script::new(requests(Wire::Plain, &[(0, 300), (0, 300)], false));
    let mut complaints = Vec::new();
    for step in 0..60 {
        let faults = power(150_000 + step * 2_000);
        let plan = Plan { faults, clients: 6, thinks_for: 100_000, ..Plan::new(step, PAIR) };
        run(&script, &plan);
        let mutated = Plan { mutation: Mutation::ResetsPending, ..plan };
        complaints.extend(run_quietly(&script, &mutated).err());
    }
    println!("{} complaints, the first: {:?}", complaints.len(), complaints.first());
    assert!(complaints.iter().any(|complaint| complaint.starts_with("the client is reset")));
}

#[test]
fn ignored_client_reset_is_found() {
    let script = Script::new(broken_off(tunnel(Wire::Tls13, false, &[700, 20], None)));
    for faults in [Vec::new(), power(20_000)] {
        let plan = Plan { faults, ..Plan::new(1, PAIR) };
        run(&script, &plan);
        let ignoring = Plan { mutation: Mutation::IgnoresResets, ..plan };
        let complaint = run_quietly(&script, &ignoring).err().unwrap_or_default();
        assert!(complaint.starts_with("not done"), "{complaint}");
    }
}

/// Without any failure: a backup would continue one server connection for two clients.
#[test]
fn server_connection_with_two_clients_is_found() {
    let script = Script::new(requests(Wire::Tls13, &[(0, 300); 6], false));
    let mut complaints = Vec::new();
    for number in 0..40 {
        // Entries of clients that do not wait for acknowledgements wait for further entries.
        let plan = Plan { clients: 6, asks_after: 100, ..Plan::new(number, PAIR) };
        run(&script, &plan);
        let mutated = Plan { mutation: Mutation::SharesEarly, ..plan };
        complaints.extend(run_quietly(&script, &mutated).err());
    }
    println!("{} complaints, the first: {:?}", complaints.len(), complaints.first());
    assert!(complaints.iter().any(|complaint| complaint.contains("for two connections")));
}
