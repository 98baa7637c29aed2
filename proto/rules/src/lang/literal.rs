//! Literals and names, and the fields that accept them.

use evergate_base::name::folded;
use std::net::IpAddr;

use super::spelling::{self, Ends};
use crate::atom::{Compare, Net, Num, Table, Test, address_bits};
use crate::error::ConditionError;
use crate::field::{Field, Kind};
use crate::spec::Limits;

/// A literal of the language.
#[derive(Clone, Debug)]
pub(super) enum Literal {
    Text(Vec<u8>),
    Number(Num),
    Bool(bool),
}

impl Literal {
    pub(super) fn show(&self) -> String {
        match self {
            Literal::Text(bytes) => format!("the string \"{}\"", bytes.escape_ascii()),
            Literal::Number(number) => format!("the number {number}"),
            Literal::Bool(value) => value.to_string(),
        }
    }
}

/// Reads a number token. Integers that `f64` cannot represent are refused, since `==` would be inexact.
pub(super) fn number(digits: &str, negative: bool, at: usize) -> Result<Num, ConditionError> {
    let malformed = || {
        ConditionError::new(at, format!("{digits} is not a number"))
            .remedy("write decimal digits, as in 52000 or 0.5; quote addresses and names")
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && !digits.ends_with('.');
    let number = Num::parse(digits.as_bytes()).filter(|_| plain).ok_or_else(malformed)?;
    if number.get() >= 9_007_199_254_740_992.0 {
        return Err(ConditionError::new(at, format!("{digits} is too large"))
            .why("numbers from 2^53 on are not exact")
            .remedy("compare it as text, in quotation marks"));
    }
    Num::new(if negative { -number.get() } else { number.get() }).ok_or_else(malformed)
}

/// The test of `==` and `in`.
pub(super) fn equality(field: &Field, literals: Vec<(Literal, usize)>) -> Result<Test, ConditionError> {
    let (mut texts, mut numbers, mut nets) = (Vec::new(), Vec::new(), Vec::new());
    for (literal, at) in literals {
        let mismatch = |literal: &Literal, why: &str, remedy: &str| {
            Err(ConditionError::new(at, format!("{field} compared with {}", literal.show()))
                .why(why)
                .remedy(remedy))
        };
        match (field.kind(), literal) {
            (Kind::Text | Kind::TextOrNumber, Literal::Text(bytes)) => texts.push(exact(field, bytes, at)?),
            (Kind::TextOrNumber, Literal::Number(number)) => numbers.push(number),
            (Kind::Number, Literal::Number(number)) => {
                if number.get().fract() != 0.0 || !(0.0..=largest(field)).contains(&number.get()) {
                    return Err(out_of_range(field, "==", number, at));
                }
                numbers.push(number);
            }
            (Kind::TextOrNumber, Literal::Bool(value)) if matches!(field, Field::Json(_)) => {
                texts.push(value.to_string().into_bytes());
            }
            (Kind::Address, Literal::Text(bytes)) => nets.push(net(field, &bytes, at)?),
            (Kind::Text, literal @ Literal::Number(_)) => {
                return mismatch(&literal, &format!("{field} is text"), "put the literal in quotation marks");
            }
            (Kind::Number, literal) => {
                return mismatch(
                    &literal,
                    &format!("{field} is a number"),
                    "write it without quotation marks",
                );
            }
            (Kind::Address, literal) => {
                return mismatch(&literal, &format!("{field} is an address"), "write it as in \"10.0.0.1\"");
            }
            (_, literal @ Literal::Bool(_)) => {
                return mismatch(&literal, "only json(..) has true and false", "use ! and .exists()");
            }
        }
        if !texts.is_empty() && !numbers.is_empty() {
            return Err(ConditionError::new(at, "a list of both text and numbers")
                .remedy("use two comparisons joined by ||"));
        }
    }
    if !nets.is_empty() {
        nets.sort_unstable();
        nets.dedup();
        return Ok(Test::InNets(nets));
    }
    if !numbers.is_empty() {
        numbers.sort_by(|a, b| a.get().total_cmp(&b.get()));
        numbers.dedup();
        return Ok(Test::NumberIn(numbers));
    }
    texts.sort_unstable();
    texts.dedup();
    Ok(Test::OneOf(texts))
}

/// The test of `<`, `<=`, `>` and `>=`.
pub(super) fn comparison(
    field: &Field,
    compare: Compare,
    number: Num,
    at: usize,
) -> Result<Test, ConditionError> {
    // A comparison that holds for any value holds for the smallest or the largest.
    let holds = |value| compare.holds(value, number.get());
    if field.kind() == Kind::Number && !holds(0.0) && !holds(largest(field)) {
        return Err(out_of_range(field, compare.sign(), number, at));
    }
    Ok(Test::Number(compare, number))
}

/// The largest value of a field that only has whole numbers from 0 on.
fn largest(field: &Field) -> f64 {
    if *field == Field::BodySize { f64::INFINITY } else { f64::from(u16::MAX) }
}

fn out_of_range(field: &Field, sign: &str, number: Num, at: usize) -> ConditionError {
    let (why, remedy) = match field {
        Field::BodySize => ("a size is a whole number from 0 on", "write a number of bytes, as in 1000"),
        _ => ("a port is a whole number from 0 to 65535", "write a port, as in 443"),
    };
    ConditionError::new(at, format!("{field} {sign} {number} never holds")).why(why).remedy(remedy)
}

/// The test of a method with a string.
pub(super) fn method(
    field: &Field,
    name: &str,
    argument: Vec<u8>,
    at: usize,
    argument_at: usize,
    table: &mut Table,
    limits: &Limits,
) -> Result<Test, ConditionError> {
    if name == "matches" {
        let pattern = String::from_utf8(argument).map_err(|_| {
            ConditionError::new(argument_at, "the pattern is not UTF-8").remedy("use (?-u:\\xHH)")
        })?;
        let regex = table.regex(&pattern, field.ignores_case(), limits.regex_bytes_max).map_err(|error| {
            // The library draws the pattern over several lines; the last one has the cause.
            let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let what = format!("the pattern {pattern:?} does not compile");
            let is_look_around = reason.contains("look-around");
            let error = ConditionError::new(argument_at, what).why(reason);
            match is_look_around {
                true => error
                    .remedy("write what must not be there as a comparison of its own: !path.matches(\"..\")"),
                false => error,
            }
        })?;
        return Ok(Test::Matches { pattern, regex });
    }
    if argument.is_empty() {
        return Err(
            ConditionError::new(argument_at, format!("{name}(\"\") always holds")).remedy("leave it out")
        );
    }
    let mut text = argument;
    if field.ignores_case() {
        text.make_ascii_lowercase();
    }
    if *field == Field::Path && matches!(name, "starts_with" | "path_prefix") && text[0] != b'/' {
        return Err(ConditionError::new(
            argument_at,
            format!("path.{name}(\"{}\") never holds", text.escape_ascii()),
        )
        .why("a path begins with /")
        .remedy(format!("write path.{name}(\"/{}\")", text.escape_ascii())));
    }
    if *field == Field::Path && matches!(name, "starts_with" | "path_prefix") {
        let show = |text: &[u8]| format!("path.{name}(\"{}\")", text.escape_ascii());
        spelling::check_path(&text, name == "starts_with", argument_at, show)?;
    }
    if matches!(name, "starts_with" | "ends_with" | "contains") {
        part(field, name, &text, argument_at)?;
    }
    Ok(match name {
        "starts_with" => Test::StartsWith(text),
        "ends_with" => Test::EndsWith(text),
        "contains" => Test::Contains(text),
        _ if *field == Field::Path => {
            if text.ends_with(b"//") {
                let shown = text.escape_ascii();
                return Err(ConditionError::new(
                    argument_at,
                    format!("path.path_prefix(\"{shown}\") ends with an empty segment"),
                )
                .why("a slash at the end of a prefix is ignored")
                .remedy(format!(
                    "write path.starts_with(\"{shown}\"), or a prefix that ends with one slash or none"
                )));
            }
            // As in Gateway API, a trailing slash of the prefix is ignored.
            text.pop_if(|byte| *byte == b'/');
            Test::PathPrefix(text)
        }
        _ => {
            return Err(ConditionError::new(at, format!("{field} has no method {name}"))
                .why("only path has segments")
                .remedy(format!("use {field}.starts_with(..)")));
        }
    })
}

fn exact(field: &Field, mut bytes: Vec<u8>, at: usize) -> Result<Vec<u8>, ConditionError> {
    if field.ignores_case() {
        bytes.make_ascii_lowercase();
    }
    let shown = bytes.escape_ascii().to_string();
    let never = |why: &str, remedy: String| {
        Err(ConditionError::new(at, format!("{field} == \"{shown}\" never holds")).why(why).remedy(remedy))
    };
    match field {
        Field::Path if !bytes.starts_with(b"/") && bytes != b"*" => {
            never("a path begins with /", format!("write \"/{shown}\", or use path.ends_with(\"{shown}\")"))
        }
        Field::Path if bytes != b"*" => {
            let show = |text: &[u8]| format!("path == \"{}\"", text.escape_ascii());
            spelling::check_path(&bytes, false, at, show).map(|()| bytes)
        }
        Field::Host => match spelling::host_never_sent(&bytes, Ends::BOTH) {
            Some((why, remedy)) => never(why, remedy),
            None => Ok(spelling::canonical_address(&bytes).map_or(bytes, String::into_bytes)),
        },
        _ => match never_sent(field, &bytes, Ends::BOTH, |value| value == bytes) {
            Some((why, remedy)) => never(why, remedy),
            None => Ok(bytes),
        },
    }
}

/// Refuses the argument of a method if no value of the field begins with, ends with or contains it.
fn part(field: &Field, name: &str, text: &[u8], at: usize) -> Result<(), ConditionError> {
    let show = |text: &[u8]| format!("{field}.{name}(\"{}\")", text.escape_ascii());
    let holds = |value: &[u8]| match name {
        "starts_with" => value.starts_with(text),
        "ends_with" => value.ends_with(text),
        _ => memchr::memmem::find(value, text).is_some(),
    };
    let ends = Ends::of(name);
    let never = match field {
        Field::Path if !ends.start => return spelling::check_path_part(text, ends.end, at, show),
        Field::Host => spelling::host_never_sent(text, ends),
        _ => never_sent(field, text, ends, holds),
    };
    match never {
        Some((why, remedy)) => {
            Err(ConditionError::new(at, format!("{} never holds", show(text))).why(why).remedy(remedy))
        }
        None => Ok(()),
    }
}

/// The reason why no value of the field has this text at `ends`, and the remedy. `holds`: whether a value passes.
fn never_sent(
    field: &Field,
    text: &[u8],
    ends: Ends,
    holds: impl Fn(&[u8]) -> bool,
) -> Option<(&'static str, String)> {
    let one_of = |values: &[&str], why| {
        let never = !values.iter().any(|value| holds(value.as_bytes()));
        let quoted: Vec<String> =
            values.iter().rev().take(2).rev().map(|value| format!("{value:?}")).collect();
        never.then(|| (why, format!("write {}", quoted.join(" or "))))
    };
    match field {
        Field::Scheme => one_of(&["http", "https"], "a scheme is http or https"),
        Field::TlsVersion => {
            let versions = ["TLSv1.0", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
            one_of(&versions, "versions are TLSv1.2 and TLSv1.3, and older ones that a relayed client offers")
        }
        Field::Method => spelling::method_never_sent(text, ends),
        Field::Sni => spelling::sni_never_sent(text, ends),
        Field::Header(_) => spelling::has_blanks_around(text, ends),
        Field::Xml(path) if !path.contains('@') => spelling::has_blanks_around(text, ends),
        _ => None,
    }
}

fn net(field: &Field, bytes: &[u8], at: usize) -> Result<Net, ConditionError> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let malformed = || {
        ConditionError::new(at, format!("{field} compared with \"{text}\""))
            .why("that is neither an address nor a range")
            .remedy("write \"10.0.0.1\", \"10.0.0.0/8\" or \"2001:db8::/32\"")
    };
    let number = |digits: &str| {
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit()); // Rust parses "+8" as a number
        digits.parse::<u8>().ok().filter(|_| plain).ok_or_else(malformed)
    };
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(number(length)?)),
        None => (text.as_str(), None),
    };
    let address: IpAddr = address.parse().map_err(|_| malformed())?;
    let (v6, bits) = address_bits(address);
    let whole = if v6 { 128 } else { 32 };
    // ::ffff:10.0.0.0/104 is 10.0.0.0/8.
    let shift = if address.is_ipv6() && !v6 { 96 } else { 0 };
    let length = match length {
        None => whole,
        Some(length) => length.checked_sub(shift).filter(|&length| length <= whole).ok_or_else(malformed)?,
    };
    let masked = Net { v6, bits: Net::mask(v6, bits, length), length };
    if masked.bits != bits {
        return Err(ConditionError::new(at, format!("\"{text}\" has bits past its prefix length"))
            .why("the range would not begin at that address")
            .remedy(format!("write \"{masked}\" or the single address")));
    }
    Ok(masked)
}

/// `query("..")`, `header("..")`, `cookie("..")`, `form("..")` and `json("..")`.
pub(super) fn named_field(space: &str, name: Vec<u8>, at: usize) -> Result<Field, ConditionError> {
    let shown = name.escape_ascii().to_string();
    let refuse = |why: &str, remedy: &str| {
        Err(ConditionError::new(at, format!("{space}(\"{shown}\")")).why(why).remedy(remedy))
    };
    let Ok(name) = String::from_utf8(name) else { return refuse("the name is not UTF-8", "") };
    if name.len() > 256 {
        return refuse("names are at most 256 bytes", "");
    }
    match space {
        "json" if name.is_empty() || is_pointer(&name) => Ok(Field::Json(name)),
        "json" => refuse("that is no JSON pointer (RFC 6901)", "write it as in json(\"/order/0/total\")"),
        _ if name.is_empty() => refuse("the name is empty", "write the name of the value"),
        "header" | "cookie" if !name.bytes().all(is_token) => {
            refuse("that is no token (RFC 9110 section 5.6.2)", "letters, digits and !#$%&'*+-.^_`|~ only")
        }
        "header" => Ok(Field::Header(name.bytes().map(|byte| char::from(folded(byte))).collect())),
        "cookie" => Ok(Field::Cookie(name)),
        "form" => Ok(Field::Form(name)),
        _ => Ok(Field::Query(name)),
    }
}

/// Whether `byte` is valid in a header's name.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_pointer(text: &str) -> bool {
    let escaped = |segment: &str| segment.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.starts_with('/') && text.split('/').all(escaped)
}

/// `xml("a/b/@c")` and `xml.a/b/@c`.
pub(super) fn xml_path(path: Vec<u8>, at: usize) -> Result<Field, ConditionError> {
    let text = String::from_utf8_lossy(&path).into_owned();
    let refuse = |why: &str| {
        Err(ConditionError::new(at, format!("the XML path \"{text}\""))
            .why(why)
            .remedy("write local names from the root, as in xml(\"purchase/totalAmount\")"))
    };
    let segments: Vec<&str> = text.trim_start_matches('/').split('/').collect();
    let name = |text: &str| {
        text.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    let (last, parents) = segments.split_last().unwrap_or((&"", &[]));
    let attribute = !parents.is_empty() && last.strip_prefix('@').is_some_and(name);
    if text.contains(':') {
        return refuse("namespace prefixes are not compared");
    }
    if text.len() > 256 || !parents.iter().all(|segment| name(segment)) || !(name(last) || attribute) {
        return refuse("it is not a list of names");
    }
    Ok(Field::Xml(segments.join("/")))
}
