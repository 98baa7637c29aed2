//! The table of phases in docs/internals is the table of the code.
//!
//! `EVERGATE_VECTORS=write` writes the diagram and the table again, after a change of the phases.

use std::path::{Path, PathBuf};

use evergate_membership::{phase_diagram, phase_table};

/// Marks around the table in `membership.md`.
const MARKS: (&str, &str) = ("<!-- begin transitions -->\n\n", "\n<!-- end transitions -->");

fn internals() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals")
}

/// The page with this table between the marks.
fn with_table(page: &str, table: &str) -> String {
    let (before, rest) = page.split_once(MARKS.0).expect("the page has the first mark");
    let (_, after) = rest.split_once(MARKS.1).expect("the page has the last mark");
    [before, MARKS.0, table, MARKS.1, after].concat()
}

#[test]
fn documented_phases_are_those_of_the_code() {
    let (diagram, page) = (internals().join("membership-phases.dot"), internals().join("membership.md"));
    let text = std::fs::read_to_string(&page).unwrap();
    let expected = with_table(&text, &phase_table());
    if std::env::var("EVERGATE_VECTORS").is_ok_and(|value| value == "write") {
        std::fs::write(&diagram, phase_diagram()).unwrap();
        std::fs::write(&page, &expected).unwrap();
    }
    let hint = "EVERGATE_VECTORS=write cargo test -p evergate-membership --test phases writes it again";
    assert_eq!(std::fs::read_to_string(&diagram).unwrap_or_default(), phase_diagram(), "{hint}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), expected, "{hint}");
}
