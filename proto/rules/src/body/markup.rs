//! Grammar of XML 1.0 (fifth edition) and Namespaces in XML 1.0: characters, names, attributes, references, and the
//! declaration at the start. [`super::xml`] walks the document and refuses with these functions what a strict parser
//! refuses.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr2, memchr3, memmem};

/// Whether a document may have all these characters (XML 1.0 section 2.2, `Char`). UTF-8 can also encode controls,
/// U+FFFE and U+FFFF: parsers refuse these, drop them or end the text there.
pub(super) fn all_allowed(text: &str) -> bool {
    // No early exit within a chunk, so that the compiler can test many bytes in one step.
    let control = |byte: u8| (byte < b' ') & (byte != b'\t') & (byte != b'\n') & (byte != b'\r');
    let controls = text
        .as_bytes()
        .chunks(64)
        .any(|part| part.iter().fold(0u8, |found, &byte| found | u8::from(control(byte))) != 0);
    let contains = |c: &str| memmem::find(text.as_bytes(), c.as_bytes()).is_some();
    !controls && !contains("\u{fffe}") && !contains("\u{ffff}")
}

/// Whether `name` is the name of an element or attribute: letters and similar, with at most one colon, which separates
/// two names (XML 1.0 section 2.3; Namespaces in XML 1.0 section 4, `QName`).
pub(super) fn is_name(name: &str) -> bool {
    match memchr(b':', name.as_bytes()) {
        Some(at) => is_plain_name(&name[..at]) && is_plain_name(&name[at + 1..]),
        None => is_plain_name(name),
    }
}

/// Whether `name` is a name without a colon (Namespaces in XML 1.0 section 3, `NCName`).
fn is_plain_name(name: &str) -> bool {
    if name.is_ascii() {
        let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        return first && name.as_bytes().iter().all(plain);
    }
    name.chars().next().is_some_and(starts_name) && name.chars().all(continues_name)
}

fn starts_name(c: char) -> bool {
    matches!(c,
        'A'..='Z' | 'a'..='z' | '_' | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}' | '\u{f8}'..='\u{2ff}'
        | '\u{370}'..='\u{37d}' | '\u{37f}'..='\u{1fff}' | '\u{200c}'..='\u{200d}' | '\u{2070}'..='\u{218f}'
        | '\u{2c00}'..='\u{2fef}' | '\u{3001}'..='\u{d7ff}' | '\u{f900}'..='\u{fdcf}' | '\u{fdf0}'..='\u{fffd}'
        | '\u{10000}'..='\u{effff}')
}

fn continues_name(c: char) -> bool {
    starts_name(c)
        || matches!(c, '0'..='9' | '-' | '.' | '\u{b7}' | '\u{300}'..='\u{36f}' | '\u{203f}'..='\u{2040}')
}

/// Whether `text` is a comment's text (XML 1.0 section 2.5): no `--` inside, and no `-` at the end.
pub(super) fn is_comment(text: &str) -> bool {
    !memchr_iter(b'-', text.as_bytes()).any(|at| matches!(text.as_bytes().get(at + 1), None | Some(b'-')))
}

/// Whether `name` is the target of an instruction (XML 1.0 section 2.6): a name other than `xml` in any case.
pub(super) fn is_target(name: &str) -> bool {
    is_plain_name(name) && !name.eq_ignore_ascii_case("xml")
}

/// Whether `text` is valid between tags (XML 1.0 section 2.4): without the end mark of a CDATA section.
pub(super) fn is_text(text: &str) -> bool {
    !memchr_iter(b'>', text.as_bytes()).any(|at| text.as_bytes()[..at].ends_with(b"]]"))
}

/// The first attribute in the text after a tag's name (XML 1.0 section 3.1): its name, its raw value, and the rest. A
/// blank precedes the attribute.
pub(super) fn attribute(text: &str) -> Option<(&str, &str, &str)> {
    let start = trim_blanks(text);
    (start.len() < text.len()).then_some(())?;
    let equals = memchr(b'=', start.as_bytes())?;
    let name = start[..equals].trim_end_matches(is_blank);
    let rest = trim_blanks(&start[equals + 1..]);
    let quote = rest.bytes().next().filter(|quote| matches!(quote, b'"' | b'\''))?;
    let end = 1 + memchr(quote, &rest.as_bytes()[1..])?;
    Some((name, &rest[1..end], &rest[end + 1..]))
}

/// `text` without leading blanks (XML 1.0 section 2.3, `S`).
pub(super) fn trim_blanks(text: &str) -> &str {
    text.trim_start_matches(is_blank)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Checks the text after `<?xml` (XML 1.0 section 2.8): the version, optionally an encoding whose bytes are read as
/// UTF-8, and optionally `standalone`. Other versions have other characters and line ends.
pub(super) fn declaration(text: &str) -> Option<()> {
    let (name, version, mut rest) = attribute(text)?;
    (name == "version" && version == "1.0").then_some(())?;
    for (optional, known) in [("encoding", ["utf-8", "us-ascii"]), ("standalone", ["yes", "no"])] {
        if let Some((_, value, after)) = attribute(rest).filter(|(name, ..)| *name == optional) {
            known.iter().any(|known| value.eq_ignore_ascii_case(known)).then_some(())?;
            rest = after;
        }
    }
    trim_blanks(rest).is_empty().then_some(())
}

/// The character of `&name;`.
pub(super) fn predefined(name: &str) -> Option<char> {
    let number = match name {
        "lt" => return Some('<'),
        "gt" => return Some('>'),
        "amp" => return Some('&'),
        "apos" => return Some('\''),
        "quot" => return Some('"'),
        _ => name.strip_prefix('#')?,
    };
    let code = match number.strip_prefix('x') {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u32::from_str_radix(hex, 16).ok()?,
        None if number.bytes().all(|byte| byte.is_ascii_digit()) => number.parse().ok()?,
        _ => return None,
    };
    char::from_u32(code).filter(|&c| match c {
        '\t' | '\n' | '\r' => true,
        _ => c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}'),
    })
}

/// An attribute's value with references replaced, line ends unified and blanks normalised (XML 1.0 sections 2.11 and
/// 3.3.3). `None` if the value is invalid: it has `<`, or a reference to an entity that is not predefined.
pub(super) fn unescape(raw: &str) -> Option<Cow<'_, str>> {
    if memchr2(b'<', b'&', raw.as_bytes()).is_none() && memchr3(b'\t', b'\r', b'\n', raw.as_bytes()).is_none()
    {
        return Some(Cow::Borrowed(raw));
    }
    if raw.contains('<') {
        return None;
    }
    let raw = raw.replace("\r\n", "\n");
    let blank = |c: char| if is_blank(c) { ' ' } else { c };
    let mut value = String::with_capacity(raw.len());
    let mut rest = raw.as_str();
    while let Some((before, reference)) = rest.split_once('&') {
        value.extend(before.chars().map(blank));
        let (name, after) = reference.split_once(';')?;
        value.push(predefined(name)?);
        rest = after;
    }
    value.extend(rest.chars().map(blank));
    Some(Cow::Owned(value))
}
