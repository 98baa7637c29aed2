//! Results as a table of text, as CSV, and as L5's figures.

use super::{BLIND, Report, Row, flow};
use evergate_base::Table;
use evergate_sslsard::chart::{Chart, Point, Series, svg};

/// File of a report.
#[derive(Clone, Debug)]
pub struct ReportFile {
    /// Name in the folder.
    pub name: String,
    /// Content.
    pub text: String,
}

const CSV_HEAD: &str = "policy,servers,reuse_percent,key_bits,connections,failed,offered,resumed,imbalance,\
                        handshakes_per_s,handshake_ms,server_cpu_us,switch_cpu_us,gain,bound,gain_of_bound";

/// Tables for a terminal: the costs of a connection, then all runs.
pub fn table(report: &Report) -> String {
    let mut costs = Table::new(&["KEY", "FULL", "RESUMED", "RATIO", "SERVER'S FIRST FLIGHT", "RESUMING"]);
    for key in &report.keys {
        let first = |times: [f64; super::FLIGHTS]| format!("{:.0} us", times.first().copied().unwrap_or(0.0));
        costs.row(vec![
            format!("RSA-{}", key.key_bits),
            format!("{:.0} us", key.costs.full_us),
            format!("{:.0} us", key.costs.resumed_us),
            format!("{:.1}", key.costs.full_us / key.costs.resumed_us),
            first(key.full.server_us),
            first(key.resumed.server_us),
        ]);
    }
    let mut runs = Table::new(&[
        "POLICY",
        "SERVERS",
        "REUSE",
        "KEY",
        "RESUMED",
        "IMBALANCE",
        "HANDSHAKES/S",
        "SERVER CPU",
        "SWITCH CPU",
        "GAIN",
        "BOUND",
        "GAIN/BOUND",
    ]);
    for row in rows(report) {
        let measured = &row.measured;
        let gain =
            |of: fn(&super::Gain) -> f64| row.gain.as_ref().map_or("-".into(), |g| format!("{:.2}", of(g)));
        runs.row(vec![
            row.policy.clone(),
            row.servers.to_string(),
            format!("{} %", row.reuse_percent),
            format!("RSA-{}", row.key_bits),
            format!("{:.1} %", measured.resumed * 100.0),
            format!("{:.2}", measured.imbalance),
            format!("{:.0}", measured.handshakes_per_s),
            format!("{:.0} us", measured.server_cpu_us),
            format!("{:.0} us", measured.switch_cpu_us),
            gain(|gain| gain.gain),
            gain(|gain| gain.bound),
            gain(|gain| gain.of_bound),
        ]);
    }
    let failed: u64 = rows(report).map(|row| row.measured.failed).sum();
    let failures = if failed > 0 { format!("{failed} connections failed.\n") } else { String::new() };
    let blind = BLIND.as_str();
    format!(
        "Server CPU time of a connection\n\n{}\nRuns\n\n{}\nCPU times are those of the terminators, for a connection. \
         Gain: that of {blind} over that of the policy.\n{failures}",
        costs.show(""),
        runs.show("")
    )
}

/// Files of a report: JSON and CSV of all results, and the figures.
///
/// # Errors
/// The results cannot be written as JSON.
pub fn files(report: &Report) -> serde_json::Result<Vec<ReportFile>> {
    let mut files = vec![
        ReportFile { name: "sessions.json".to_owned(), text: serde_json::to_string_pretty(report)? + "\n" },
        ReportFile { name: "sessions.csv".to_owned(), text: csv(report) },
    ];
    let mut add = |name: String, text: String| files.push(ReportFile { name, text });
    for key in &report.keys {
        let bits = key.key_bits;
        add(format!("figure-7-handshake-rsa-{bits}.svg"), flow::svg(report.sessions, key));
        let per_s = |row: &Row| Some(row.measured.handshakes_per_s);
        let of_key = |row: &&Row| row.key_bits == bits;
        let alone = Series {
            name: "one server".to_owned(),
            points: points(report.one_server.iter().filter(of_key), per_s),
        };
        let title = format!("Figure 8: one server, RSA-{bits}");
        add(
            format!("figure-8-one-server-rsa-{bits}.svg"),
            chart(title, "handshakes per second", vec![alone]),
        );
        let servers = report.rows.iter().find(|row| row.key_bits == bits).map_or(0, |row| row.servers);
        let at = format!("{servers} servers, RSA-{bits}");
        let of_policies = || report.rows.iter().filter(of_key);
        add(
            format!("figure-9-throughput-rsa-{bits}.svg"),
            chart(format!("Figure 9: {at}"), "handshakes per second", by_policy(of_policies(), per_s)),
        );
        add(
            format!("figure-9-cpu-rsa-{bits}.svg"),
            chart(
                format!("Server CPU time, {at}"),
                "us for a connection",
                by_policy(of_policies(), |row| Some(row.measured.server_cpu_us)),
            ),
        );
        let mut gains = by_policy(of_policies(), |row| Some(row.gain?.gain));
        let bound = |reuse: f64| Point { x: reuse, y: key.costs.bound(reuse / 100.0, servers), error: None };
        let mut reuses: Vec<u8> = of_policies().map(|row| row.reuse_percent).collect();
        reuses.sort_unstable();
        reuses.dedup();
        let points = reuses.into_iter().map(|reuse| bound(f64::from(reuse))).collect();
        gains.push(Series { name: "bound".to_owned(), points });
        add(
            format!("figure-9-gain-rsa-{bits}.svg"),
            chart(format!("Gain over {}, {at}", BLIND.as_str()), "ratio of server CPU times", gains),
        );
    }
    Ok(files)
}

/// All runs, by figure.
fn rows(report: &Report) -> impl Iterator<Item = &Row> {
    report.one_server.iter().chain(&report.pinned).chain(&report.rows)
}

fn csv(report: &Report) -> String {
    let mut out = format!("{CSV_HEAD}\n");
    for row in rows(report) {
        let measured = &row.measured;
        let gain = row.gain.map_or_else(
            || ",,".to_owned(),
            |gain| format!("{:.4},{:.4},{:.4}", gain.gain, gain.bound, gain.of_bound),
        );
        out += &format!(
            "{},{},{},{},{},{},{:.4},{:.4},{:.4},{:.1},{:.4},{:.2},{:.2},{gain}\n",
            row.policy,
            row.servers,
            row.reuse_percent,
            row.key_bits,
            measured.connections,
            measured.failed,
            measured.offered,
            measured.resumed,
            measured.imbalance,
            measured.handshakes_per_s,
            measured.handshake_ms,
            measured.server_cpu_us,
            measured.switch_cpu_us,
        );
    }
    out
}

fn chart(title: String, y_label: &str, series: Vec<Series>) -> String {
    let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    svg(&Chart {
        title,
        x_label: "connections that offer a session, percent".to_owned(),
        y_label: y_label.to_owned(),
        from_zero: true,
        series,
        ..Chart::default()
    })
}

/// A line for each policy, in the order of the runs.
fn by_policy<'a>(
    rows: impl Iterator<Item = &'a Row>,
    value: impl Fn(&Row) -> Option<f64> + Copy,
) -> Vec<Series> {
    let rows: Vec<&Row> = rows.collect();
    let mut names: Vec<&str> = Vec::new();
    for row in &rows {
        if !names.contains(&row.policy.as_str()) {
            names.push(&row.policy);
        }
    }
    names
        .into_iter()
        .map(|name| Series {
            name: name.to_owned(),
            points: points(rows.iter().copied().filter(|row| row.policy == name), value),
        })
        .collect()
}

fn points<'a>(rows: impl Iterator<Item = &'a Row>, value: impl Fn(&Row) -> Option<f64>) -> Vec<Point> {
    let mut points: Vec<Point> = rows
        .filter_map(|row| Some(Point { x: f64::from(row.reuse_percent), y: value(row)?, error: None }))
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_sessions::cost_model::Costs;
    use crate::bench_sessions::{Gain, KeyCosts, Measured, SessionKind, StepTimes};

    fn row(policy: &str, reuse_percent: u8, gain: Option<Gain>) -> Row {
        let measured = Measured {
            connections: 1000,
            failed: 2,
            offered: 0.8,
            resumed: 0.7943,
            imbalance: 1.04,
            handshakes_per_s: 936.4,
            handshake_ms: 3.0,
            server_cpu_us: 795.0,
            switch_cpu_us: 179.0,
        };
        Row { policy: policy.to_owned(), servers: 3, reuse_percent, key_bits: 4096, measured, gain }
    }

    fn report() -> Report {
        let costs = Costs { full_us: 3000.0, resumed_us: 100.0 };
        let steps = StepTimes { server_us: [3100.0, 80.0], ..StepTimes::default() };
        let gain = Some(Gain { gain: 3.46, bound: 3.3, of_bound: 1.05 });
        Report {
            sessions: SessionKind::Tls12Ids,
            protocol: "tcp".to_owned(),
            shared_address: false,
            clients: 300,
            seconds: 3.0,
            keys: vec![KeyCosts { key_bits: 4096, costs, full: steps, resumed: steps }],
            one_server: vec![row(BLIND.as_str(), 80, None)],
            pinned: vec![row("pinned", 0, None), row("pinned", 100, None)],
            rows: vec![row(BLIND.as_str(), 80, None), row("sslsard", 80, gain), row("sslsard", 40, gain)],
        }
    }

    #[test]
    fn table_has_costs_gains_and_failures() {
        let text = table(&report());
        for part in
            ["RSA-4096  3000 us  100 us   30.0", "79.4 %", "3.46  3.30   1.05", "12 connections failed."]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn csv_has_a_row_for_each_run() {
        let text = csv(&report());
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(text.contains("\nsslsard,3,80,4096,1000,2,0.8000,0.7943,"), "{text}");
        assert!(text.lines().all(|line| line.matches(',').count() == 15), "{text}");
    }

    #[test]
    fn gains_are_drawn_beside_their_bound() {
        let files = files(&report()).unwrap();
        let gains = files.iter().find(|file| file.name == "figure-9-gain-rsa-4096.svg").unwrap();
        // Blind dispatch has no gain, so it has no line.
        assert!(gains.text.contains(">bound<") && gains.text.contains(">sslsard<"), "{}", gains.text);
        assert!(!gains.text.contains(">round_robin<"), "{}", gains.text);
        assert_eq!(files.len(), 7);
    }

    #[test]
    fn points_ascend_by_reuse() {
        let report = report();
        let lines = by_policy(report.rows.iter(), |row| Some(row.measured.resumed));
        let sslsard: Vec<f64> = lines[1].points.iter().map(|point| point.x).collect();
        assert_eq!((lines[1].name.as_str(), sslsard), ("sslsard", vec![40.0, 80.0]));
    }
}
