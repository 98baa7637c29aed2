//! Checks of active health checks.

use std::time::Duration;

use super::context::Checks;
use super::node::pick_given;
use crate::model::{Health, HealthCheck, HealthKind, StatusRange};
use crate::problem::REFUSED;
use crate::raw::{RawHealth, RawStatus, RawStatuses};
use crate::span::KeyPath;

pub(crate) fn health(raw: &RawHealth, at: &KeyPath, checks: &mut Checks<'_>) -> Option<Health> {
    if raw.timeout_ms > raw.interval_ms {
        checks.report.error_because(
            &pick_given(checks, at, "timeout_ms", "interval_ms"),
            format!("`timeout_ms` ({}) is longer than `interval_ms` ({})", raw.timeout_ms, raw.interval_ms),
            format!("checks of a slow server would pile up; {REFUSED}"),
            "make `interval_ms` at least as long as `timeout_ms`",
        );
    }
    let check = match raw.kind {
        HealthKind::Tcp => {
            for key in ["path", "host", "expect_status"] {
                if checks.report.is_given(&at.key(key)) {
                    checks.report.error_because(
                        &at.key(key),
                        format!("`{key}` is about HTTP, but the check is `tcp`"),
                        format!("the server would count as healthy whatever it answers; {REFUSED}"),
                        format!("write `kind = \"http\"`, or remove `{key}`"),
                    );
                }
            }
            HealthCheck::Tcp
        }
        HealthKind::Http => http(raw, at, checks)?,
    };
    let ms = Duration::from_millis;
    Some(Health {
        check,
        interval: ms(raw.interval_ms),
        timeout: ms(raw.timeout_ms),
        rise: raw.rise,
        fall: raw.fall,
    })
}

fn http(raw: &RawHealth, at: &KeyPath, checks: &mut Checks<'_>) -> Option<HealthCheck> {
    let path = &raw.path;
    if !path.starts_with('/') {
        let remedy = match path.split_once("://") {
            Some((_, rest)) => {
                let rest = rest.find('/').and_then(|i| rest.get(i..)).unwrap_or("/");
                format!("write the path only: `path = \"{rest}\"`; the name of the host goes into `host`")
            }
            None => format!("write `path = \"/{path}\"`"),
        };
        checks.report.error(&at.key("path"), "the path does not begin with `/`", remedy);
    } else if !path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
        checks.report.error(
            &at.key("path"),
            "the path has a character that cannot stand in a request line",
            "percent-encode it (a space is `%20`)",
        );
    }
    if let Some(host) = &raw.host
        && (host.is_empty() || !host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@\\".contains(&b)))
    {
        checks.report.error(
            &at.key("host"),
            format!("{host:?} cannot be a Host header"),
            "write a host name, with a port if the server expects it, such as \"app.internal\"",
        );
    }
    let expect = statuses(&raw.expect_status, &at.key("expect_status"), checks)?;
    Some(HealthCheck::Http { path: path.clone(), host: raw.host.clone(), expect })
}

fn statuses(raw: &RawStatuses, at: &KeyPath, checks: &mut Checks<'_>) -> Option<Vec<StatusRange>> {
    let parts: Vec<(KeyPath, String)> = match raw {
        RawStatuses::Text(text) => text.split(',').map(|part| (at.clone(), part.trim().to_owned())).collect(),
        RawStatuses::List(list) => list
            .iter()
            .enumerate()
            .map(|(i, status)| match status {
                RawStatus::Code(code) => (at.index(i), code.to_string()),
                RawStatus::Text(text) => (at.index(i), text.trim().to_owned()),
            })
            .collect(),
    };
    if parts.is_empty() {
        let consequence = format!("no server would ever be healthy; {REFUSED}");
        checks.report.error_because(
            at,
            "the list of statuses is empty",
            consequence,
            "write `expect_status = \"200-399\"`",
        );
        return None;
    }
    let mut ranges = Vec::new();
    for (at, part) in &parts {
        match range(part) {
            Ok(range) => ranges.push(range),
            Err(what) => {
                let remedy =
                    "write statuses from 100 to 599 and ranges of them: `\"200-299, 401\"` or `[200, 204]`";
                checks.report.error(at, what, remedy);
            }
        }
    }
    (ranges.len() == parts.len()).then_some(ranges)
}

fn range(text: &str) -> Result<StatusRange, String> {
    let status = |text: &str| {
        let text = text.trim();
        let number: Option<u16> = text.parse().ok().filter(|n| (100..=599).contains(n));
        number.ok_or_else(|| format!("`{text}` is not an HTTP status"))
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (status(first)?, status(last)?),
        None => (status(text)?, status(text)?),
    };
    if first > last {
        return Err(format!("the range `{text}` runs backwards"));
    }
    Ok(StatusRange { first, last })
}
