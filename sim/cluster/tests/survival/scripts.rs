//! The fixed set of scenarios, and random ones.

use crate::harness::setup::client_hello;
use crate::scenario::{
    Act, CONTINUES, ENDS, LOGIN, LOGIN_ENDS, Scenario, Session, Step, UPGRADE, WHO, WHO_POSTS, Wire, noise,
    request,
};
use evergate_sim_cluster::Random;

/// The server connection is authenticated: this client keeps it, and no other client may use it.
const IDENTIFIED: &[(usize, usize)] = &[(WHO, 5), (LOGIN, 0), (LOGIN_ENDS, 0), (WHO_POSTS, 900), (WHO, 300)];

pub(crate) const WIRES: [Wire; 3] = [Wire::Plain, Wire::Tls12, Wire::Tls13];

fn empty(wire: Wire, http: bool) -> Scenario {
    Scenario {
        wire,
        session: Session::Ticket,
        behind: Wire::Plain,
        server_updates: false,
        http,
        misdirected: false,
        greets: false,
        steps: Vec::new(),
        record: 16_384,
        server_ends_after: None,
        window: 65_536,
    }
}

fn then(scenario: &mut Scenario, act: Act, waits: bool) {
    scenario.steps.push(Step { act, waits });
}

fn ask(scenario: &mut Scenario, kind: usize, size: usize, waits: bool) {
    let (first, second) = request(kind, size);
    then(scenario, Act::Send(first), waits);
    if let Some(second) = second {
        then(scenario, Act::Send(second), true);
    }
}

/// Requests in sequence, each after the previous response, or all at once.
pub(crate) fn requests(wire: Wire, kinds: &[(usize, usize)], pipelined: bool) -> Scenario {
    let mut scenario = empty(wire, true);
    for (kind, size) in kinds {
        ask(&mut scenario, *kind, *size, !pipelined);
    }
    then(&mut scenario, Act::Close, true);
    scenario
}

/// Lets the client reset the connection when it has everything, instead of ending it.
pub(crate) fn broken_off(mut scenario: Scenario) -> Scenario {
    scenario.steps.pop();
    then(&mut scenario, Act::Reset, true);
    scenario
}

/// A tunnel: raw, or after an upgrade.
pub(crate) fn tunnel(
    wire: Wire,
    upgrade: bool,
    sizes: &[usize],
    server_ends_after: Option<usize>,
) -> Scenario {
    let mut scenario = empty(wire, upgrade);
    if upgrade {
        ask(&mut scenario, UPGRADE, 0, true);
    }
    for (index, size) in sizes.iter().enumerate() {
        // One side has to send first: a client whose last ACK is lost waits for a server that has no connection.
        then(&mut scenario, Act::Send(noise(*size, *size as u64)), upgrade || index > 0);
        then(&mut scenario, Act::KeyUpdate(true), false);
    }
    then(&mut scenario, Act::Close, true);
    scenario.server_ends_after = server_ends_after;
    scenario
}

/// A client that ends its stream before the answer comes.
pub(crate) fn ended_first(mut scenario: Scenario) -> Scenario {
    for step in scenario.steps.iter_mut().filter(|step| matches!(step.act, Act::Close)) {
        step.waits = false;
    }
    scenario
}

/// A tunnel that begins with a ClientHello in records of so many bytes, which the client sends in two parts.
pub(crate) fn greeted(sizes: &[usize], record: usize, server_ends_after: Option<usize>) -> Scenario {
    let mut scenario = tunnel(Wire::Plain, false, sizes, server_ends_after);
    greet(&mut scenario, record);
    scenario
}

fn greet(scenario: &mut Scenario, record: usize) {
    let mut first = client_hello("a.example", &["h2", "http/1.1"], record);
    let second = first.split_off(first.len() / 3);
    for (at, bytes) in [first, second].into_iter().enumerate() {
        scenario.steps.insert(at, Step { act: Act::Send(bytes), waits: false });
    }
    scenario.greets = true;
}

/// A client whose hello is refused: by an alert, or by a reset.
fn refused(host: &str) -> Scenario {
    let mut scenario = empty(Wire::Plain, false);
    scenario.greets = true;
    then(&mut scenario, Act::Send(client_hello(host, &[], 16_384)), false);
    then(&mut scenario, Act::Close, true);
    scenario
}

/// Small scenarios in which a node fails at every moment.
pub(crate) fn fixed() -> Vec<(&'static str, Scenario)> {
    let mut all = Vec::new();
    for wire in WIRES {
        all.push(("kept", requests(wire, &[(0, 300), (4, 2_000), (2, 0), (6, 0)], false)));
        all.push(("chunked", requests(wire, &[(1, 2_500), (5, 1_500)], false)));
        all.push(("pipelined", requests(wire, &[(0, 400), (3, 0), (0, 900)], true)));
        all.push(("raw", tunnel(wire, false, &[700, 20], None)));
        all.push(("upgrade", tunnel(wire, true, &[300, 3_000], None)));
    }
    all.push(("greeted", greeted(&[700, 20], 16_384, None)));
    all.push(("greeted, server ends", greeted(&[700, 20], 60, Some(500))));
    all.push(("refused hello", refused("alert.example")));
    all.push(("reset hello", refused("reset.example")));
    for wire in [Wire::Plain, Wire::Tls13] {
        all.push(("identified", requests(wire, IDENTIFIED, false)));
        all.push(("continue", requests(wire, &[(7, 10), (8, 50), (9, 0)], false)));
        all.push(("download", requests(wire, &[(0, 40_000)], false)));
        all.push(("upload", requests(wire, &[(4, 40_000)], false)));
        all.push(("server ends", tunnel(wire, false, &[700, 20], Some(100))));
        all.push(("ended first", ended_first(requests(wire, &[(0, 3_000)], false))));
        all.push(("tunnel ended first", ended_first(tunnel(wire, false, &[700, 3_000], None))));
        all.push(("broken off", broken_off(requests(wire, &[(0, 300), (4, 2_000)], false))));
        all.push(("broken tunnel", broken_off(tunnel(wire, false, &[700, 20], None))));
        all.push(("until close", requests(wire, &[(11, 3_000)], false)));
        all.push(("no server", requests(wire, &[(12, 0)], false)));
    }
    all
}

/// Such scenarios with servers that use TLS.
pub(crate) fn before_tls_servers() -> Vec<(&'static str, Scenario)> {
    let mut all = Vec::new();
    for (wire, behind, server_updates) in [
        (Wire::Plain, Wire::Tls13, true),
        (Wire::Tls13, Wire::Tls12, false),
        (Wire::Tls13, Wire::Tls13, false),
    ] {
        let before = |scenario| Scenario { behind, server_updates, ..scenario };
        all.push(("kept", before(requests(wire, &[(0, 300), (4, 2_000), (2, 0), (6, 0)], false))));
        if !server_updates {
            // An answer to new keys that is not acknowledged with the response ends the client's connection.
            all.push(("identified", before(requests(wire, IDENTIFIED, false))));
        }
        all.push(("chunked", before(requests(wire, &[(1, 2_500), (5, 1_500)], false))));
        all.push(("raw", before(tunnel(wire, false, &[700, 20], None))));
        all.push(("upgrade", before(tunnel(wire, true, &[300, 3_000], None))));
        all.push(("upload", before(requests(wire, &[(4, 40_000)], false))));
        all.push(("download", before(requests(wire, &[(0, 40_000)], false))));
        all.push(("server ends", before(tunnel(wire, false, &[700, 20], Some(100)))));
    }
    all
}

/// A scenario of a seed; no larger than `size_max` bytes a message.
pub(crate) fn random(random: &mut Random, size_max: u64) -> Scenario {
    let wire = random.pick(&[Wire::Plain, Wire::Tls12, Wire::Tls13, Wire::Tls13]);
    let mut scenario = empty(wire, random.chance(700));
    scenario.behind = random.pick(&[Wire::Plain, Wire::Plain, Wire::Tls12, Wire::Tls13]);
    scenario.server_updates = random.chance(300);
    scenario.record = random.pick(&[16_384, 16_384, 2_000, 300]);
    let size = |random: &mut Random| {
        let most = if random.chance(200) { size_max } else { 2_000 };
        random.below(most) as usize
    };
    let pipelined = random.chance(300);
    let mut tunnels = !scenario.http;
    if scenario.http {
        for _ in 0..1 + random.below(3) {
            let kind = random.below(CONTINUES as u64) as usize;
            let size = size(random);
            ask(&mut scenario, kind, size, !pipelined);
            if random.chance(150) {
                then(&mut scenario, Act::KeyUpdate(random.chance(600)), false);
            }
        }
        if random.chance(250) {
            ask(&mut scenario, UPGRADE, 0, !pipelined);
            tunnels = true;
        } else if random.chance(300) {
            let (kind, size) = (random.pick(&ENDS), size(random));
            ask(&mut scenario, kind, size, !pipelined);
        }
    }
    if tunnels {
        let mut total = 0;
        for index in 0..1 + random.below(3) {
            let bytes = noise(1 + size(random), index);
            total += bytes.len();
            let waits = random.chance(500) && (index > 0 || scenario.http);
            then(&mut scenario, Act::Send(bytes), waits);
            if random.chance(200) {
                then(&mut scenario, Act::KeyUpdate(random.chance(600)), false);
            }
        }
        scenario.server_ends_after = random.chance(300).then(|| random.below(total as u64 + 1) as usize);
    }
    // Drawn beside the others, which stay what they were.
    let may_greet = !scenario.http && (wire, scenario.behind) == (Wire::Plain, Wire::Plain);
    if may_greet && random.clone().chance(500) {
        greet(&mut scenario, 16_384);
    }
    // To a server that has ended the client still sends bytes, which a reset would cut off anywhere.
    let last = match random.below(1000) {
        0..600 => Act::Close,
        850.. if scenario.server_ends_after.is_none() => Act::Reset,
        _ => Act::Cut,
    };
    then(&mut scenario, last, true);
    scenario
}
