//! Any text is a configuration or a list of problems: each with a place inside the text and a remedy, and one of them
//! an error. An accepted text is accepted again in its written-out format, and that format is a fixed point.

#![no_main]

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use evergate_config::{Severity, World, parse_with};
use libfuzzer_sys::fuzz_target;

/// A machine that knows every host name and has no files.
struct Machine;

impl World for Machine {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host.len() {
            0 => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(vec![([192, 0, 2, 1], port).into()]),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let base = Path::new("/base");
    match parse_with(text, "any.toml", base, &Machine) {
        Ok(loaded) => {
            assert!(loaded.warnings.iter().all(|problem| problem.severity == Severity::Warning));
            let effective = loaded.effective_toml();
            let reparsed = parse_with(&effective, "effective.toml", base, &Machine);
            let reparsed = reparsed.unwrap_or_else(|problems| panic!("{problems:?} in\n{effective}"));
            assert_eq!(reparsed.effective_toml(), effective);
        }
        Err(problems) => {
            assert!(
                problems.iter().any(|problem| problem.severity == Severity::Error),
                "refused without an error"
            );
            let lines = text.lines().count() + 1;
            for problem in &problems {
                assert!(!problem.to_string().is_empty() && !problem.remedy.is_empty(), "{problem:?}");
                assert!(problem.line <= lines, "{problem:?}");
            }
        }
    }
});
