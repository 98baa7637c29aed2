//! The text formats of metrics: Prometheus 0.0.4 and OpenMetrics 1.0.
//!
//! They differ here in two places: OpenMetrics names a counter's family without the `_total` of its samples, and ends
//! with `# EOF`. Invariant: the samples of a family follow each other, after its HELP and TYPE.

use evergate_worker::TimesStatus;
use std::fmt::{Display, Write};

/// The two text formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The format that every scraper reads.
    Prometheus,
    /// The format for scrapers that ask for it.
    OpenMetrics,
}

impl Form {
    /// The format of the request's `Accept`.
    pub(super) fn of(accept: &str) -> Form {
        if accept.contains("application/openmetrics-text") { Form::OpenMetrics } else { Form::Prometheus }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A document under construction.
#[derive(Debug)]
pub(super) struct Exposition {
    text: String,
    form: Form,
}

/// One family, open for samples.
pub(super) struct Family<'e> {
    exposition: &'e mut Exposition,
    name: &'static str,
}

/// A family of histograms, open for them.
pub(super) struct Histogram<'e> {
    exposition: &'e mut Exposition,
    name: &'static str,
}

impl Exposition {
    pub(super) fn new(form: Form) -> Exposition {
        Exposition { text: String::with_capacity(16_384), form }
    }

    /// A family of counters; `name` ends with `_total`.
    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        debug_assert!(name.ends_with("_total"), "{name}");
        let family = match self.form {
            Form::Prometheus => name,
            Form::OpenMetrics => name.trim_end_matches("_total"),
        };
        self.head(family, "counter", help);
        Family { exposition: self, name }
    }

    /// A family of gauges.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.head(name, "gauge", help);
        Family { exposition: self, name }
    }

    /// A family of histograms.
    pub(super) fn histogram(&mut self, name: &'static str, help: &str) -> Histogram<'_> {
        self.head(name, "histogram", help);
        Histogram { exposition: self, name }
    }

    fn head(&mut self, family: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}");
    }

    pub(super) fn finish(mut self) -> String {
        if self.form == Form::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl Histogram<'_> {
    /// Adds one, of times in seconds.
    pub(super) fn times(&mut self, labels: &[(&str, &str)], times: &TimesStatus) {
        let within =
            times.within.iter().map(|within| (format!("{:?}", within.ms as f64 / 1000.0), within.count));
        for (bound, count) in within.chain([("+Inf".to_owned(), times.count)]) {
            let all: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample("_bucket", &all, count);
        }
        self.sample("_sum", labels, times.sum_us as f64 / 1e6);
        self.sample("_count", labels, times.count);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.exposition.text;
        text.push_str(self.name);
        text.push_str(suffix);
        write_sample(text, labels, value);
    }
}

impl Family<'_> {
    /// Adds a sample.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        let text = &mut self.exposition.text;
        text.push_str(self.name);
        write_sample(text, labels, value);
        self
    }
}

/// Suffix of a sample's name.
fn write_sample(text: &mut String, labels: &[(&str, &str)], value: impl Display) {
    for (index, (name, value)) in labels.iter().enumerate() {
        text.push(if index == 0 { '{' } else { ',' });
        text.push_str(name);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    if !labels.is_empty() {
        text.push('}');
    }
    let _ = writeln!(text, " {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_worker::TimesWithin;

    fn document(form: Form) -> String {
        let mut exposition = Exposition::new(form);
        exposition
            .counter("x_hits_total", "Hits \\ by\nname.")
            .sample(&[("rule", "a \"b\"\\\n"), ("kind", "")], 3)
            .sample(&[], 0.5);
        exposition.gauge("x_up", "Up.").sample(&[], 1);
        exposition.finish()
    }

    #[test]
    fn both_formats_follow_their_specifications() {
        assert_eq!(
            document(Form::Prometheus),
            "# HELP x_hits_total Hits \\\\ by\\nname.\n# TYPE x_hits_total counter\n\
             x_hits_total{rule=\"a \\\"b\\\"\\\\\\n\",kind=\"\"} 3\nx_hits_total 0.5\n\
             # HELP x_up Up.\n# TYPE x_up gauge\nx_up 1\n"
        );
        let open = document(Form::OpenMetrics);
        assert!(
            open.starts_with("# HELP x_hits Hits") && open.contains("# TYPE x_hits counter\nx_hits_total{")
        );
        assert!(open.ends_with("x_up 1\n# EOF\n"));
    }

    #[test]
    fn histogram_counts_up_to_each_bound_and_names_its_sum() {
        let mut exposition = Exposition::new(Form::OpenMetrics);
        let within = [(10, 2), (1000, 5)].map(|(ms, count)| TimesWithin { ms, count });
        let times = TimesStatus { count: 6, sum_us: 7_500_000, within: within.into() };
        exposition.histogram("x_seconds", "X.").times(&[("kind", "a")], &times);
        assert_eq!(
            exposition.finish(),
            "# HELP x_seconds X.\n# TYPE x_seconds histogram\nx_seconds_bucket{kind=\"a\",le=\"0.01\"} 2\n\
             x_seconds_bucket{kind=\"a\",le=\"1.0\"} 5\nx_seconds_bucket{kind=\"a\",le=\"+Inf\"} 6\n\
             x_seconds_sum{kind=\"a\"} 7.5\nx_seconds_count{kind=\"a\"} 6\n# EOF\n"
        );
    }

    #[test]
    fn scraper_that_asks_for_openmetrics_gets_it() {
        assert_eq!(
            Form::of("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            Form::OpenMetrics
        );
        assert_eq!(Form::of("*/*"), Form::Prometheus);
    }
}
