//! Values from a request's body, read in one streaming pass for all fields that the rule set names.
//!
//! `Content-Type` selects the parser, so that the rules read a body the way the server does. A body that the parser
//! cannot settle (malformed, cut off, compressed, too deep) is reported as such and never as "no value".

mod charset;
mod json;
mod markup;
mod multipart;
mod trie;
mod urlencoded;
mod xml;

pub(crate) use trie::Trie;
pub(crate) use urlencoded::{
    decode as decode_form, is_clear_name, is_clear_value, is_split_alike, percent_decode,
};

use std::collections::HashMap;

use charset::Charset;
use evergate_base::name::is_same;

use crate::field::{Field, FieldId, Fields, Format};
use crate::lang;
use crate::spec::Limits;

/// How far a body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To its end.
    Whole,
    /// To the end of the prefix: values found are valid, further values may follow.
    Cut,
    /// The body is malformed or over a limit: values found in it are not valid, because servers differ in how they
    /// repair it.
    Broken,
}

/// One value of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'v> {
    Text(&'v [u8]),
    /// An object, array or file: exists, but has no text.
    Opaque,
    /// Exists, but its text is unknown. The text is longer than the limit, contains NUL, or is in pieces that servers
    /// join differently; or only some servers treat the value as a file.
    Long,
}

/// Receives values as they are found.
pub(crate) trait Sink {
    fn value(&mut self, field: FieldId, value: Value<'_>);
}

impl<F: FnMut(FieldId, Value<'_>)> Sink for F {
    fn value(&mut self, field: FieldId, value: Value<'_>) {
        self(field, value);
    }
}

/// Media type of the body according to the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media<'a> {
    /// No parser may run: the fields have no value.
    Other,
    Json,
    Xml,
    UrlEncoded,
    Multipart(&'a [u8]),
    /// The given format, but text that is not ASCII is not UTF-8.
    Latin(Format),
    /// A type that only some servers read as the format: its fields are undecidable unless the body is empty.
    Doubtful(Format),
    /// Compressed, of several types, or of an unreadable type: the fields are undecidable.
    Opaque,
}

impl Media<'_> {
    pub(crate) fn of<'a>(headers: &[(&'a [u8], &'a [u8])]) -> Media<'a> {
        let mut content_type: Option<&'a [u8]> = None;
        let mut opaque = false;
        for &(name, value) in headers {
            if is_same(name, b"content-type") {
                let disguised = !name.eq_ignore_ascii_case(b"content-type");
                opaque |= disguised || content_type.is_some_and(|other| other != value);
                content_type = Some(value);
            } else if is_same(name, b"content-encoding") {
                let identity =
                    value.trim_ascii().is_empty() || value.trim_ascii().eq_ignore_ascii_case(b"identity");
                opaque |= !identity;
            }
        }
        let Some(value) = content_type else { return Media::Other };
        if opaque {
            return Media::Opaque;
        }
        let end = value.iter().position(|&byte| byte == b';').unwrap_or(value.len());
        let (essence, parameters) = (value[..end].trim_ascii(), &value[end..]);
        if !one_type(essence, parameters) {
            return Media::Opaque;
        }
        let is = |name: &str| essence.eq_ignore_ascii_case(name.as_bytes());
        let suffix = |name: &str| {
            essence
                .len()
                .checked_sub(name.len())
                .is_some_and(|at| essence[at..].eq_ignore_ascii_case(name.as_bytes()))
        };
        let media = if is("application/json") || is("text/json") || suffix("+json") {
            Media::Json
        } else if is("application/xml") || is("text/xml") || suffix("+xml") {
            Media::Xml
        } else if is("application/x-www-form-urlencoded") {
            Media::UrlEncoded
        } else if is("multipart/form-data") {
            multipart::boundary(parameters).map_or(Media::Opaque, Media::Multipart)
        } else {
            return taken_for(value);
        };
        // Some servers search the whole text for these.
        let reports_json = finds(parameters, b"/json") || finds(parameters, b"+json");
        if reports_json && media != Media::Json {
            return Media::Opaque;
        }
        match (Charset::of(parameters), media, media.format()) {
            (Charset::Utf8, ..) => media,
            (Charset::Latin, Media::Json | Media::Xml | Media::UrlEncoded, Some(format)) => {
                Media::Latin(format)
            }
            _ => Media::Opaque,
        }
    }

    /// Format of the fields that the body can have values of; `None` for no field, or for all if [`Media::Opaque`].
    pub(crate) fn format(self) -> Option<Format> {
        match self {
            Media::Json => Some(Format::Json),
            Media::Xml => Some(Format::Xml),
            Media::UrlEncoded | Media::Multipart(_) => Some(Format::Form),
            Media::Latin(format) | Media::Doubtful(format) => Some(format),
            Media::Other | Media::Opaque => None,
        }
    }
}

/// The format that lenient servers assume for an unregistered type: `application/x-json`, `application/jsonrequest`.
fn taken_for(content_type: &[u8]) -> Media<'static> {
    let has = |name: &str| {
        // Not within a word: the types of text documents contain `openxmlformats`.
        content_type.split(|byte| !byte.is_ascii_alphanumeric()).any(|word| {
            let length = name.len().min(word.len());
            let ends = [&word[..length], &word[word.len() - length..]];
            ends.iter().any(|end| end.eq_ignore_ascii_case(name.as_bytes()))
        })
    };
    match (has("json"), has("xml"), has("urlencoded") || has("multipart")) {
        (false, false, false) => Media::Other,
        (true, false, false) => Media::Doubtful(Format::Json),
        (false, true, false) => Media::Doubtful(Format::Xml),
        (false, false, true) => Media::Doubtful(Format::Form),
        _ => Media::Opaque,
    }
}

fn finds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

/// Whether a Content-Type is one media type (RFC 9110 section 8.3.1). Of a list, which also results from joining two
/// lines, servers use the first type, the last or none.
fn one_type(essence: &[u8], parameters: &[u8]) -> bool {
    let mut quoted = false;
    let listed = parameters.iter().any(|&byte| {
        quoted ^= byte == b'"';
        byte == b',' && !quoted
    });
    let Some(slash) = memchr::memchr(b'/', essence) else { return false };
    !listed && is_token(&essence[..slash]) && is_token(&essence[slash + 1..])
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| lang::is_token(byte))
}

/// The fields of bodies that a rule set uses.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    form: HashMap<Vec<u8>, FieldId>,
    json: Trie,
    xml: Trie,
}

impl Wanted {
    pub(crate) fn new(fields: &Fields) -> Wanted {
        let mut wanted = Wanted::default();
        for (id, field) in fields.iter() {
            match field {
                Field::Form(name) => drop(wanted.form.insert(name.clone().into_bytes(), id)),
                Field::Json(pointer) => {
                    let plain = |segment: &str| segment.replace("~1", "/").replace("~0", "~");
                    wanted.json.insert(pointer.split('/').skip(1).map(plain), id);
                }
                Field::Xml(path) => wanted.xml.insert(path.split('/').map(str::to_owned), id),
                _ => {}
            }
        }
        wanted
    }

    /// Reads `bytes`. `whole`: the body ends with them.
    pub(crate) fn read(
        &self,
        media: Media<'_>,
        bytes: &[u8],
        whole: bool,
        limits: &Limits,
        sink: &mut dyn Sink,
    ) -> Reach {
        if bytes.is_empty() {
            return if whole { Reach::Whole } else { Reach::Cut };
        }
        match media {
            Media::Json => json::read(&self.json, bytes, whole, limits, sink),
            Media::Xml => xml::read(&self.xml, bytes, whole, limits, sink),
            Media::UrlEncoded => urlencoded::read(&self.form, bytes, whole, limits, sink),
            Media::Multipart(boundary) => multipart::read(&self.form, boundary, bytes, whole, limits, sink),
            Media::Latin(format) => match format {
                Format::Form if !urlencoded::decode(bytes).is_ascii() => Reach::Broken,
                Format::Form => self.read(Media::UrlEncoded, bytes, whole, limits, sink),
                _ if !bytes.is_ascii() => Reach::Broken,
                Format::Json => self.read(Media::Json, bytes, whole, limits, sink),
                Format::Xml => self.read(Media::Xml, bytes, whole, limits, sink),
            },
            Media::Doubtful(_) | Media::Opaque => Reach::Broken,
            Media::Other => Reach::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted() -> Wanted {
        let mut fields = Fields::new();
        for field in [
            Field::Form("a".into()),
            Field::Json("/a/0/b".into()),
            Field::Json("/a".into()),
            Field::Xml("a/b".into()),
            Field::Xml("a/@b".into()),
        ] {
            fields.intern(field);
        }
        Wanted::new(&fields)
    }

    #[test]
    fn content_type_selects_the_parser() {
        let media = |text: &'static str| Media::of(&[(b"Content-Type", text.as_bytes())]);
        assert_eq!(media("application/json; charset=utf-8"), Media::Json);
        assert_eq!(media("application/soap+xml"), Media::Xml);
        assert_eq!(media("Application/X-WWW-Form-Urlencoded"), Media::UrlEncoded);
        assert_eq!(media("multipart/form-data; boundary=\"x y\""), Media::Multipart(b"x y"));
        assert_eq!(media("multipart/form-data"), Media::Opaque);
        assert_eq!(media("text/plain"), Media::Other);
        assert_eq!(Media::of(&[]), Media::Other);
    }

    #[test]
    fn ambiguous_content_type_leaves_fields_undecidable() {
        let media = |text: &'static str| Media::of(&[(b"Content-Type", text.as_bytes())]);
        for (text, format) in [
            ("text/x-json", Format::Json),
            ("application/jsonrequest", Format::Json),
            ("Application/JSONx", Format::Json),
            ("application/x-ndjson", Format::Json),
            ("x/y; z=/json", Format::Json),
            ("application/x-xml", Format::Xml),
            ("multipart/mixed; boundary=x", Format::Form),
            ("application/x-urlencoded", Format::Form),
        ] {
            assert_eq!(media(text), Media::Doubtful(format), "{text}");
            let read = |body: &[u8]| {
                wanted().read(media(text), body, true, &Limits::default(), &mut |_, _: Value<'_>| ())
            };
            assert_eq!((read(b"{\"a\":1}"), read(b"")), (Reach::Broken, Reach::Whole), "{text}");
        }
        for text in ["text/xml; z=/json", "multipart/form-data; boundary=x; z=a+JSON", "x/json-xml"] {
            assert_eq!(media(text), Media::Opaque, "{text}");
        }
        for text in ["application/vnd.openxmlformats-officedocument", "text/plain; format=flowed", "a/jsn"] {
            assert_eq!(media(text), Media::Other, "{text}");
        }
        assert_eq!(media("multipart/form-data; boundary=aXMLb"), Media::Multipart(b"aXMLb"));
    }

    #[test]
    fn charset_that_changes_the_text_is_opaque() {
        let media = |text: &'static str| Media::of(&[(b"Content-Type", text.as_bytes())]);
        for text in [
            "application/json",
            "text/xml",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
        ] {
            for charset in ["utf-7", "ibm037", "utf-16le"] {
                let text = format!("{text}; charset={charset}").leak();
                assert_eq!(media(text), Media::Opaque, "{text}");
            }
        }
        assert_eq!(media("text/plain; charset=utf-7"), Media::Other);
        let latin = "application/x-www-form-urlencoded; charset=ISO-8859-1";
        assert_eq!(media(latin), Media::Latin(Format::Form));
        let read = |body: &[u8]| {
            let mut found = 0;
            let reach =
                wanted()
                    .read(media(latin), body, true, &Limits::default(), &mut |_, _: Value<'_>| found += 1);
            (reach, found)
        };
        assert_eq!(read(b"a=b"), (Reach::Whole, 1));
        assert_eq!(read(b"a=%E9"), (Reach::Broken, 0));
        assert_eq!(read(b"a=\xE9"), (Reach::Broken, 0));
    }

    #[test]
    fn compressed_and_contradictory_bodies_are_opaque() {
        let json: (&[u8], &[u8]) = (b"content-type", b"application/json");
        assert_eq!(Media::of(&[json, (b"content-encoding", b"gzip")]), Media::Opaque);
        assert_eq!(Media::of(&[json, (b"Content-Encoding", b"identity")]), Media::Json);
        assert_eq!(Media::of(&[json, (b"content-type", b"text/xml")]), Media::Opaque);
    }

    #[test]
    fn type_or_encoding_seen_by_some_servers_is_opaque() {
        let json: (&[u8], &[u8]) = (b"Content-Type", b"application/json");
        let other: (&[u8], &[u8]) = (b"Content-Type", b"text/plain");
        let underscored: (&[u8], &[u8]) = (b"Content_Type", b"application/json");
        let dotted: (&[u8], &[u8]) = (b"Content.Type", b"application/json");
        for headers in [vec![underscored], vec![dotted], vec![json, underscored], vec![underscored, other]] {
            assert_eq!(Media::of(&headers), Media::Opaque, "{headers:?}");
        }
        assert_eq!(Media::of(&[json, (b"CONTENT_ENCODING", b"gzip")]), Media::Opaque);
        assert_eq!(Media::of(&[json, (b"Content_Encoding", b"identity")]), Media::Json);
        assert_eq!(Media::of(&[json, (b"ContentXType", b"text/xml")]), Media::Json);
    }

    #[test]
    fn content_type_other_than_one_type_is_opaque() {
        for text in [
            "application/json, text/plain",
            "application/json; charset=utf-8, text/plain",
            "application/json text/plain",
            "application/json/x",
            "json",
            "/json",
            "application/",
            "application /json",
            "",
        ] {
            let media = Media::of(&[(b"Content-Type", text.as_bytes())]);
            assert_eq!(media, Media::Opaque, "{text}");
        }
        for text in ["application/json; x=\"a, b\"", " application/json ;", "application/vnd.a!b+json"] {
            assert_eq!(Media::of(&[(b"content-type", text.as_bytes())]), Media::Json, "{text}");
        }
    }

    fn alphabet() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<u8>().prop_map(|byte| vec![byte]),
            prop::sample::select(vec![
                "{",
                "}",
                "[",
                "]",
                ":",
                ",",
                "\"a\"",
                "\"",
                "\\u12",
                "\\ud800",
                "1e",
                "-",
                "true",
                "nul",
                "<a>",
                "</a>",
                "<b c='",
                "<![CDATA[",
                "]]>",
                "&amp;",
                "&#x0;",
                "&#",
                "<!--",
                "<?",
                "<!DOCTYPE a [",
                "a=",
                "&",
                "%4",
                "+",
                "\r\n",
                "--x",
                "Content-Disposition: form-data; name=",
                "\"",
                ";",
            ])
            .prop_map(|text| text.as_bytes().to_vec()),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn parsers_never_panic_and_prefixes_never_add_values(bytes in alphabet(), cut in 0usize..200) {
            let wanted = wanted();
            for media in [Media::Json, Media::Xml, Media::UrlEncoded, Media::Multipart(b"x")] {
                let mut values = Vec::new();
                let mut keep = |field, value: Value<'_>| values.push((field, format!("{value:?}")));
                let reach = wanted.read(media, &bytes, true, &Limits::default(), &mut keep);
                let mut early = Vec::new();
                let mut keep = |field, value: Value<'_>| early.push((field, format!("{value:?}")));
                let cut = cut.min(bytes.len());
                let cut_reach = wanted.read(media, &bytes[..cut], false, &Limits::default(), &mut keep);
                prop_assert_ne!(cut_reach, Reach::Whole);
                if reach == Reach::Whole && cut < bytes.len() {
                    prop_assert_eq!(cut_reach, Reach::Cut, "{:?}", media);
                    let kept = early.iter().all(|value| values.contains(value));
                    prop_assert!(kept, "{:?} {:?} {:?}", media, early, values);
                }
            }
        }
    }
}
