//! `multipart/form-data` (RFC 7578): simple fields are values, files exist without a value.

use std::collections::HashMap;

use memchr::memmem;

use super::{Reach, Sink, Value};
use crate::field::FieldId;
use crate::spec::Limits;

/// Bytes of one part's header block.
const PART_HEAD_MAX: usize = 4096;

/// The `boundary` among the parameters of a Content-Type (RFC 2046 section 5.1.1: 1 to 70 characters).
pub(super) fn boundary(text: &[u8]) -> Option<&[u8]> {
    let mut boundary = None;
    parameters(text, |name, value| match name.eq_ignore_ascii_case(b"boundary") {
        true => once(&mut boundary, value),
        false => Some(()),
    })?;
    boundary.filter(|value| !value.is_empty() && value.len() <= 70)
}

/// Keeps a value that may be given once: parsers differ about which of several counts.
fn once<'a>(kept: &mut Option<&'a [u8]>, value: &'a [u8]) -> Option<()> {
    kept.replace(value).is_none().then_some(())
}

/// Gives `take` the name and value of each parameter, the first `;` included in `rest`. `None` if `take` says so, or
/// if the parameters are not understood. Quoted values with escapes are refused: parsers differ about them.
fn parameters<'a>(mut rest: &'a [u8], mut take: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>) -> Option<()> {
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
    let ran_out = if whole { Reach::Broken } else { Reach::Cut };
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first delimiter may stand at the very start, without its line end.
    let mut rest = match bytes.strip_prefix(&delimiter[2..]) {
        Some(rest) => rest,
        None => match finder.find(bytes) {
            Some(at) => &bytes[at + delimiter.len()..],
            None => return ran_out,
        },
    };
    for _ in 0..limits.body_parts_max {
        if rest.starts_with(b"--") {
            // What follows the last delimiter is ignored (RFC 2046 section 5.1).
            return if whole { Reach::Whole } else { Reach::Cut };
        }
        let padding = rest.iter().position(|&byte| byte != b' ' && byte != b'\t').unwrap_or(rest.len());
        let Some(part) = rest[padding..].strip_prefix(b"\r\n") else {
            return if rest.len() - padding < 2 { ran_out } else { Reach::Broken };
        };
        let Some(head_end) = memmem::find(&part[..part.len().min(PART_HEAD_MAX)], b"\r\n\r\n") else {
            return if part.len() >= PART_HEAD_MAX { Reach::Broken } else { ran_out };
        };
        let Some((name, file)) = head(&part[..head_end]) else { return Reach::Broken };
        // A delimiter may follow the head directly: its line end is then the head's.
        let content = &part[head_end + 2..];
        let Some(end) = finder.find(content) else { return ran_out };
        let value = content.get(2..end).unwrap_or_default();
        if let Some(&field) = wanted.get(name) {
            sink.value(
                field,
                match file {
                    true => Value::Opaque,
                    false if value.len() > limits.body_value_bytes_max => Value::Long,
                    false => Value::Text(value),
                },
            );
        }
        rest = &content[end + delimiter.len()..];
    }
    Reach::Broken
}

/// Name of a part, and whether it is a file. `None` if the head is not understood.
fn head(head: &[u8]) -> Option<(&[u8], bool)> {
    let mut found = None;
    for line in head.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-disposition") {
            if found.is_some() {
                return None;
            }
            found = Some(disposition(value)?);
        } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
            let plain = [b"7bit".as_slice(), b"8bit", b"binary"];
            plain.iter().find(|plain| value.eq_ignore_ascii_case(plain))?;
        }
    }
    found
}

/// Name, and whether it is a file, of a part that belongs to a form.
fn disposition(value: &[u8]) -> Option<(&[u8], bool)> {
    let end = memchr::memchr(b';', value)?;
    if !value[..end].trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut file) = (None, false);
    parameters(&value[end..], |parameter, value| {
        if parameter.eq_ignore_ascii_case(b"name") {
            return once(&mut name, value);
        }
        file |=
            [b"filename".as_slice(), b"filename*"].iter().any(|file| parameter.eq_ignore_ascii_case(file));
        Some(())
    })?;
    Some((name?, file))
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
    fn every_cut_is_a_cut_and_never_the_whole() {
        for cut in 0..BODY.len() - 6 {
            assert_eq!(values(&BODY[..cut], false).0, Reach::Cut, "at {cut}");
            assert_eq!(values(&BODY[..cut], true).0, Reach::Broken, "at {cut}");
        }
    }

    #[test]
    fn heads_that_servers_read_differently_are_broken() {
        for head in [
            "Content-Disposition: form-data; name=\"a\\\"b\"",
            "nonsense",
            "Content-Disposition: attachment; name=a",
        ] {
            assert_eq!(values(&format!("--x\r\n{head}\r\n\r\n1\r\n--x--"), true).0, Reach::Broken, "{head}");
        }
    }

    #[test]
    fn only_a_parameter_named_filename_makes_a_file() {
        for (head, file) in [
            ("name=a; filename=f", true),
            ("FileName=\"\"; name=\"a\"", true),
            ("name=a; filename*=utf-8''f", true),
            ("name=\"a\"; xfilename=1", false),
            ("name=a; filenames=1", false),
            ("name=a; x=\"; filename=f\"", false),
        ] {
            let body = format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n1\r\n--x--");
            let value = if file { Value::Opaque } else { Value::Text(b"1") };
            assert_eq!(values(&body, true), (Reach::Whole, vec![format!("{value:?}")]), "{head}");
        }
        for name in ["filename", "myfilename"] {
            let body = format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n1\r\n--x--");
            assert_eq!(values_of(name, &body, true).1, [format!("{:?}", Value::Text(b"1"))], "{name}");
        }
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let body = "--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--x--";
        assert_eq!(values(body, true), (Reach::Whole, vec![format!("{:?}", Value::Text(b""))]));
    }
}
