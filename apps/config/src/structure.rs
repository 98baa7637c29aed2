//! Checks a parsed file against the schema, reports everything that does not fit, takes it out, and fills
//! in the defaults. What remains can be read by serde without errors, so that the later checks run even
//! for a file with mistakes and all problems appear at once.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{REFUSED, Report};
use crate::schema::{Default, Key, Kind, Section, alternatives};
use crate::span::KeyPath;
use crate::suggest::{closest, did_you_mean, listed};

/// Makes `table` fit `section`; see the module.
pub(crate) fn fit(section: &'static Section, table: &mut DeTable<'_>, at: &KeyPath, report: &mut Report<'_>) {
    retain(table, |name, value| {
        let path = at.key(name);
        match section.key(name) {
            Some(key) => {
                if let Default::Is(default) = key.default {
                    report.note_given(&path, default);
                    if matches!(key.kind, Kind::TwoNumbers(..)) && means(value, default) {
                        report.note_default(&path);
                    }
                }
                fit_value(key, value, &path, report)
            }
            None => {
                unknown_key(section, name, at, &path, report);
                false
            }
        }
    });
    for key in section.keys {
        if !table.contains_key(key.name)
            && let Some(value) = default_of(key, at, report)
        {
            table.insert(Spanned::new(0..0, Cow::Borrowed(key.name)), Spanned::new(0..0, value));
        }
    }
}

/// Keeps the entries for which `keep` holds, in order.
fn retain<'i>(table: &mut DeTable<'i>, mut keep: impl FnMut(&str, &mut DeValue<'i>) -> bool) {
    let entries = std::mem::take(table).into_iter();
    *table = entries
        .filter_map(|(name, mut value)| keep(name.get_ref(), value.get_mut()).then_some((name, value)))
        .collect();
}

/// The default as a tree, for keys whose default is a value or a table of defaults.
fn default_of(key: &'static Key, at: &KeyPath, report: &mut Report<'_>) -> Option<DeValue<'static>> {
    match (key.default, key.kind) {
        (Default::Is(text), _) => DeValue::parse(text).ok().map(Spanned::into_inner),
        // Rules are read into a struct of another crate, which requires these keys. The checks report a missing
        // key.
        (Default::Required, Kind::Text) if at.as_str().starts_with("rules[") => {
            Some(DeValue::String(Cow::Borrowed("")))
        }
        (Default::Required, Kind::Integer(min, _)) => {
            let path = at.key(key.name);
            report.missing(&path, REFUSED, &format!("add it, such as `{} = {}`", key.name, key.example));
            DeValue::parse(if min > 0 { "1" } else { "0" }).ok().map(Spanned::into_inner)
        }
        (_, Kind::Table(section)) => {
            let mut table = DeTable::new();
            fit(section, &mut table, &at.key(key.name), report);
            Some(DeValue::Table(table))
        }
        _ => None,
    }
}

/// Whether the value may stay. A value that may not has been reported.
fn fit_value(key: &'static Key, value: &mut DeValue<'_>, at: &KeyPath, report: &mut Report<'_>) -> bool {
    match (key.kind, value) {
        (Kind::Table(section) | Kind::OptionalTable(section), DeValue::Table(table)) => {
            fit(section, table, at, report);
            true
        }
        (Kind::NamedTables(section), DeValue::Table(tables)) => {
            retain(tables, |name, value| {
                let path = at.key(name);
                if let DeValue::Table(table) = value {
                    fit(section, table, &path, report);
                    return true;
                }
                let what = format!("`{at}` takes named tables, not {}", kind_of(value), at = at.as_str());
                let header = section.header.replace("NAME", name);
                report.error(
                    &path,
                    what,
                    format!("write the settings under the header `{header}`, or `{}`", section.header),
                );
                report.excuse(&path);
                false
            });
            true
        }
        (Kind::Tables(section), DeValue::Array(array)) => {
            for (i, value) in array.iter_mut().enumerate() {
                let path = at.index(i);
                if let DeValue::Table(table) = value.get_mut() {
                    fit(section, table, &path, report);
                    continue;
                }
                let what =
                    format!("an element of `{}` is a table, not {}", key.name, kind_of(value.get_ref()));
                report.error(&path, what, format!("begin each one with the header `{}`", section.header));
                report.excuse(&path);
                // An empty table keeps the numbers of the others right.
                let mut empty = DeTable::new();
                fit(section, &mut empty, &path, report);
                *value.get_mut() = DeValue::Table(empty);
            }
            true
        }
        (Kind::Tables(section), value) => {
            let what = format!("`{}` is a list of tables, not {}", key.name, kind_of(value));
            let remedy = format!(
                "begin each one with the header `{}`, with double brackets if there are two here",
                section.header
            );
            refuse(at, what, remedy, report)
        }
        (_, value) => fit_scalar(key, value, at, report),
    }
}

fn fit_scalar(key: &'static Key, value: &DeValue<'_>, at: &KeyPath, report: &mut Report<'_>) -> bool {
    let as_in_example = |key: &Key| format!("write it like `{} = {}`", key.name, key.example);
    if let Some((place, variable)) = variable_in(key, value, at) {
        let what =
            format!("`{variable}` looks like a variable, and evergate expands no environment variables");
        let remedy =
            "write the value itself, or let another program write the file before, such as `envsubst`";
        report.excuse(at);
        return refuse(&place, what, remedy.to_owned(), report);
    }
    match (key.kind, value) {
        (Kind::Bool | Kind::BoolOrTexts, DeValue::Boolean(_))
        | (Kind::Text | Kind::StatusSet, DeValue::String(_)) => true,
        (Kind::Integer(min, max), DeValue::Integer(_)) => {
            let remedy = || format!("choose a value in that range, such as `{} = {}`", key.name, key.example);
            is_integer_in(min, max, value)
                || refuse(at, format!("`{}` must be between {min} and {max}", key.name), remedy(), report)
        }
        (Kind::IntegerOr(min, max, words), value) => {
            let what =
                || format!("`{}` must be between {min} and {max}, or {}", key.name, alternatives(words));
            is_integer_in(min, max, value)
                || matches!(value, DeValue::String(text) if words.contains(&text.as_ref()))
                || refuse(at, what(), type_remedy(key, value), report)
        }
        (Kind::Choice(words), DeValue::String(word)) => {
            words.contains(&word.as_ref()) || refuse_choice(key, words, word, at, report)
        }
        (Kind::Texts | Kind::BoolOrTexts, DeValue::Array(array)) => {
            let elements = array.iter().enumerate().map(|(i, element)| (at.index(i), element.get_ref()));
            let what = format!("`{}` is a list of strings", key.name);
            are_strings(elements, &what, "put the element in quotes", at, report)
        }
        (Kind::TwoNumbers(min, max), DeValue::Array(array)) => {
            let in_range = |n: f64| (min..=max).contains(&n);
            let fits = array.len() == 2
                && array.iter().all(|value| number_of(value.get_ref()).is_some_and(in_range));
            let what = || format!("`{}` takes two numbers between {min} and {max}", key.name);
            fits || refuse(at, what(), as_in_example(key), report)
        }
        (Kind::TextTable, DeValue::Table(table)) => {
            let values = table.iter().map(|(name, value)| (at.key(name.get_ref()), value.get_ref()));
            let what = format!("the values of `{}` are strings", key.name);
            are_strings(values, &what, "put the value in quotes", at, report)
        }
        (Kind::StatusSet, DeValue::Array(array))
            if array.iter().all(|v| matches!(v.get_ref(), DeValue::String(_) | DeValue::Integer(_))) =>
        {
            true
        }
        (kind, value) => {
            let what = format!("`{}` is of the type {}; this is {}", key.name, kind.words(), kind_of(value));
            refuse(at, what, type_remedy(key, value), report)
        }
    }
}

/// Keys whose values have a syntax of their own with `$`.
const WITH_DOLLARS: [&str; 2] = ["when", "redirect"];

/// The first string of a value that has a variable as shells write it, and the variable.
fn variable_in<'v>(key: &Key, value: &'v DeValue<'_>, at: &KeyPath) -> Option<(KeyPath, &'v str)> {
    match value {
        _ if WITH_DOLLARS.contains(&key.name) => None,
        DeValue::String(text) => Some((at.clone(), shell_variable(text)?)),
        DeValue::Array(array) => (0..).zip(array.iter()).find_map(|(i, element)| match element.get_ref() {
            DeValue::String(text) => Some((at.index(i), shell_variable(text)?)),
            _ => None,
        }),
        _ => None,
    }
}

/// `${NAME}` anywhere in a text, or `$NAME` in capitals at its beginning.
fn shell_variable(text: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let braced = text.match_indices("${").find_map(|(start, _)| {
        let rest = &text[start..];
        let end = rest.find('}')?;
        let name = &rest[2..end];
        (!name.is_empty() && name.len() <= 64 && name.chars().all(is_name)).then_some(&rest[..=end])
    });
    let bare = || {
        let name = text.strip_prefix('$')?;
        let len = name
            .find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
            .unwrap_or(name.len());
        let begins = name.starts_with(|c: char| c.is_ascii_uppercase());
        (begins && (2..=64).contains(&len)).then(|| &text[..=len])
    };
    braced.or_else(bare)
}

fn is_integer_in(min: i64, max: i64, value: &DeValue<'_>) -> bool {
    let DeValue::Integer(number) = value else { return false };
    i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
        .is_ok_and(|n| (min..=max).contains(&n))
}

fn refuse_choice(
    key: &Key,
    words: &'static [&'static str],
    word: &str,
    at: &KeyPath,
    report: &mut Report<'_>,
) -> bool {
    let what = format!("`{}` has no value {word:?}", key.name);
    if words == TLS_VERSIONS && is_old_tls(word) {
        let remedy = format!("TLS 1.1 and older are obsolete (RFC 8996): write `{} = \"1.2\"`", key.name);
        return refuse(at, what, remedy, report);
    }
    let meant = did_you_mean(word, words.iter().copied());
    refuse(at, what, format!("{meant}use one of {}", listed(words.iter().copied())), report)
}

/// The words of keys that name a TLS version.
const TLS_VERSIONS: &[&str] = &["1.2", "1.3"];

/// Whether a word names a version of TLS or SSL before 1.2.
fn is_old_tls(word: &str) -> bool {
    let lower = word.trim().to_ascii_lowercase();
    let number = lower.trim_start_matches("tls").trim_start_matches([' ', 'v']);
    lower.starts_with("ssl") || matches!(number, "1" | "1.0" | "1.1")
}

/// Whether all elements of a list or table are strings. `what` they are, and the remedy where one is not.
fn are_strings<'v>(
    elements: impl Iterator<Item = (KeyPath, &'v DeValue<'v>)>,
    what: &str,
    remedy: &'static str,
    at: &KeyPath,
    report: &mut Report<'_>,
) -> bool {
    let mut fit = true;
    for (path, value) in elements {
        if !matches!(value, DeValue::String(_)) {
            report.error(&path, format!("{what}; this is {}", kind_of(value)), remedy);
            fit = false;
        }
    }
    if !fit {
        report.excuse(at);
    }
    fit
}

/// The value of an integer or a finite fraction; `None` for other values.
fn number_of(value: &DeValue<'_>) -> Option<f64> {
    let text = match value {
        DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
        DeValue::Float(number) => number.as_str(),
        _ => return None,
    };
    text.replace('_', "").parse().ok().filter(|number: &f64| number.is_finite())
}

/// Whether a list has the numbers of a default, which may be written in many ways.
fn means(value: &DeValue<'_>, default: &str) -> bool {
    let numbers = |value: &DeValue<'_>| -> Option<Vec<f64>> {
        let DeValue::Array(array) = value else { return None };
        array.iter().map(|value| number_of(value.get_ref())).collect()
    };
    DeValue::parse(default).is_ok_and(|default| numbers(default.get_ref()) == numbers(value))
}

/// The type of a value with its article.
fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn refuse(at: &KeyPath, what: String, remedy: String, report: &mut Report<'_>) -> bool {
    report.error(at, what, remedy);
    report.excuse(at);
    false
}

/// The probably intended spelling of a value with the wrong type.
fn type_remedy(key: &Key, value: &DeValue<'_>) -> String {
    let example = if key.example.is_empty() {
        String::new()
    } else {
        format!("write it like `{} = {}`", key.name, key.example)
    };
    match (key.kind, value) {
        (Kind::IntegerOr(..), DeValue::String(text)) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("write `{} = {text}`, without quotes", key.name)
        }
        (Kind::Integer(..), DeValue::String(text)) => match in_unit(text, key.name) {
            Some(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("write `{} = {number}`, without quotes", key.name)
            }
            Some(number) => format!("the unit is in the key's name: write `{} = {number}`", key.name),
            None => format!("{example}, a number without quotes"),
        },
        (Kind::Texts, DeValue::String(text)) => format!("put it in brackets: `{} = [{text:?}]`", key.name),
        (Kind::Text | Kind::Choice(_), DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_)) => {
            format!("{example}, with quotes")
        }
        (Kind::Bool | Kind::BoolOrTexts, _) => {
            format!("write `{0} = true` or `{0} = false`, without quotes", key.name)
        }
        (Kind::Table(section) | Kind::OptionalTable(section) | Kind::NamedTables(section), _) => {
            format!("write the settings under the header `{}`", section.header)
        }
        _ if example.is_empty() => "write a value of that type".to_owned(),
        _ => example,
    }
}

/// The number for a key with a unit in its name from a text such as `"10s"`, `"5 min"` or `"64k"`.
fn in_unit(text: &str, key: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: u64 = digits.replace('_', "").parse().ok()?;
    let unit = unit.trim().to_ascii_lowercase();
    let factor = if key.ends_with("_ms") || key.ends_with("_s") {
        let ms = match unit.as_str() {
            "" => return Some(number),
            "ms" => 1,
            "s" | "sec" | "second" | "seconds" => 1000,
            "m" | "min" | "minute" | "minutes" => 60_000,
            "h" | "hour" | "hours" => 3_600_000,
            "d" | "day" | "days" => 86_400_000,
            _ => return None,
        };
        let all = number.checked_mul(ms)?;
        return Some(if key.ends_with("_ms") { all } else { all / 1000 });
    } else {
        match unit.as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1024,
            "m" | "mb" | "mib" => 1024 * 1024,
            "g" | "gb" | "gib" => 1024 * 1024 * 1024,
            _ => return None,
        }
    };
    let bytes = number.checked_mul(factor)?;
    if key.ends_with("_mb") { Some(bytes.div_ceil(1024 * 1024)) } else { Some(bytes) }
}

fn unknown_key(section: &Section, name: &str, table: &KeyPath, at: &KeyPath, report: &mut Report<'_>) {
    let names = || section.keys.iter().map(|k| k.name);
    let place =
        if section.header.is_empty() { "the top level".to_owned() } else { format!("`{}`", section.header) };
    let mut remedy = did_you_mean(name, names());
    if let Some(meant) = closest(name, names()) {
        // The meant key is probably absent because of this one: one mistake, one message.
        report.excuse(&table.key(meant));
    }
    if remedy.is_empty() {
        let elsewhere =
            crate::schema::SECTIONS.iter().find(|s| !s.header.is_empty() && s.key(name).is_some());
        if let Some(other) = elsewhere {
            remedy = format!("`{name}` is a key of `{}`; move it there. ", other.header);
        }
    }
    remedy.push_str(&format!("Keys of {place}: {}", listed(names())));
    let what = format!("{place} has no key `{}`", crate::problem::shorten(name));
    let consequence = format!("it would have no effect, so {REFUSED}");
    match report.source().key_start(at) {
        Some(byte) => report.error_at_byte_because(byte, at, what, consequence, remedy),
        None => report.error_because(at, what, consequence, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::{in_unit, is_old_tls, shell_variable};

    #[test]
    fn shell_variables_and_old_tls_versions_are_recognised() {
        for (text, variable) in [
            ("${BACKEND}", Some("${BACKEND}")),
            ("app:${PORT_1}", Some("${PORT_1}")),
            ("$BACKEND:80", Some("$BACKEND")),
            ("/srv/${a b}/${c", None),
            ("$", None),
            ("$a", None),
            ("a$B", None),
            ("${}", None),
        ] {
            assert_eq!(shell_variable(text), variable, "{text}");
        }
        assert!(["1.1", "1.0", "TLSv1.1", "tls 1.0", "SSLv3"].iter().all(|word| is_old_tls(word)));
        assert!(!["1.2", "TLSv1.3", "2", ""].iter().any(|word| is_old_tls(word)));
    }

    #[test]
    fn a_value_with_a_unit_is_converted_to_the_unit_of_the_key() {
        for (text, key, number) in [
            ("10s", "handshake_ms", Some(10_000)),
            ("5 min", "ticket_rotate_s", Some(300)),
            ("16k", "head_bytes_max", Some(16_384)),
            ("1GB", "buffers_max_mb", Some(1024)),
            ("12", "weight", Some(12)),
            ("many", "weight", None),
            ("99999999999999999999s", "handshake_ms", None),
            ("9999999999999999999d", "handshake_ms", None),
        ] {
            assert_eq!(in_unit(text, key), number, "{text} for {key}");
        }
    }
}
