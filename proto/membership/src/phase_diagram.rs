//! The table of phases as a picture, for the documentation.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::NodePhase;
use crate::phase::{PhaseEvent, PhaseName, TRANSITIONS};

/// The phases and their transitions in the DOT language. Transitions between the same two phases share an arrow.
pub fn phase_diagram() -> String {
    let mut arrows: BTreeMap<(PhaseName, PhaseName), Vec<PhaseEvent>> = BTreeMap::new();
    for transition in TRANSITIONS {
        arrows.entry((transition.from, transition.to)).or_default().push(transition.event);
    }
    let mut text = String::from("digraph phases {\n    node [shape=box];\n");
    for name in PhaseName::ALL {
        let style = match name.node_phase() {
            NodePhase::Listening => "solid",
            NodePhase::Active => "bold",
            NodePhase::Fenced => "dashed",
            NodePhase::Left => "dotted",
        };
        let _ = writeln!(text, "    {name} [style={style}];");
    }
    for ((from, to), events) in arrows {
        let events: Vec<String> = events.iter().map(PhaseEvent::to_string).collect();
        let _ = writeln!(text, "    {from} -> {to} [label=\"{}\"];", events.join("\\n"));
    }
    text + "}\n"
}

/// The table in Markdown: a row for each phase, with the next phase by event.
pub fn phase_table() -> String {
    let mut text = String::from("| phase | next phase by event |\n|---|---|\n");
    for name in PhaseName::ALL {
        let rows = TRANSITIONS.iter().filter(|transition| transition.from == name);
        let rows: Vec<String> = rows.map(|row| format!("{}: {}", row.event, row.to)).collect();
        let _ = writeln!(text, "| {name} | {} |", rows.join(" · "));
    }
    text
}
