//! Figures of a study, and the page around them.
//!
//! The figures have the paper's numbers: 4 resumption, 5 load balance over time (one for each course: a, b, ..), 6
//! throughput. Further figures are not in the paper: waits, and the courses of a plan with events.

use crate::chart::{Chart, Point, Scale, Series, escaped, svg};
use crate::parameters::{CostPlan, Plan, SECOND_NS};
use crate::study::{Course, Estimate, Row, Study};
use std::fmt::Write;

/// A file of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFile {
    /// Its name, without a folder.
    pub name: String,
    /// Its bytes.
    pub text: String,
}

/// Draws the figures and writes the page `report.html`, which includes them. `plan_text` is the plan as read, and
/// `command` reproduces this report.
pub fn report(study: &Study, plan_text: &str, command: &str) -> Vec<ReportFile> {
    let mut files = figures(study);
    let page = page(study, &files, plan_text, command);
    files.push(ReportFile { name: "report.html".to_owned(), text: page });
    files
}

/// The results as a table of text, one row for each policy and load. A column for refused requests appears if there are
/// any.
pub fn table(study: &Study) -> Vec<Vec<String>> {
    let with = |value: f64, ci: Option<f64>, decimals: usize| match ci {
        Some(ci) => format!("{value:.decimals$} ± {ci:.decimals$}"),
        None => format!("{value:.decimals$}"),
    };
    let head =
        ["policy", "newcomers/s", "resumption", "requests/s", "load std", "wait ms", "wait p99 ms", "busy"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(study.rows.iter().map(|row| {
        vec![
            row.policy.clone(),
            row.newcomers_per_s.to_string(),
            with(row.resumption, row.resumption_ci, 4),
            with(row.throughput, row.throughput_ci, 0),
            with(row.load_std, row.load_std_ci, 1),
            with(row.wait_ms, row.wait_ms_ci, 1),
            with(row.wait_p99_ms, row.wait_p99_ms_ci, 1),
            format!("{:.1} %", 100.0 * row.utilisation),
        ]
    }));
    if has_refused(study) {
        let refused = study.rows.iter().map(|row| format!("{:.1}", row.refused));
        let cells = std::iter::once("refused".to_owned()).chain(refused);
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }
    rows
}

/// Differences of the other policies from the plan's first one, seed by seed, as a table of text; `None` for one policy
/// or one seed.
pub fn differences(study: &Study) -> Option<Vec<Vec<String>>> {
    let with = |estimate: Estimate, decimals: usize| {
        estimate.ci.map(|ci| format!("{:+.decimals$} ± {ci:.decimals$}", estimate.mean))
    };
    let head = ["policy", "newcomers/s", "resumption", "requests/s", "load std", "wait ms", "wait p99 ms"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for difference in &study.differences {
        rows.push(vec![
            difference.policy.clone(),
            difference.newcomers_per_s.to_string(),
            with(difference.resumption, 4)?,
            with(difference.throughput, 1)?,
            with(difference.load_std, 1)?,
            with(difference.wait_ms, 1)?,
            with(difference.wait_p99_ms, 1)?,
        ]);
    }
    (rows.len() > 1).then_some(rows)
}

/// Costs of the nodes' service times, in a sentence without its stop; `None` if each node has its own.
pub fn costs(plan: &Plan) -> Option<String> {
    let CostPlan { costs, are_given } = plan.costs?;
    let origin = if are_given { "of --costs, in the place of the plan's" } else { "of the plan" };
    Some(format!(
        "costs {origin}: a full handshake {} us, a resumption {} us, encryption at {} Mbit/s",
        costs.full_us, costs.resumed_us, costs.bulk_mbit_per_s
    ))
}

fn has_refused(study: &Study) -> bool {
    study.rows.iter().any(|row| row.refused > 0.0)
}

fn figures(study: &Study) -> Vec<ReportFile> {
    let mut files = Vec::new();
    let mut add = |name: String, chart: &Chart| files.push(ReportFile { name, text: svg(chart) });
    let by_load = |title: &str, y_label: &str, value: fn(&Row) -> (f64, Option<f64>)| Chart {
        title: title.to_owned(),
        x_label: "new clients per second".to_owned(),
        y_label: y_label.to_owned(),
        series: load_series(study, value),
        ..Chart::default()
    };
    let zero = |chart: Chart| Chart { from_zero: true, ..chart };
    add(
        "figure-4-resumption.svg".to_owned(),
        &zero(by_load("Figure 4: session resumption", "share of requests that resume", |row| {
            (row.resumption, row.resumption_ci)
        })),
    );
    for (letter, rate) in ('a'..='z').zip(&study.plan.courses_at) {
        let title = format!("Figure 5 ({letter}): load balance degree, {rate} new clients per second");
        let chart =
            course_chart(study, *rate, title, "standard deviation of load, units of work/s", |course| {
                &course.load_std
            });
        add(format!("figure-5{letter}-balance.svg"), &chart);
    }
    add(
        "figure-6-throughput.svg".to_owned(),
        &zero(by_load("Figure 6: throughput", "requests/s", |row| (row.throughput, row.throughput_ci))),
    );
    add(
        "figure-7-balance.svg".to_owned(),
        &zero(by_load("Load balance degree by load", "standard deviation of load, units of work/s", |row| {
            (row.load_std, row.load_std_ci)
        })),
    );
    let logarithmic = |chart: Chart| Chart { y_scale: Scale::Logarithmic, ..chart };
    add(
        "figure-8-wait.svg".to_owned(),
        &logarithmic(by_load("Mean wait for service", "ms, logarithmic", |row| {
            (row.wait_ms, row.wait_ms_ci)
        })),
    );
    add(
        "figure-9-wait-p99.svg".to_owned(),
        &logarithmic(by_load("99th percentile of the wait for service", "ms, logarithmic", |row| {
            (row.wait_p99_ms, row.wait_p99_ms_ci)
        })),
    );
    // The course is the main result of a plan with events.
    if !study.plan.events.is_empty() || !study.plan.surges.is_empty() {
        for (letter, rate) in ('a'..='z').zip(&study.plan.courses_at) {
            let at = format!("{rate} new clients per second");
            let wait =
                course_chart(study, *rate, format!("Mean wait, {at}"), "ms, logarithmic", |c| &c.wait_ms);
            add(format!("course-{letter}-wait.svg"), &Chart { y_scale: Scale::Logarithmic, ..wait });
            let throughput =
                course_chart(study, *rate, format!("Throughput, {at}"), "requests/s", |c| &c.throughput);
            add(format!("course-{letter}-throughput.svg"), &throughput);
            let resumption =
                course_chart(study, *rate, format!("Session resumption, {at}"), "share of requests", |c| {
                    &c.resumption
                });
            add(format!("course-{letter}-resumption.svg"), &resumption);
        }
    }
    files
}

fn load_series(study: &Study, value: fn(&Row) -> (f64, Option<f64>)) -> Vec<Series> {
    let series = |scheme: &crate::Scheme| Series {
        name: scheme.label.clone(),
        points: study
            .rows
            .iter()
            .filter(|row| row.policy == scheme.name)
            .map(|row| {
                let (y, error) = value(row);
                Point { x: f64::from(row.newcomers_per_s), y, error }
            })
            .collect(),
    };
    study.plan.policies.iter().map(series).collect()
}

fn course_chart(
    study: &Study,
    rate: u32,
    title: String,
    y_label: &str,
    value: fn(&Course) -> &Vec<Estimate>,
) -> Chart {
    let series = |course: &Course| Series {
        name: course.scheme.label.clone(),
        points: course
            .at_s
            .iter()
            .zip(value(course))
            .map(|(at_s, estimate)| Point { x: at_s / 60.0, y: estimate.mean, error: estimate.ci })
            .collect(),
    };
    let plan = &study.plan;
    let minutes = |seconds: u64| seconds as f64 / 60.0;
    let deaths = plan.events.iter().map(|event| {
        let name = plan.nodes.get(event.node).map_or("", |node| node.name.as_str());
        let what = if event.dies { "dies" } else { "returns" };
        (minutes(event.at_ns / SECOND_NS), format!("{name} {what}"))
    });
    let surges = plan.surges.iter().flat_map(|surge| {
        [
            (minutes(surge.from_s), format!("{} × newcomers", surge.factor)),
            (minutes(surge.until_s), "surge over".to_owned()),
        ]
    });
    Chart {
        title,
        x_label: "minutes from the start".to_owned(),
        y_label: y_label.to_owned(),
        from_zero: true,
        series: study.courses.iter().filter(|course| course.newcomers_per_s == rate).map(series).collect(),
        marks: deaths.chain(surges).collect(),
        ..Chart::default()
    }
}

const STYLE: &str = "body{font:15px/1.5 Helvetica,Arial,sans-serif;color:#222;max-width:1000px;margin:2em \
    auto;padding:0 1em}\
table{border-collapse:collapse;margin:1em 0;font-size:14px}td,th{padding:.2em \
.8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}pre{background:#f5f5f5;padding:1em;overflow:auto;font-size:13px}\
figure{margin:1.5em 0}svg{max-width:100%;height:auto}";

fn page(study: &Study, figures: &[ReportFile], plan_text: &str, command: &str) -> String {
    let plan = &study.plan;
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{0}</h1>\n<p>{1}</p>\n",
        escaped(&plan.title),
        escaped(plan.about.trim())
    );
    let seeds = if plan.seeds == 1 {
        format!("One seed ({}), so there are no confidence intervals.", plan.seed)
    } else {
        format!("Means over {} seeds from {} on, ± half the 95 % confidence interval.", plan.seeds, plan.seed)
    };
    let _ = write!(
        out,
        "<p>{} s simulated. {seeds} The same plan and seed give the same bytes on any machine:</p>\n<pre>{}</pre>\n",
        plan.horizon_s(),
        escaped(command)
    );
    out.push_str("<h2>Figures</h2>\n");
    for figure in figures {
        let _ = write!(out, "<figure>\n{}</figure>\n", figure.text);
    }
    out.push_str("<h2>Results</h2>\n");
    html_table(&mut out, &table(study));
    let refused = match has_refused(study) {
        true => " Refused: requests per run, after the warm-up, that found the queue of their node full.",
        false => "",
    };
    let _ = write!(
        out,
        "<p>Resumption: share of the requests served that resumed a session. Load std: mean over time of the standard \
         deviation of the nodes' loads by equation (1), in units of work per second; a unit is a resumed request on \
         the \
         fastest node. Wait: from a request to the beginning of its service. Busy: share of the nodes' time that they \
         work.{refused}</p>\n<h2>Nodes</h2>\n"
    );
    let mut nodes = vec![["node", "p new", "p reu", "weight"].map(str::to_owned).to_vec()];
    for ((name, new, resumed), node) in plan.abilities().into_iter().zip(&plan.nodes) {
        nodes.push(vec![name, format!("{new:.2}"), format!("{resumed:.2}"), node.weight.to_string()]);
    }
    html_table(&mut out, &nodes);
    let _ = write!(
        out,
        "<p>One unit of work takes {:.3} ms{}.</p>\n<h2>Plan</h2>\n<pre>{}</pre>\n</body>\n</html>\n",
        plan.unit_ns() as f64 / 1e6,
        costs(plan).map_or_else(String::new, |costs| format!("; {costs}")),
        escaped(plan_text)
    );
    out
}

fn html_table(out: &mut String, rows: &[Vec<String>]) {
    out.push_str("<table>\n");
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out.push_str("</table>\n");
}
