//! Plans: defaults are the paper's, the examples can be read, and a bad plan causes an error with a remedy.

#![allow(missing_docs)]

use evergate_sslsard::{Costs, Plan, Scheme};
use std::path::{Path, PathBuf};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn example(name: &str) -> String {
    std::fs::read_to_string(examples().join(name)).unwrap()
}

#[test]
fn the_example_writes_out_the_defaults() {
    let written = Plan::parse("sslsard.toml", &example("sslsard.toml"), None).unwrap();
    let mut bare = Plan::parse("bare.toml", "title = \"\"\n[run]\ncourses_at = [55, 70]\n", None).unwrap();
    (bare.title, bare.about) = (written.title.clone(), written.about.clone());
    assert_eq!(written, bare);
}

#[test]
fn the_abilities_of_the_example_are_table_ii() {
    let plan = Plan::parse("sslsard.toml", &example("sslsard.toml"), None).unwrap();
    let rounded: Vec<(String, String, String)> = plan
        .abilities()
        .into_iter()
        .map(|(name, new, resumed)| (name, format!("{new:.2}"), format!("{resumed:.2}")))
        .collect();
    let expected =
        [("G1", "12.39", "1.00"), ("G2", "14.92", "1.25"), ("G3", "18.49", "1.40"), ("G4", "24.73", "1.94")];
    assert_eq!(rounded, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
}

#[test]
fn every_example_plan_can_be_read() {
    let mut seen = 0;
    for entry in std::fs::read_dir(examples().join("simulate")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let plan =
            Plan::parse(&path.display().to_string(), &text, None).unwrap_or_else(|error| panic!("{error}"));
        assert!(!plan.about.is_empty() && !plan.courses_at.is_empty(), "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 8, "{seen} plans");
}

#[test]
fn measured_costs_replace_those_of_the_plan() {
    let text = "title = \"\"\n[costs]\nfull_us = 1.0\nresumed_us = 1.0\nbulk_mbit_per_s = 1.0\n\
                [[nodes]]\nname = \"a\"\n[[nodes]]\nname = \"b\"\nspeed = 0.5\n";
    let costs = Costs { full_us: 500.0, resumed_us: 90.0, bulk_mbit_per_s: 102_400.0 };
    let plan = Plan::parse("p", text, Some(costs)).unwrap();
    // 128 kB take 10 us at 102.4 Gbit/s: a = 510 and 100 us, b twice that.
    let expected = [("a".to_owned(), 5.1, 1.0), ("b".to_owned(), 10.2, 2.0)];
    assert_eq!(plan.abilities(), expected);
}

#[test]
fn unused_costs_have_their_own_remedy() {
    let costs = Some(Costs { full_us: 500.0, resumed_us: 90.0, bulk_mbit_per_s: 102_400.0 });
    for (text, place) in
        [(example("sslsard.toml"), ": nodes[0]"), ("title = \"\"\n".to_owned(), "p.toml: nodes[0]")]
    {
        let error = Plan::parse("p.toml", &text, costs).unwrap_err().to_string();
        for part in [place, "\"G1\" has figures of its own", "leave `--costs` out", "tls12-rsa.toml"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(!error.contains("write a table"), "{error}");
    }
}

/// Each plan, and required parts of its error: the place, and the remedy.
#[test]
fn bad_plans_cause_errors_with_a_remedy() {
    let run = |line: &str| format!("title = \"t\"\n[run]\n{line}\n");
    let node = |lines: &str| {
        format!(
            "title = \"t\"\n[run]\nhorizon_s = 60\n[costs]\nfull_us = 5.0\nresumed_us = 1.0\nbulk_mbit_per_s = \
             800000.0\n\
             [[nodes]]\nname = \"x\"\n{lines}\n"
        )
    };
    let surges = |surges: &[(u32, u32, f64)]| {
        let of = |(from, until, factor): &(u32, u32, f64)| {
            format!("[[surges]]\nfrom_s = {from}\nuntil_s = {until}\nfactor = {factor}\n")
        };
        "title = \"t\"\n".to_owned() + &surges.iter().map(of).collect::<String>()
    };
    let cases: Vec<(String, &[&str])> = vec![
        ("title = ".into(), &["p.toml:1:", "consequence: nothing is simulated", "remedy:"]),
        (run("horizon = 900"), &["p.toml:3:1", "unknown field `horizon`", "did you mean `horizon_s`?"]),
        (run("seed_count = 3\n"), &["p.toml:3:1", "use one of", "seeds"]),
        ("title = \"t\"\n[sesions]\nlifetime_s = 3\n".into(), &["p.toml:2:", "did you mean `sessions`?"]),
        ("title = \"t\"\n[sessions]\nrenewal = \"never\"\n".into(), &["p.toml:3:", "fixed, sliding"]),
        (run("horizon_s = \"long\""), &["p.toml:3:", "invalid type", "docs/measurements/sslsard.md"]),
        (run("horizon_s = 0"), &["p.toml:3:13: run.horizon_s = 0", "horizon_s = 900"]),
        (run("warmup_s = 900"), &["run.warmup_s = 900", "nothing is left", "shorter than `horizon_s`"]),
        (run("policies = []"), &["run.policies", "name some"]),
        (
            run("policies = [\"wrr\", \"slsard\"]"),
            &["p.toml:3:20: run.policies[1] = \"slsard\"", "did you mean `sslsard`?", "shared_keys+"],
        ),
        (run("policies = [\"wrr\", \"WRR\"]"), &["run.policies[1]", "twice"]),
        (run("newcomers_per_s = [50, 40]"), &["run.newcomers_per_s", "ascending"]),
        (run("newcomers_per_s = []"), &["run.newcomers_per_s", "[40, 50, 60, 70, 80]"]),
        (run("courses_at = [41]"), &["run.courses_at[0] = 41", "not among `newcomers_per_s`"]),
        (run("seeds = 0"), &["run.seeds = 0", "1 to 1000"]),
        (
            "title = \"t\"\n[clients]\nrequests = { p = 0.0 }\n".into(),
            &["p.toml:3:18: clients.requests.p = 0.0", "`p = 0.023`"],
        ),
        ("title = \"t\"\n[clients]\nthink = { k = 1.0 }\n".into(), &["clients.think.k = 1.0", "no mean"]),
        ("title = \"t\"\n[clients]\nthink = { sigma_s = nan }\n".into(), &["clients.think.sigma_s = nan"]),
        (
            "title = \"t\"\n[distributor]\nlambda = [1.0, 0.0]\n".into(),
            &["distributor.lambda[1] = 0.0", "λ2", "`lambda = [1, 2]`"],
        ),
        ("title = \"t\"\n[distributor]\nalpha = [-1.0, 0.0]\n".into(), &["distributor.alpha[0] = -1.0", "α1"]),
        ("title = \"t\"\n[distributor]\nlard_high = 5\n".into(), &["distributor.lard_high = 5", "T_low"]),
        ("title = \"t\"\n[[nodes]]\nname = \"x\"\n".into(), &["nodes[0]", "not clear how fast", "`private_key_per_s`"]),
        ("title = \"t\"\n[[nodes]]\nname = \"x\"\nspeed = 1.0\nweight = 1\n[[nodes]]\nname = \"x\"\nspeed = \
        1.0\n".into(), &["nodes[1].name = \"x\"", "own name"]),
        (
            "title = \"t\"\n[costs]\nfull_us = -1.0\nresumed_us = 1.0\nbulk_mbit_per_s = 1.0\n".into(),
            &["costs.full_us = -1.0", "evergate bench crypto"],
        ),
        (
            "title = \"t\"\n[[events]]\nat_s = 1\nnode = \"G9\"\nevent = \"death\"\n".into(),
            &["p.toml:4:8: events[0].node = \"G9\"", "G1, G2, G3, G4"],
        ),
        (
            "title = \"t\"\n[[events]]\nat_s = 1\nnode = \"G1\"\nevent = \"return\"\n".into(),
            &["events[0].event", "up already"],
        ),
        ("title = \"t\"\n[[surges]]\nfrom_s = 5\nuntil_s = 5\nfactor = 2.0\n".into(), &["surges[0].until_s = 5"]),
        (
            surges(&[(0, 9, 100.0), (5, 9, 2.0)]),
            &["p.toml:6:1: surges[1]", "200 times as many clients come at 5 s", "multiply"],
        ),
        (surges(&[(0, 9, 50.0), (0, 9, 50.0), (0, 4, 0.01)]), &["surges[1]", "2500 times as many clients come at 4 s"]),
        (
            "title = \"t\"\n[distributor]\ndetection_ms = 9223372036854775\n".into(),
            &["distributor.detection_ms = 9223372036854775", "the usual is 1000"],
        ),
        (
            "title = \"t\"\n[distributor]\nalpha = [10.0, 1.0, 1.0]\n".into(),
            &["p.toml:3:9: distributor.alpha", "two of these constants, not 3", "`alpha = [10, 1]`"],
        ),
        (
            "title = \"t\"\n[distributor]\nlambda = [1.0]\n".into(),
            &["distributor.lambda", "not 1", "`lambda = [1, 2]`"],
        ),
        (node("speed = 1.0\nweight = 0"), &["nodes[0].weight = 0", "1 to 1000000", "leave it out"]),
        (node("speed = 1.0\nweight = 1000001"), &["nodes[0].weight = 1000001"]),
        (node("speed = 0.0000001"), &["nodes[0]", "takes 63 s for a full handshake, of 60 s", "finish nothing"]),
        (
            node("speed = 1.0").replace("\"x\"", r#""x\u0001y""#),
            &[r#"nodes[0].name = "x\u0001y""#, "no figure can show"],
        ),
    ];
    for (text, parts) in cases {
        let error = Plan::parse("p.toml", &text, None).expect_err(&text).to_string();
        for part in parts.iter().chain(&["consequence:", "remedy:"]) {
            assert!(error.contains(part), "{part:?} is missing in\n{error}\nof\n{text}");
        }
    }
}

#[test]
fn consecutive_or_small_surges_are_accepted() {
    let surges = "[[surges]]\nfrom_s = 0\nuntil_s = 5\nfactor = 100.0\n[[surges]]\nfrom_s = 5\nuntil_s = 9\nfactor \
        = 100.0\n\
                  [[surges]]\nfrom_s = 3\nuntil_s = 9\nfactor = 0.5\n";
    let plan = Plan::parse("p", &format!("title = \"\"\n{surges}"), None);
    assert!(plan.is_ok(), "{plan:?}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let error = Plan::parse("p", "title = \"\"\n[run]\nseeds = 0\nhorizon_s = 0\npolicies = [\"x\"]\n", None)
        .unwrap_err();
    assert_eq!(error.problems.len(), 4, "{error}");
}

#[test]
fn remedy_for_a_policy_names_all_policies() {
    let remedy = Scheme::remedy("shared_keys+power-of-tow");
    assert!(remedy.starts_with("did you mean `power_of_two`?"), "{remedy}");
    assert!(Scheme::names().all(|name| remedy.contains(name)));
}
