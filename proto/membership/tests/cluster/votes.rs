//! Could a witness be one vote of a majority? A model of the rules alone, without messages and time
//! (`docs/decisions/0033-two-quorum-modes.md` has the conclusion).
//!
//! Nodes are on two sides that do not receive each other, and the witness answers exactly one side: this is the
//! assumption of witness mode. A view is installed at once at all its members. The owner of the only bucket is the
//! lowest member; each entry that it emits is in the logs of the members of its view. A rule is safe if no two gates
//! are open, and if each open gate belongs to a node with all emitted entries, or to one that began empty in order.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

/// Evidence that a view needs, and that keeps a gate open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// More than half of the nodes.
    Majority,
    /// More than half of the votes: each node has one, and so has the witness for the node that reaches it.
    PlainVote,
    /// The witness, or all nodes. A view that lapsed opens again only by all nodes, and only its own members follow it.
    Witness,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Machine {
    up: bool,
    /// On the side that the witness answers.
    witnessed: bool,
    /// Number of the installed view; 0 for none.
    view: u8,
    members: BTreeSet<usize>,
    lapsed: bool,
    /// Entries in the log.
    log: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    machines: Vec<Machine>,
    apart: bool,
    views: u8,
    /// Entries that were emitted since the bucket last began empty.
    emitted: u8,
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// A fault separates these nodes, as bits, from the other ones and from the witness.
    Separate(u8),
    Heal,
    Crash(usize),
    Restart(usize),
    /// The nodes of a side install a view of themselves.
    View(bool),
    Emit,
}

#[derive(Clone, Copy, Debug)]
struct Votes {
    nodes: usize,
    rule: Rule,
}

impl Votes {
    fn side(self, state: &State, witnessed: bool) -> BTreeSet<usize> {
        let is_here = |id: &usize| !state.apart || state.machines[*id].witnessed == witnessed;
        (0..self.nodes).filter(|id| state.machines[*id].up && is_here(id)).collect()
    }

    /// Whether these nodes, with the witness or without it, may act by the rule.
    fn suffices(self, nodes: usize, witnessed: bool) -> bool {
        match self.rule {
            Rule::Majority => 2 * nodes > self.nodes,
            Rule::PlainVote => 2 * (nodes + usize::from(witnessed)) > self.nodes + 1,
            Rule::Witness => nodes == self.nodes || (witnessed && nodes > 0),
        }
    }

    /// Whether a node's gate is open: it owns the bucket, and the members of its view that it receives suffice.
    fn is_open(self, state: &State, id: usize) -> bool {
        let machine = &state.machines[id];
        let grants = self.grants(state, id);
        let witnessed = machine.witnessed && !(self.rule == Rule::Witness && machine.lapsed);
        machine.up && machine.members.first() == Some(&id) && self.suffices(grants, witnessed)
    }

    /// Number of members of a node's view that it receives, itself included.
    fn grants(self, state: &State, id: usize) -> usize {
        let machine = &state.machines[id];
        let side = self.side(state, machine.witnessed);
        side.iter().filter(|other| machine.view != 0 && state.machines[**other].view == machine.view).count()
    }

    fn install(self, state: &mut State, witnessed: bool) -> Option<()> {
        let side = self.side(state, witnessed);
        let witnessed = witnessed || !state.apart;
        let established: Vec<usize> =
            side.iter().copied().filter(|id| state.machines[*id].view != 0).collect();
        let newest = established.iter().copied().max_by_key(|id| state.machines[*id].view);
        let knows_newest = match self.rule {
            // A majority of nodes, or of votes, remembers each view.
            Rule::Majority | Rule::PlainVote => self.suffices(established.len(), witnessed),
            // A lapsed view is followed by all its members only.
            Rule::Witness => newest.is_none_or(|id| {
                let machine = &state.machines[id];
                !machine.lapsed || machine.members.is_subset(&side)
            }),
        };
        let is_empty = established.is_empty();
        if !self.suffices(side.len(), witnessed) || !(knows_newest || is_empty) {
            return None;
        }
        state.views += 1;
        let log = newest.map_or(0, |id| state.machines[id].log);
        if is_empty {
            state.emitted = 0;
        }
        for id in &side {
            let machine = &mut state.machines[*id];
            (machine.view, machine.members, machine.lapsed) = (state.views, side.clone(), false);
            machine.log = log;
        }
        Some(())
    }

    /// Views whose members do not suffice lapse. A view is dropped when a later one is received. In witness mode a
    /// lapsed view is dropped when the witness answers.
    fn settle(self, state: &mut State) {
        for id in 0..self.nodes {
            let grants = self.grants(state, id);
            let newest = self.side(state, state.machines[id].witnessed);
            let newest = newest.iter().map(|other| state.machines[*other].view).max().unwrap_or(0);
            let machine = &mut state.machines[id];
            let witnessed = machine.witnessed && !machine.lapsed;
            machine.lapsed = machine.view != 0 && !self.suffices(grants, witnessed);
            let replaced = machine.up && machine.view != 0 && machine.view < newest;
            let lost = self.rule == Rule::Witness && machine.lapsed && machine.witnessed;
            if replaced || lost {
                (machine.view, machine.lapsed, machine.log) = (0, false, 0);
                machine.members.clear();
            }
        }
    }

    fn violation(self, state: &State) -> Option<&'static str> {
        let open: Vec<usize> = (0..self.nodes).filter(|id| self.is_open(state, *id)).collect();
        match open[..] {
            [_, _, ..] => Some("two open gates"),
            [id] if state.machines[id].log < state.emitted => Some("an emitted entry is lost"),
            _ => None,
        }
    }

    fn has_single_server(self, state: &State) -> bool {
        let up = state.machines.iter().filter(|machine| machine.up).count();
        up == 1 && (0..self.nodes).any(|id| self.is_open(state, id))
    }
}

impl Model for Votes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let machine =
            Machine { up: true, witnessed: true, view: 0, members: BTreeSet::new(), lapsed: false, log: 0 };
        let machines = vec![machine; self.nodes];
        vec![State { machines, apart: false, views: 0, emitted: 0, faults: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.views < 4 {
            actions.extend([Action::View(true), Action::View(false)]);
        }
        if state.emitted < 3 {
            actions.push(Action::Emit);
        }
        if state.faults < 5 {
            actions.extend((1..(1 << self.nodes) - 1).map(Action::Separate));
            actions.push(Action::Heal);
            actions.extend((0..self.nodes).flat_map(|id| [Action::Crash(id), Action::Restart(id)]));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Separate(bits) => {
                next.apart = true;
                for (id, machine) in next.machines.iter_mut().enumerate() {
                    machine.witnessed = bits & (1 << id) == 0;
                }
            }
            Action::Heal => {
                next.apart = false;
                next.machines.iter_mut().for_each(|machine| machine.witnessed = true);
            }
            Action::Crash(id) => next.machines[id].up = false,
            Action::Restart(id) if next.machines[id].up => return None,
            Action::Restart(id) => {
                let witnessed = next.machines[id].witnessed;
                let members = BTreeSet::new();
                next.machines[id] = Machine { up: true, witnessed, view: 0, members, lapsed: false, log: 0 };
            }
            Action::View(witnessed) => self.install(&mut next, witnessed)?,
            Action::Emit => {
                let owner = (0..self.nodes).find(|id| self.is_open(state, *id))?;
                let view = state.machines[owner].view;
                next.emitted += 1;
                let in_view = next.machines.iter_mut().filter(|machine| machine.up && machine.view == view);
                in_view.for_each(|machine| machine.log = state.machines[owner].log + 1);
            }
        }
        next.faults += u8::from(!matches!(action, Action::View(_) | Action::Emit));
        self.settle(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |votes: &Votes, state: &State| votes.violation(state).is_none()),
            Property::sometimes("one is enough", |votes: &Votes, state: &State| {
                votes.has_single_server(state)
            }),
        ]
    }
}

/// The violation that the rule allows, and whether a single node can serve.
fn explore(nodes: usize, rule: Rule) -> (Option<&'static str>, bool) {
    let model = Votes { nodes, rule };
    let checker = model.checker().threads(1).spawn_bfs().join();
    let found = checker.discoveries();
    let path = found.get("safe");
    if let Some(path) = path {
        println!("{nodes} nodes, {rule:?}: {:?}", path.clone().into_actions());
    }
    println!("{nodes} nodes, {rule:?}: {} unique states", checker.unique_state_count());
    (path.and_then(|path| model.violation(path.last_state())), found.contains_key("one is enough"))
}

#[test]
fn witness_as_a_plain_vote_loses_emitted_entries() {
    let (violation, _) = explore(2, Rule::PlainVote);
    assert_eq!(violation, Some("an emitted entry is lost"));
}

#[test]
fn rules_of_both_modes_are_safe() {
    assert_eq!(explore(2, Rule::Witness), (None, true));
    assert_eq!(explore(3, Rule::Witness), (None, true));
    assert_eq!(explore(3, Rule::Majority), (None, false));
}
