//! Arbitrary texts: reading one ends with a configuration or with problems, never with a panic.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use evergate_config::{Severity, World, parse_with};
use proptest::prelude::*;

/// Machine without files and names, so that random text touches nothing.
struct Nothing;

impl World for Nothing {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        true
    }

    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn check(text: &str) {
    match parse_with(text, "any.toml", Path::new("/base"), &Nothing) {
        Ok(loaded) => {
            assert!(loaded.warnings.iter().all(|p| p.severity == Severity::Warning));
            assert!(!loaded.effective_toml().is_empty());
        }
        Err(problems) => {
            assert!(problems.iter().any(|p| p.severity == Severity::Error), "refused without an error");
            let lines = text.lines().count() + 1;
            for problem in &problems {
                assert!(!problem.to_string().is_empty() && !problem.remedy.is_empty());
                assert!(problem.line <= lines);
            }
        }
    }
}

const GOOD: [&str; 4] = [
    include_str!("../../../examples/cluster.toml"),
    include_str!("../../../examples/minimal.toml"),
    include_str!("../../../examples/content-switch.toml"),
    include_str!("../../../examples/tcp.toml"),
];

/// Values that fit some keys and not others.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("true".to_owned()),
        Just("[]".to_owned()),
        Just("[1, \"a\"]".to_owned()),
        Just("{ a = 1 }".to_owned()),
        Just("1979-05-27".to_owned()),
        Just("nan".to_owned()),
        Just("0xffff_ffff_ffff_ffff".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        "[a-z:0-9./*%-]{0,12}".prop_map(|s| format!("{s:?}")),
        any::<String>().prop_map(|s| toml::Value::String(s).to_string()),
    ]
}

/// File of known headers and keys with arbitrary values.
fn plausible() -> impl Strategy<Value = String> {
    let headers: Vec<&'static str> = evergate_config::schema::SECTIONS.iter().map(|s| s.header).collect();
    let keys: Vec<&'static str> =
        evergate_config::schema::SECTIONS.iter().flat_map(|s| s.keys).map(|k| k.name).collect();
    let line = prop_oneof![
        1 => proptest::sample::select(headers).prop_map(str::to_owned),
        4 => (proptest::sample::select(keys), value()).prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    proptest::collection::vec(line, 0..30).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_without_a_panic(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_keys_with_any_values_are_read_without_a_panic(text in plausible()) {
        check(&text);
    }

    #[test]
    fn good_file_with_one_changed_value_is_read_without_a_panic(
        file in 0..GOOD.len(), line in any::<prop::sample::Index>(), value in value(),
    ) {
        let lines: Vec<&str> = GOOD[file].lines().collect();
        let at = line.index(lines.len());
        let changed: Vec<String> = lines
            .iter()
            .enumerate()
            .map(|(i, line)| match line.split_once(" = ") {
                Some((key, _)) if i == at => format!("{key} = {value}"),
                _ => (*line).to_owned(),
            })
            .collect();
        check(&changed.join("\n"));
    }

    #[test]
    fn good_file_that_was_cut_is_read_without_a_panic(
        file in 0..GOOD.len(), from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
    ) {
        let text = GOOD[file];
        let (from, to) = (from.index(text.len()), to.index(text.len()));
        let (from, to) = (from.min(to), from.max(to));
        if let (Some(before), Some(after)) = (text.get(..from), text.get(to..)) {
            check(&format!("{before}{after}"));
        }
    }
}

#[test]
fn deep_nesting_is_refused_and_does_not_exhaust_the_stack() {
    for open in ["[", "{ a = ", "[["] {
        check(&format!("a = {}", open.repeat(100_000)));
    }
    check(&format!("[{}]", vec!["a"; 100_000].join(".")));
    check(&vec!["a"; 50_000].join("."));
}

#[test]
fn long_list_of_mistakes_is_read_in_reasonable_time() {
    let text: String = (0..2000).map(|i| format!("[[listeners]]\nnme{i} = 1\n")).collect();
    check(&text);
}
