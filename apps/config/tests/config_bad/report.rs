//! Reports of problems: all at once, each once, as text and as JSON.

use crate::case::{problems_of, unmark};
use evergate_config::{Problem, Severity};

#[test]
fn all_problems_of_a_file_are_reported_at_once_in_file_order() {
    let text = "[node]\nworkers = 0\nusr = \"x\"\n\
        [[listeners]]\nname = \"a\"\naddress = \"80\"\nprotocol = \"tcp\"\npool = \"nowhere\"\n\
        [[pools]]\nname = \"web\"\nretries = \"2\"\n[pools.health]\npath = \"x\"\n";
    let problems = problems_of(text);
    let errors: Vec<&str> =
        problems.iter().filter(|p| p.severity == Severity::Error).map(|p| p.key.as_str()).collect();
    let expected = [
        "node.workers",
        "node.usr",
        "listeners[0].address",
        "listeners[0].pool",
        "pools[0]",
        "pools[0].retries",
        "pools[0].health.path",
    ];
    assert_eq!(errors, expected);
    assert!(problems.is_sorted_by_key(|p| (p.line, p.column)));
}

#[test]
fn one_mistake_gives_one_message() {
    // The mistyped keys explain the missing ones.
    let text = "[[listeners]]\nnme = \"a\"\nadress = \":1\"\nprotcol = \"http\"\n";
    let errors: Vec<Problem> =
        problems_of(text).into_iter().filter(|p| p.severity == Severity::Error).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    // A rule whose only action is unreadable does not lack an action.
    let problems = problems_of(&unmark("{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = \"403\"\n").0);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].remedy.contains("write `deny = 403`, without quotes"), "{problems:?}");
}

#[test]
fn all_headers_that_a_rule_cannot_set_are_named() {
    let rule = "[[rules]]\nname = \"r\"\n\
     set_request_headers = { Proxy = \"a\", Content_Length = \"1\", X-A = \"1\", x-a = \"2\" }\n";
    let (text, _) = unmark(&format!("{{L}}{{C}}{{P}}{rule}"));
    let named: Vec<String> = problems_of(&text).into_iter().map(|problem| problem.what).collect();
    for header in ["Proxy", "Content_Length", "x-a"] {
        assert!(named.contains(&format!("header {header}")), "{header}: {named:?}");
    }
}

#[test]
fn problem_is_readable_and_serialises_to_json() {
    let (text, _) = unmark("{L}{C}{P}weight = 0\n");
    let problems = problems_of(&text);
    assert_eq!(
        problems[0].to_string(),
        "error: test.toml:13:10: pools[0].servers[0].weight = 0\n\
         \x20 problem:     `weight` must be between 1 and 1000\n\
         \x20 consequence: the configuration is refused; a running node keeps its previous one\n\
         \x20 remedy:      choose a value in that range, such as `weight = 1`"
    );
    let json = serde_json::to_value(&problems[0]).unwrap();
    assert_eq!(json["severity"], "error");
    assert_eq!(json["key"], "pools[0].servers[0].weight");
    assert_eq!((json["line"].as_u64(), json["column"].as_u64()), (Some(13), Some(10)));
    assert_eq!(json["value"], "0");
}

#[test]
fn many_problems_are_bounded_and_counted() {
    let duplicates = "a = 1\n".repeat(200_001);
    let unknown: String = (0..5000).map(|number| format!("key_{number} = 1\n")).collect();
    // That nothing listens is a problem too.
    for (text, more) in [(duplicates, "and 199,950 more problems"), (unknown, "and 4,951 more problems")] {
        let problems = problems_of(&text);
        assert_eq!(problems.len(), 51);
        let last = &problems[50];
        assert_eq!((last.what.as_str(), last.severity), (more, Severity::Error));
        let printed: usize = problems.iter().map(|problem| problem.to_string().len()).sum();
        assert!(printed < 100_000, "{printed} bytes");
    }
}
