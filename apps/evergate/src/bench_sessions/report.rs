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
    format!(
        "Server CPU time of a connection\n\n{}\nRuns\n\n{}\nCPU times are those of the terminators, for a connection. \
         Gain: that of {BLIND} over that of the policy.\n{failures}",
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
            chart(format!("Gain over {BLIND}, {at}"), "ratio of server CPU times", gains),
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
