//! The paper's qualitative results, and equal bytes for the same plan and seed.

#![allow(missing_docs)]

use evergate_sslsard::{Costs, Plan, Row, Study, differences, report, study, table};
use std::num::NonZeroUsize;

fn run(text: &str, threads: usize) -> Study {
    let plan = Plan::parse("test.toml", text, None).unwrap_or_else(|error| panic!("{error}"));
    study(&plan, NonZeroUsize::new(threads).unwrap(), |_, _, _| ())
}

fn row<'s>(study: &'s Study, policy: &str, newcomers_per_s: u32) -> &'s Row {
    let is_it = |row: &&Row| row.policy == policy && row.newcomers_per_s == newcomers_per_s;
    study.rows.iter().find(is_it).expect("the row was simulated")
}

/// Tables I to III unchanged, one seed.
#[test]
fn results_match_the_paper_on_resumption_and_throughput() {
    let study = run("title = \"\"\n[run]\nnewcomers_per_s = [40, 65, 80]\nseeds = 1\n", 2);
    for rate in [40, 65, 80] {
        let wrr = row(&study, "wrr", rate);
        assert!((0.2..0.25).contains(&wrr.resumption), "slightly under 1/4: {wrr:?}");
        for policy in ["session_only", "sslsard"] {
            let other = row(&study, policy, rate);
            assert!(wrr.throughput < other.throughput / 3.5, "far lower: {wrr:?} {other:?}");
            assert!(wrr.load_std > 2.0 * other.load_std, "worst balance: {wrr:?} {other:?}");
        }
    }
    for policy in ["session_only", "sslsard"] {
        let [low, peak, high] = [40, 65, 80].map(|rate| row(&study, policy, rate));
        assert!((0.955..0.965).contains(&low.resumption), "near 0.96: {low:?}");
        assert!(low.resumption > peak.resumption && peak.resumption > high.resumption, "falling with load");
        assert!(high.resumption > 0.92, "slightly: {high:?}");
        assert!(peak.throughput > low.throughput * 1.3, "rising: {low:?} {peak:?}");
        assert!(peak.throughput > high.throughput * 1.04, "peak, then decline: {peak:?} {high:?}");
    }
    for rate in [40, 65, 80] {
        let (ours, theirs) = (row(&study, "sslsard", rate), row(&study, "session_only", rate));
        assert!(ours.resumption > theirs.resumption - 0.002, "almost not lower: {ours:?} {theirs:?}");
    }
}

#[test]
fn at_55_newcomers_sslsard_balances_better_than_session_only() {
    let text = "title = \"\"\n[run]\nnewcomers_per_s = [55]\nseeds = 3\npolicies = [\"session_only\", \"sslsard\"]\n";
    let study = run(text, 2);
    let (ours, theirs) = (row(&study, "sslsard", 55), row(&study, "session_only", 55));
    assert!(
        ours.load_std < theirs.load_std && ours.backlog_std_ms < theirs.backlog_std_ms,
        "{ours:?} {theirs:?}"
    );
}

/// All policies in a small system in which a node dies and a surge of clients comes.
const SMALL: &str = r#"
title = "Small"
[run]
horizon_s = 120
newcomers_per_s = [3, 6]
courses_at = [6]
policies = [
    "wrr", "least_outstanding", "power_of_two", "least_expected_completion", "bounded_hash", "lard", "session_only",
    "sslsard", "sticky_least_outstanding", "cssl_sl", "shared_keys+power_of_two", "shared_keys+sslsard",
]
seeds = 2
[sessions]
lifetime_s = 60
[[surges]]
from_s = 20
until_s = 30
factor = 3.0
[[events]]
at_s = 40
node = "G2"
event = "death"
[[events]]
at_s = 80
node = "G2"
event = "return"
"#;

fn bytes(study: &Study) -> String {
    report(study, SMALL, "evergate simulate").into_iter().map(|file| file.name + &file.text).collect()
}

#[test]
fn plan_and_seed_give_equal_bytes_with_any_threads() {
    assert_eq!(bytes(&run(SMALL, 1)), bytes(&run(SMALL, 3)));
    let other = SMALL.replace("seeds = 2", "seeds = 2\nseed = 9");
    assert_ne!(run(SMALL, 1).rows, run(&other, 1).rows, "the seed matters");
}

/// Hash of a report's bytes on every machine. Put the new hash here after an intended change of the report.
#[test]
fn report_bytes_are_equal_on_every_machine() {
    let hash = evergate_base::fnv(bytes(&run(SMALL, 2)).bytes());
    assert_eq!(format!("{hash:016x}"), "0390bb011685721a");
}

#[test]
fn shared_ticket_keys_outlive_a_node_and_node_caches_do_not() {
    let study = run(SMALL, 2);
    let resumption = |policy| row(&study, policy, 6).resumption;
    assert!(resumption("shared_keys+power_of_two") > resumption("session_only") + 0.005);
    assert!(resumption("shared_keys+sslsard") > resumption("sslsard") + 0.005);
    assert!(resumption("cssl_sl") > resumption("wrr") + 0.3);
    assert!(study.rows.iter().all(|row| row.refused == 0.0 && row.throughput > 0.0));
}

/// All requests of a client are answered: other nodes serve those of a dead node, and no client waits forever.
#[test]
fn no_request_is_lost_with_a_node() {
    // Every client sends exactly two requests, and no client comes after the first second.
    let text = |events: &str| {
        format!(
            "title = \"\"\n[run]\nhorizon_s = 100\nnewcomers_per_s = [200]\nseeds = 1\npolicies = [\"wrr\", \
             \"session_only\", \
             \"sslsard\", \"shared_keys+power_of_two\"]\n[clients]\nrequests = {{ min = 2, r = 1, p = 1.0 }}\n\
             think = {{ k = 0.0, sigma_s = 1.0, theta_s = 0.5 }}\n[[surges]]\n\
             from_s = 1\nuntil_s = 100\nfactor = 0.0\n{events}"
        )
    };
    let event = |at: u32, node: &str, what: &str| {
        format!("[[events]]\nat_s = {at}\nnode = \"{node}\"\nevent = \"{what}\"\n")
    };
    let quiet = run(&text(""), 1);
    // Two die: one returns before its death was noticed, the other never.
    let events = event(1, "G1", "death") + &event(2, "G2", "death") + &event(2, "G2", "return");
    let stormy = run(&text(&events), 1);
    for (a, b) in quiet.rows.iter().zip(&stormy.rows) {
        assert!(a.throughput > 0.0);
        assert_eq!(a.throughput, b.throughput, "{}", a.policy);
    }
    // Two requests of each of about 200 clients in 100 s, the same for all policies.
    assert!((3.0..5.0).contains(&quiet.rows[0].throughput));
    assert!(quiet.rows.iter().all(|row| row.throughput == quiet.rows[0].throughput));
}

/// For 20 s more clients with one request each come than can be served.
#[test]
fn refused_requests_have_a_column_and_the_warm_up_has_none() {
    let with_warm_up = |warmup_s: u32| {
        run(
            &format!(
                "title = \"\"\n[run]\nhorizon_s = 60\nwarmup_s = {warmup_s}\nnewcomers_per_s = [400]\nseeds = 1\n\
                 policies = [\"wrr\"]\n[clients]\nrequests = {{ min = 1, r = 1, p = 1.0 }}\n[distributor]\n\
                 queue_max = 20\n[[surges]]\nfrom_s = 20\nuntil_s = 60\nfactor = 0.0\n"
            ),
            1,
        )
    };
    let [all, late] = [0, 40].map(with_warm_up);
    assert!(all.rows[0].refused > 1000.0 && late.rows[0].refused == 0.0, "{:?} {:?}", all.rows, late.rows);
    let last_cells = |study: &Study| table(study).into_iter().map(|mut row| row.pop().unwrap()).collect();
    let cells: Vec<String> = last_cells(&all);
    assert_eq!(cells, ["refused".to_owned(), format!("{:.1}", all.rows[0].refused)]);
    let cells: Vec<String> = last_cells(&late);
    assert_eq!(cells[0], "busy");
    let page = |study| report(study, "", "").pop().unwrap().text;
    assert!(page(&all).contains("Refused: ") && !page(&late).contains("Refused: "));
}

/// A request takes 40 s of 60.
#[test]
fn slow_node_is_busy_for_at_most_all_of_its_time() {
    let slow = run(
        "title = \"\"\n[run]\nhorizon_s = 60\nnewcomers_per_s = [2]\nseeds = 1\npolicies = [\"wrr\"]\n\
         [[nodes]]\nname = \"slow\"\nprivate_key_per_s = 0.025\nbulk_mbit_per_s = 1000.0\n",
        1,
    );
    assert_eq!(slow.rows[0].utilisation, 1.0);
}

#[test]
fn page_shows_the_costs_that_were_used() {
    let text = "title = \"\"\n[run]\nhorizon_s = 1\nnewcomers_per_s = [1]\nseeds = 1\n[costs]\nfull_us = 111.0\n\
                resumed_us = 22.0\nbulk_mbit_per_s = 20000.0\n[[nodes]]\nname = \"a\"\n";
    let given = Costs { full_us: 77.5, resumed_us: 8.0, bulk_mbit_per_s: 10_000.0 };
    for (costs, sentence) in [
        (None, "costs of the plan: a full handshake 111 us, a resumption 22 us, encryption at 20000 Mbit/s"),
        (
            Some(given),
            "costs of --costs, in the place of the plan's: a full handshake 77.5 us, a resumption 8 us, encryption \
             at 10000 Mbit/s",
        ),
    ] {
        let plan = Plan::parse("p", text, costs).unwrap();
        let page = report(&study(&plan, NonZeroUsize::MIN, |_, _, _| ()), text, "").pop().unwrap().text;
        assert!(page.contains(sentence), "{page}");
    }
}

#[test]
fn differences_are_those_of_each_seed() {
    let text = |seed: u32, seeds: u32| {
        format!(
            "title = \"\"\n[run]\nhorizon_s = 60\nnewcomers_per_s = [10, 20]\nseeds = {seeds}\nseed = {seed}\n\
             policies = [\"session_only\", \"wrr\"]\n"
        )
    };
    let both = run(&text(4, 2), 1);
    let table = differences(&both).unwrap();
    let one_by_one = [4, 5].map(|seed| run(&text(seed, 1), 1));
    assert_eq!(one_by_one.each_ref().map(differences), [None, None], "one seed has no interval");
    for (rate, cells) in [10, 20].into_iter().zip(&table[1..]) {
        let throughput = |study, policy| row(study, policy, rate).throughput;
        let [a, b] =
            one_by_one.each_ref().map(|one| throughput(one, "wrr") - throughput(one, "session_only"));
        // t(1) = 12.706, and the standard error of two values is half of their difference.
        let expected = format!("{:+.1} ± {:.1}", (a + b) / 2.0, 12.706 * (a - b).abs() / 2.0);
        assert_eq!((&cells[..2], &cells[3]), (&["wrr".to_owned(), rate.to_string()][..], &expected));
    }
    assert_eq!(table.len(), 3, "{table:?}");
}

#[test]
fn one_seed_has_no_confidence_interval() {
    let one = run(&SMALL.replace("seeds = 2", "seeds = 1"), 2);
    assert!(one.rows.iter().all(|row| row.throughput_ci.is_none()));
    assert!(run(SMALL, 2).rows.iter().all(|row| row.throughput_ci.is_some()));
}

#[test]
fn figures_have_axes_units_legends_and_error_bars() {
    let files = report(&run(SMALL, 2), SMALL, "evergate simulate small.toml");
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    for name in ["figure-4-resumption.svg", "figure-5a-balance.svg", "figure-6-throughput.svg", "report.html"]
    {
        assert!(names.contains(&name), "{names:?}");
    }
    for file in files.iter().filter(|file| file.name.ends_with(".svg")) {
        assert!(file.text.starts_with("<svg ") && file.text.ends_with("</svg>\n"), "{}", file.name);
        assert!(!file.text.contains("NaN") && !file.text.contains("inf"), "{}", file.name);
        for part in
            ["SSL_session_only", "SSLSARD", "shared keys + power of two choices", "rotate(-90", "m-4 0h8"]
        {
            assert!(file.text.contains(part), "{part} in {}", file.name);
        }
        assert!(file.text.contains("new clients per second") || file.text.contains("minutes from the start"));
    }
    let page = &files.last().unwrap().text;
    assert_eq!(page.matches("<svg ").count(), files.len() - 1);
    assert!(page.contains("evergate simulate small.toml") && page.contains("lifetime_s = 60"));
    assert!(!page.contains("src=") && !page.contains("href="), "one self-contained page");
}
