//! The walks through the code in docs/internals name functions that exist, in the files that they name.

use std::path::{Path, PathBuf};

/// Most functions of a walk: a reader follows no longer one.
const STEPS_MAX: usize = 15;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The functions of a walk, each with its file.
fn steps(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("docs/internals").join(page)).unwrap();
    let quoted =
        |cell: &str| cell.trim().strip_prefix('`').and_then(|cell| cell.strip_suffix('`')).map(str::to_owned);
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        cells.next()?.parse::<usize>().ok()?;
        Some((quoted(cells.next()?)?, quoted(cells.next()?)?))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn walks_name_functions_of_their_files() {
    for page in ["life-of-a-request.md", "life-of-a-failover.md"] {
        let steps = steps(page);
        assert!((10..=STEPS_MAX).contains(&steps.len()), "{page} has {} steps", steps.len());
        for (function, file) in steps {
            let source = std::fs::read_to_string(root().join(&file));
            let source = source.unwrap_or_else(|error| panic!("{page}: {file}: {error}"));
            let is_defined = ["(", "<"].iter().any(|next| source.contains(&format!("fn {function}{next}")));
            assert!(is_defined, "{page}: {file} defines no {function}");
        }
    }
}
