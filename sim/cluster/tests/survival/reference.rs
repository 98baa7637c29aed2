//! The expected input of both ends: the scenario run once through one connection without cluster, network or time.

use crate::apps::{Served, peer_of, perform};
use crate::harness::rig::Rig;
use crate::harness::setup::{answered_in_a_cluster, asked_in_a_cluster};
use crate::scenario::{Act, App, Scenario, Wire};
use evergate_connection::Snapshot;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Index of the pool without servers.
pub(crate) const DOWN: u32 = 2;

/// Expected input of both ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Bytes that the client has received before each step of its script.
    pub(crate) marks: Vec<usize>,
    pub(crate) client: Vec<u8>,
    pub(crate) client_end: bool,
    pub(crate) aborted: bool,
    pub(crate) servers: Vec<Served>,
}

pub(crate) fn reference(scenario: &Scenario, config: &Arc<Snapshot>) -> Expected {
    let (peer, hello) = peer_of(scenario, 1);
    let mut rig = Rig::new_closed(config, scenario.listener(), peer);
    let mut apps: BTreeMap<u32, App> = BTreeMap::new();
    rig.wire(&hello);
    rig.run();
    let mut expected = Expected::default();
    for step in &scenario.steps {
        settle(&mut rig, scenario, &mut apps);
        expected.marks.push(rig.peer.received().len());
        if rig.closed.is_some() {
            continue;
        }
        let bytes = perform(&mut rig.peer, scenario, &step.act);
        rig.wire(&bytes);
        match step.act {
            Act::Close | Act::Cut => rig.cut_client(),
            Act::Reset => rig.call(|connection, io| connection.handle_abort(io, "client_reset")),
            _ => rig.run(),
        }
    }
    settle(&mut rig, scenario, &mut apps);
    expected.client = rig.peer.received().to_vec();
    expected.aborted = rig.closed == Some(true);
    expected.client_end = rig.client_fin;
    if let Some(whole) = answered_in_a_cluster(&expected.client) {
        (expected.client, expected.client_end) = (whole, true);
    }
    let tunnels = |id: &u32, fin: bool| apps.get(id).filter(|app| app.stage >= 10).map(|app| fin || app.fin);
    let legs = rig.legs.iter().filter(|(_, leg)| !leg.to_server.is_empty());
    let asked = |alone: &[u8]| match scenario.behind {
        Wire::Plain => asked_in_a_cluster(alone),
        _ => alone.to_vec(),
    };
    let served = legs.map(|(id, leg)| Served {
        bytes: asked(&leg.to_server),
        // A released tunnel leg is closed, or breaks with its client: its server receives an end either way.
        tunnel_end: tunnels(id, leg.fin || leg.released.is_some()),
    });
    expected.servers = served.collect();
    expected
}

/// Lets the servers answer until nothing changes.
fn settle(rig: &mut Rig, scenario: &Scenario, apps: &mut BTreeMap<u32, App>) {
    loop {
        let mut moved = false;
        while let Some(dial) = rig.dials.front() {
            moved = true;
            if dial.pool == DOWN {
                let leg = dial.leg;
                rig.dials.pop_front();
                rig.call(|connection, io| connection.handle_unavailable(io, leg, "no_server_up"));
            } else {
                rig.open_next();
            }
            rig.run();
        }
        for id in rig.legs.keys().copied().collect::<Vec<_>>() {
            let before = rig.legs[&id].before.and_then(|before| apps.get(&before));
            let login = before.map_or(0, |app| app.login);
            let app = apps.entry(id).or_insert_with(|| App::known(scenario, login));
            let (over, mut out) = (app.fin || app.reset, Vec::new());
            if over {
                continue;
            }
            let leg = &rig.legs[&id];
            app.react(&leg.to_server, leg.fin, &mut out);
            let (fin, reset) = (app.fin, app.reset);
            moved |= !out.is_empty() || fin || reset;
            rig.serve(id, &out);
            if fin {
                rig.end_server(id);
            } else if reset {
                rig.reset_server(id);
            }
        }
        if !moved {
            return;
        }
    }
}
