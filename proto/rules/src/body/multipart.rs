//! `multipart/form-data` (RFC 7578): simple fields are values, files exist without a value.
//!
//! Some servers search for lines and substrings instead of following the grammar of the RFCs. A body in which they
//! could find other fields than a strict reader is broken, like a malformed one.

use std::collections::HashMap;

use memchr::memmem;

use super::charset::Charset;
use super::{Reach, Sink, Value, is_token};
use crate::field::FieldId;
use crate::spec::Limits;

/// Limit of one part's header block, in bytes.
const PART_HEAD_MAX: usize = 4096;

/// The `boundary` parameter of a Content-Type (RFC 2046 section 5.1.1: 1 to 70 characters).
pub(super) fn boundary(text: &[u8]) -> Option<&[u8]> {
    let mut boundary = None;
    parameters(text, |name, value| {
        if name.eq_ignore_ascii_case(b"boundary") {
            return once(&mut boundary, value);
        }
        // Some servers use the first occurrence of the word, wherever it is.
        (boundary.is_some() || !mentions_boundary(name) && !mentions_boundary(value)).then_some(())
    })?;
    boundary.filter(|value| !value.is_empty() && value.len() <= 70)
}

fn mentions_boundary(text: &[u8]) -> bool {
    memmem::find(&text.to_ascii_lowercase(), b"boundary").is_some()
}

/// Stores a value that may be given once: parsers differ about which of several counts.
fn once<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

/// Calls `take` with the name and value of each parameter; `rest` starts with the first `;`. Returns `None` if `take`
/// does, or if parsers differ about the parameters. They differ about escapes in quoted values, about the end of other
/// values, and about names that are not tokens. They also differ about encoded or continued values (RFC 2231), except
/// for `filename*`.
pub(super) fn parameters<'a>(
    mut rest: &'a [u8],
    mut take: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>,
) -> Option<()> {
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(());
        }
        rest = rest.strip_prefix(b";")?.trim_ascii_start();
        if rest.is_empty() {
            return Some(());
        }
        let equals = memchr::memchr(b'=', rest)?;
        let name = rest[..equals].trim_ascii();
        if !is_token(name) || (name.contains(&b'*') && !name.eq_ignore_ascii_case(b"filename*")) {
            return None;
        }
        rest = &rest[equals + 1..];
        let value;
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let end = memchr::memchr(b'"', quoted)?;
            value = &quoted[..end];
            if value.contains(&b'\\') {
                return None;
            }
            rest = &quoted[end + 1..];
        } else {
            let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
            value = rest[..end].trim_ascii();
            // An encoded value has two apostrophes (RFC 8187); elsewhere some servers read them as quotes.
            let apostrophes = if name.ends_with(b"*") { 2 } else { 0 };
            if value.iter().any(|byte| b"\",\\ \t".contains(byte))
                || value.iter().filter(|&&byte| byte == b'\'').count() != apostrophes
            {
                return None;
            }
            rest = &rest[end..];
        }
        take(name, value)?;
    }
}

pub(super) fn read(
    wanted: &HashMap<Vec<u8>, FieldId>,
    boundary: &[u8],
    bytes: &[u8],
    whole: bool,
    limits: &Limits,
    sink: &mut dyn Sink,
) -> Reach {
    let marker = [b"--", boundary].concat();
    let ran_out = if whole { Reach::Broken } else { Reach::Cut };
    let delimiters = Delimiters { finder: memmem::Finder::new(&marker), bytes, ran_out };
    walk(wanted, &delimiters, whole, limits, sink).unwrap_or_else(|reach| reach)
}

/// The delimiters of a body, in order.
struct Delimiters<'b> {
    finder: memmem::Finder<'b>,
    bytes: &'b [u8],
    /// Result when no further delimiter is found.
    ran_out: Reach,
}

impl Delimiters<'_> {
    /// Position of the next delimiter. It stands at the start of the body or of a line after CRLF. Servers that accept
    /// it after a bare LF, or within a line, would find other parts, so a delimiter there breaks the body.
    fn next(&self, from: usize) -> Result<usize, Reach> {
        let at = from + self.finder.find(&self.bytes[from..]).ok_or(self.ran_out)?;
        if at == 0 || self.bytes[..at].ends_with(b"\r\n") { Ok(at) } else { Err(Reach::Broken) }
    }

    fn within(&self, bytes: &[u8]) -> bool {
        self.finder.find(bytes).is_some()
    }
}

/// Visits the parts; returns how far they go, or why they end early.
fn walk(
    wanted: &HashMap<Vec<u8>, FieldId>,
    delimiters: &Delimiters<'_>,
    whole: bool,
    limits: &Limits,
    sink: &mut dyn Sink,
) -> Result<Reach, Reach> {
    let bytes = delimiters.bytes;
    let mut at = delimiters.next(0)?;
    for _ in 0..limits.body_parts_max {
        let rest = &bytes[at + delimiters.finder.needle().len()..];
        if rest.starts_with(b"--") {
            // The text after the last delimiter is ignored (RFC 2046 section 5.1), but some servers read parts in it.
            return match delimiters.within(rest) {
                true => Err(Reach::Broken),
                false => Ok(if whole { Reach::Whole } else { Reach::Cut }),
            };
        }
        let (part, start) = part(delimiters, rest)?;
        at = delimiters.next(start)?;
        // A delimiter may follow the head directly: its line end is then the head's.
        let value = bytes.get(start..at - 2).unwrap_or_default();
        // RFC 7578 section 4.6: the charset of all fields without a charset of their own.
        if part.name == b"_charset_" && Charset::named(value) != Charset::Utf8 {
            return Err(Reach::Broken);
        }
        if let Some(&field) = wanted.get(part.name) {
            if part.file.is_none() && memchr::memchr(0, value).is_some() {
                return Err(Reach::Broken); // some servers end the value there
            }
            sink.value(
                field,
                match part.file {
                    Some(file) => file,
                    None if value.len() > limits.body_value_bytes_max => Value::Long,
                    None if !part.charset.agrees_on(value) => Value::Long,
                    None => Value::Text(value),
                },
            );
        }
    }
    Err(Reach::Broken)
}

/// The part whose head begins in `rest`, right after its delimiter, and the position of its value in the body.
fn part<'b>(delimiters: &Delimiters<'_>, rest: &'b [u8]) -> Result<(Part<'b>, usize), Reach> {
    let padding = rest.iter().position(|&byte| byte != b' ' && byte != b'\t').unwrap_or(rest.len());
    let Some(part) = rest[padding..].strip_prefix(b"\r\n") else {
        return Err(if rest.len() - padding < 2 { delimiters.ran_out } else { Reach::Broken });
    };
    let Some(end) = memmem::find(&part[..part.len().min(PART_HEAD_MAX)], b"\r\n\r\n") else {
        return Err(if part.len() >= PART_HEAD_MAX { Reach::Broken } else { delimiters.ran_out });
    };
    let clean = !delimiters.within(&part[..end]);
    let part_head = head(&part[..end]).filter(|_| clean).ok_or(Reach::Broken)?;
    Ok((part_head, delimiters.bytes.len() - part.len() + end + 4))
}

/// Properties from a part's head.
struct Part<'b> {
    name: &'b [u8],
    /// The value in place of the text if the part may be a file.
    file: Option<Value<'static>>,
    /// The charset of its text.
    charset: Charset,
}

/// Reads a part's head. `None` if servers may read it differently.
fn head(head: &[u8]) -> Option<Part<'_>> {
    let (mut found, mut charset) = (None, None);
    for line in head.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        // Servers differ about leading blanks, which continue the line above, about blanks before the colon and about
        // bare CRs.
        if !is_token(name) || line.contains(&b'\r') {
            return None;
        }
        if name.eq_ignore_ascii_case(b"content-disposition") {
            if found.is_some() {
                return None;
            }
            found = Some(disposition(value)?);
        } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
            let plain = [b"7bit".as_slice(), b"8bit", b"binary"];
            plain.iter().find(|plain| value.eq_ignore_ascii_case(plain))?;
        } else if name.eq_ignore_ascii_case(b"content-type") {
            let parameters = memchr::memchr(b';', value).map_or(&b""[..], |at| &value[at..]);
            charset.replace(Charset::of(parameters)).is_none().then_some(())?;
        }
    }
    found.map(|part| Part { charset: charset.unwrap_or(Charset::Utf8), ..part })
}

/// Reads the Content-Disposition of a part of a form.
fn disposition(value: &[u8]) -> Option<Part<'_>> {
    let end = memchr::memchr(b';', value)?;
    if !value[..end].trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut file, mut nameless, mut encoded) = (None, false, false, false);
    parameters(&value[end..], |parameter, value| {
        if parameter.eq_ignore_ascii_case(b"filename") {
            file = true;
            nameless |= value.is_empty();
        }
        encoded |= parameter.eq_ignore_ascii_case(b"filename*");
        if parameter.eq_ignore_ascii_case(b"name") { once(&mut name, value) } else { Some(()) }
    })?;
    // RFC 7578 section 4.2 forbids `filename*`: some servers read a file there, others a text. The same holds for an
    // empty `filename`, which browsers send when no file was chosen.
    let file = match file && !nameless {
        true => Some(Value::Opaque),
        false => (nameless || encoded).then_some(Value::Long),
    };
    let name = name.filter(|name| is_clear(name))?;
    Some(Part { name, file, charset: Charset::Utf8 })
}

/// Whether all servers read the same name. Some drop a leading blank, and stop at control characters or drop them. Some
/// decode encoded words of mail (RFC 2047); browsers send none.
fn is_clear(name: &[u8]) -> bool {
    !name.starts_with(b" ") && !name.iter().any(u8::is_ascii_control) && memmem::find(name, b"=?").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(body: &str, whole: bool) -> (Reach, Vec<String>) {
        values_of("a", body, whole)
    }

    fn values_of(name: &str, body: &str, whole: bool) -> (Reach, Vec<String>) {
        let wanted = HashMap::from([(name.as_bytes().to_vec(), 1)]);
        let mut found = Vec::new();
        let mut keep = |_, value: Value<'_>| found.push(format!("{value:?}"));
        let reach = read(&wanted, b"x", body.as_bytes(), whole, &Limits::default(), &mut keep);
        (reach, found)
    }

    const BODY: &str = "--x\r\nContent-Disposition: form-data; name=\"b\"\r\n\r\n1\r\n--x\r\n\
        content-disposition: form-data; name=a\r\nContent-Type: text/plain\r\n\r\nline\r\ntwo\r\n--x\r\n\
        Content-Disposition: form-data; name=\"a\"; filename=\"f.txt\"\r\n\r\nfile\r\n--x--\r\n";

    #[test]
    fn fields_are_values_and_files_only_exist() {
        let text = format!("{:?}", Value::Text(b"line\r\ntwo"));
        assert_eq!(values(BODY, true), (Reach::Whole, vec![text, "Opaque".into()]));
    }

    #[test]
    fn text_in_another_charset_is_unknown() {
        let of = |content_type: &str, value: &str| {
            let head = format!("Content-Disposition: form-data; name=a\r\nContent-Type: {content_type}");
            values(&format!("--x\r\n{head}\r\n\r\n{value}\r\n--x--\r\n"), true)
        };
        let text = |text: &str| (Reach::Whole, vec![format!("{:?}", Value::Text(text.as_bytes()))]);
        assert_eq!(of("text/plain; charset=UTF-8", "\u{e9}"), text("\u{e9}"));
        assert_eq!(of("text/plain; charset=ISO-8859-1", "x"), text("x"));
        for (content_type, value) in
            [("text/plain; charset=ISO-8859-1", "\u{e9}"), ("text/plain; charset=utf-7", "+AHg-")]
        {
            assert_eq!(of(content_type, value), (Reach::Whole, vec!["Long".into()]), "{content_type}");
        }
        assert_eq!(of("text/plain\r\nContent-Type: text/plain", "x").0, Reach::Broken);
        let named = |charset: &str| {
            let part = |name: &str, value: &str| {
                format!("--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n")
            };
            values(&format!("{}{}--x--\r\n", part("_charset_", charset), part("a", "b")), true).0
        };
        assert_eq!((named("utf-8"), named("utf-7")), (Reach::Whole, Reach::Broken));
    }

    #[test]
    fn every_cut_is_reported_as_cut() {
        for cut in 0..BODY.len() - 6 {
            assert_eq!(values(&BODY[..cut], false).0, Reach::Cut, "at {cut}");
            assert_eq!(values(&BODY[..cut], true).0, Reach::Broken, "at {cut}");
        }
    }

    #[test]
    fn ambiguous_part_heads_break_the_body() {
        for head in [
            "Content-Disposition: form-data; name=\"a\\\"b\"",
            "Content-Disposition: form-data; name=\"a\0\"",
            "Content-Disposition: form-data; name=\"\ta\"",
            "Content-Disposition: form-data; name=\"a\0b\"",
            "Content-Disposition: form-data; name=\" a\"",
            "Content-Disposition: form-data; name=\"=?utf-8?q?a?=\"",
            "nonsense",
            "Content-Disposition: attachment; name=a",
            "Content-Disposition: form-data; name=b; name*=utf-8''a",
            "Content-Disposition: form-data; name*0=a; name=b",
            "Content-Disposition: form-data; name=b; filename*0=f",
            "Content-Disposition: form-data; filename*=x';name=\"q';name=a;\"",
            "Content-Disposition: form-data; name=b; x; name=a",
            "Content-Disposition: form-data; name=b\";x=\";name=a;\"",
            "Content-Disposition: form-data; name='a'",
            "Content-Disposition: form-data; name=b,name=a",
            "Content-Disposition: form-data; name=b;\r\n name=\"a:\"",
            "Content-Disposition : form-data; name=a\r\nContent-Disposition: form-data; name=b",
            "x: y\rContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b",
        ] {
            assert_eq!(values(&format!("--x\r\n{head}\r\n\r\n1\r\n--x--"), true).0, Reach::Broken, "{head}");
        }
    }

    #[test]
    fn value_that_some_servers_end_early_breaks_the_body() {
        let of = |name: &str, value: &str| {
            let head = format!("Content-Disposition: form-data; name={name}");
            values(&format!("--x\r\n{head}\r\n\r\n{value}\r\n--x--\r\n"), true).0
        };
        assert_eq!(of("a", "admin\0"), Reach::Broken);
        assert_eq!(of("a; filename=f", "\0"), Reach::Whole, "a file");
        assert_eq!(of("b", "\0"), Reach::Whole, "no rule asks");
    }

    #[test]
    fn ambiguous_boundary_is_none() {
        for (text, expected) in [
            ("; boundary=----=_Part/1.2:3?", Some("----=_Part/1.2:3?")),
            (";charset=utf-8; BOUNDARY=\"x, y\" ;", Some("x, y")),
            ("; boundary=x,y", None),
            ("; boundary=x y", None),
            ("; boundary='x'", None),
            ("; boundary=x\"y\"", None),
            ("; boundary=x; boundary=y", None),
            ("; boundary*=utf-8''y; boundary=x", None),
            ("; xboundary=y; boundary=x", None),
            ("; x=\"Boundary=y\"; boundary=x", None),
            ("; boundary=my-boundary; x=boundary", Some("my-boundary")),
            ("; boundary=\"\"", None),
        ] {
            assert_eq!(boundary(text.as_bytes()), expected.map(str::as_bytes), "{text}");
        }
    }

    #[test]
    fn only_a_filename_parameter_makes_a_file() {
        let text = Value::Text(b"1");
        for (head, value) in [
            ("name=a; filename=f", Value::Opaque),
            ("FileName=\"f\"; name=\"a\"", Value::Opaque),
            ("filename=\"\"; name=\"a\"", Value::Long),
            ("name=a; filename=; filename*=utf-8''f", Value::Long),
            ("name=a; filename=\"\"; filename=f", Value::Long),
            ("name=a; filename*=utf-8''f; filename=f", Value::Opaque),
            ("name=a; filename*=utf-8''f", Value::Long),
            ("name=\"a\"; xfilename=1", text),
            ("name=a; filenames=1", text),
            ("name=a; x=\"; filename=f\"", text),
        ] {
            let body = format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n1\r\n--x--");
            assert_eq!(values(&body, true), (Reach::Whole, vec![format!("{value:?}")]), "{head}");
        }
        for name in ["filename", "myfilename"] {
            let body = format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n1\r\n--x--");
            assert_eq!(values_of(name, &body, true).1, [format!("{:?}", Value::Text(b"1"))], "{name}");
        }
    }

    const PART: &str = "Content-Disposition: form-data; name=a\r\n\r\n1\r\n";

    #[test]
    fn delimiters_of_lenient_servers_break_the_body() {
        let hidden = "Content-Disposition: form-data; name=b\r\n\r\n";
        for body in [
            // After a bare LF or CR, or within a line: in the preamble, in a value, in a head, after the end.
            format!("\n--x\r\n{PART}--x--\r\n"),
            format!("preamble\n--x\r\n{hidden}1\r\n--x\r\n{PART}--x--\r\n"),
            format!("--x\r\n{hidden}1\n--x\r\n{PART}--x--\r\n"),
            format!("--x\r\n{hidden}1\r--x\r\n{PART}--x--\r\n"),
            format!("--x\r\n{hidden}see --x\r\n{PART}--x--\r\n"),
            format!("--x\r\ny: z\n--x\n{PART}--x--\r\n"),
            format!("--x\r\ny: --x\r\n{PART}--x--\r\n"),
            format!("--x\r\n{hidden}1\r\n--x--\r\n--x\r\n{PART}--x--\r\n"),
            format!("--x\r\n{hidden}1\r\n--x--\n--x\n{PART}"),
            format!("--x\r\n{hidden}1\r\n--x--x--x"),
        ] {
            assert_eq!(values(&body, true).0, Reach::Broken, "{body:?}");
        }
    }

    #[test]
    fn lines_outside_the_delimiters_are_ignored() {
        let body = format!("preamble\n-x\r\n--x\r\n{PART}--x--\r\nepilogue\n");
        assert_eq!(values(&body, true), (Reach::Whole, vec![format!("{:?}", Value::Text(b"1"))]));
    }

    #[test]
    fn empty_value_is_a_value() {
        let body = "--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--x--";
        assert_eq!(values(body, true), (Reach::Whole, vec![format!("{:?}", Value::Text(b""))]));
    }
}
