//! Streaming JSON reader (RFC 8259): validates the text and follows the wanted pointers without building a tree.
//!
//! The depth limit bounds recursion. Numbers, `true`, `false` and `null` are values by their text; objects and arrays
//! exist without text. U+0000 ends a string for some servers. A value that contains it is therefore unknown, and a name
//! that contains it and could be a wanted name breaks the body.

use super::trie::{Node, Trie};
use super::{Reach, Sink, Value};
use crate::spec::Limits;

pub(super) fn read(wanted: &Trie, bytes: &[u8], whole: bool, limits: &Limits, sink: &mut dyn Sink) -> Reach {
    // A server may ignore a byte order mark (RFC 8259, section 8.1): servers that accept it read the same values.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Err(error) if whole || error.error_len().is_some() => return Reach::Broken,
        _ => {}
    }
    let mut reader = Reader { bytes, at: 0, whole, wanted, limits, sink, buffer: Vec::new(), nul: false };
    match reader.document() {
        Ok(()) if whole => Reach::Whole,
        Ok(()) => Reach::Cut,
        Err(Stop::End) if !whole => Reach::Cut,
        Err(_) => Reach::Broken,
    }
}

enum Stop {
    /// The bytes ended.
    End,
    /// Not JSON, or over a limit.
    Malformed,
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    whole: bool,
    wanted: &'b Trie,
    limits: &'b Limits,
    sink: &'b mut dyn Sink,
    /// The last decoded string, and whether it has U+0000.
    buffer: Vec<u8>,
    nul: bool,
}

impl<'b> Reader<'b> {
    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::End)
    }

    fn blank(&mut self) -> Result<u8, Stop> {
        while matches!(self.peek()?, b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        self.peek()
    }

    fn document(&mut self) -> Result<(), Stop> {
        self.value(self.wanted.root(), 0)?;
        match self.blank() {
            Err(Stop::End) => Ok(()),
            _ => Err(Stop::Malformed),
        }
    }

    fn value(&mut self, node: Option<Node>, depth: usize) -> Result<(), Stop> {
        let field = self.wanted.field(node);
        match self.blank()? {
            open @ (b'{' | b'[') => {
                if depth >= self.limits.body_depth_max {
                    return Err(Stop::Malformed);
                }
                if let Some(field) = field {
                    self.sink.value(field, Value::Opaque);
                }
                self.at += 1;
                if open == b'{' { self.object(node, depth + 1) } else { self.array(node, depth + 1) }
            }
            b'"' => {
                let long = self.string(field.is_some(), self.limits.body_value_bytes_max)?;
                if let Some(field) = field {
                    let unknown = long || self.nul;
                    self.sink.value(field, if unknown { Value::Long } else { Value::Text(&self.buffer) });
                }
                Ok(())
            }
            b't' => self.word(b"true", field),
            b'f' => self.word(b"false", field),
            b'n' => self.word(b"null", field),
            b'-' | b'0'..=b'9' => {
                let start = self.at;
                self.number()?;
                if let Some(field) = field {
                    let long = self.at - start > self.limits.body_value_bytes_max;
                    let text = Value::Text(&self.bytes[start..self.at]);
                    self.sink.value(field, if long { Value::Long } else { text });
                }
                Ok(())
            }
            _ => Err(Stop::Malformed),
        }
    }

    fn object(&mut self, node: Option<Node>, depth: usize) -> Result<(), Stop> {
        if self.blank()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.blank()? != b'"' {
                return Err(Stop::Malformed);
            }
            // Wanted names have at most 256 bytes, so a longer key is none of them.
            let wanted = self.wanted.has_children(node);
            let long = self.string(wanted, 1024)?;
            if wanted && self.nul {
                return Err(Stop::Malformed);
            }
            let child = if long { None } else { self.wanted.child(node, &self.buffer) };
            if self.blank()? != b':' {
                return Err(Stop::Malformed);
            }
            self.at += 1;
            self.value(child, depth)?;
            if !self.separator(b'}')? {
                return Ok(());
            }
        }
    }

    fn array(&mut self, node: Option<Node>, depth: usize) -> Result<(), Stop> {
        if self.blank()? == b']' {
            self.at += 1;
            return Ok(());
        }
        for index in 0usize.. {
            let child = match self.wanted.has_children(node) {
                true => self.wanted.child(node, index.to_string().as_bytes()),
                false => None,
            };
            self.value(child, depth)?;
            if !self.separator(b']')? {
                break;
            }
        }
        Ok(())
    }

    /// Whether another element follows.
    fn separator(&mut self, close: u8) -> Result<bool, Stop> {
        let byte = self.blank()?;
        self.at += 1;
        match byte {
            b',' => Ok(true),
            _ if byte == close => Ok(false),
            _ => Err(Stop::Malformed),
        }
    }

    /// Reads `word`; fails when the bytes differ or end within it.
    fn word(&mut self, word: &'static [u8], field: Option<u32>) -> Result<(), Stop> {
        let rest = &self.bytes[self.at..];
        if !rest.starts_with(word) {
            return Err(if word.starts_with(rest) { Stop::End } else { Stop::Malformed });
        }
        self.at += word.len();
        if let Some(field) = field {
            self.sink.value(field, Value::Text(word));
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Stop> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        match self.at > start {
            true => Ok(()),
            false => self.peek().and(Err(Stop::Malformed)),
        }
    }

    fn number(&mut self) -> Result<(), Stop> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        // At the cut, more digits may follow.
        if self.at == self.bytes.len() && !self.whole { Err(Stop::End) } else { Ok(()) }
    }

    /// Reads a string at `"`, into the buffer if `keep`. Returns whether it is longer than `max`.
    fn string(&mut self, keep: bool, max: usize) -> Result<bool, Stop> {
        self.at += 1;
        self.buffer.clear();
        self.nul = false;
        let mut long = false;
        loop {
            let byte = self.peek()?;
            self.at += 1;
            let mut utf8 = [0; 4];
            let piece: &[u8] = match byte {
                b'"' => return Ok(long),
                0..=0x1f => return Err(Stop::Malformed),
                b'\\' => {
                    let escape = self.peek()?;
                    self.at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' => &[escape],
                        b'b' => b"\x08",
                        b'f' => b"\x0c",
                        b'n' => b"\n",
                        b'r' => b"\r",
                        b't' => b"\t",
                        b'u' => {
                            let char = self.unicode()?;
                            self.nul |= char == '\0';
                            char.encode_utf8(&mut utf8).as_bytes()
                        }
                        _ => return Err(Stop::Malformed),
                    }
                }
                _ => &[byte],
            };
            if keep && !long {
                self.buffer.extend_from_slice(piece);
                long = self.buffer.len() > max;
            }
        }
    }

    /// Reads the digits after `\u`. A lone surrogate is malformed: servers replace, drop or keep it.
    fn unicode(&mut self) -> Result<char, Stop> {
        let first = self.four_hex()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or(Stop::Malformed);
        }
        for expected in [b'\\', b'u'] {
            if self.peek()? != expected {
                return Err(Stop::Malformed);
            }
            self.at += 1;
        }
        let second = self.four_hex()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(Stop::Malformed);
        }
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or(Stop::Malformed)
    }

    fn four_hex(&mut self) -> Result<u32, Stop> {
        let mut value = 0;
        for _ in 0..4 {
            value = value * 16 + char::from(self.peek()?).to_digit(16).ok_or(Stop::Malformed)?;
            self.at += 1;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(pointers: &[&str], body: &[u8], whole: bool) -> (Reach, Vec<(u32, String)>) {
        let mut wanted = Trie::default();
        for (id, pointer) in (0..).zip(pointers) {
            wanted.insert(pointer.split('/').skip(1).map(str::to_owned), id);
        }
        let mut found = Vec::new();
        let mut keep = |field, value: Value<'_>| {
            found.push((
                field,
                match value {
                    Value::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                    other => format!("{other:?}"),
                },
            ));
        };
        let limits = Limits { body_depth_max: 8, body_value_bytes_max: 16, ..Limits::default() };
        let reach = read(&wanted, body, whole, &limits, &mut keep);
        (reach, found)
    }

    #[test]
    fn pointers_select_members_elements_and_the_root() {
        let body = br#" {"a":[10, {"b":"x\u00e9\ud83d\ude00"}, true], "":null, "a":{"0":-1.5e3}} "#;
        let (reach, found) = values(&["/a/0", "/a/1/b", "/a/2", "/", "", "/a/9"], body, true);
        assert_eq!(reach, Reach::Whole);
        let expected =
            [(4, "Opaque"), (0, "10"), (1, "x\u{e9}\u{1f600}"), (2, "true"), (3, "null"), (0, "-1.5e3")];
        assert_eq!(found, expected.map(|(field, text)| (field, text.to_owned())));
    }

    #[test]
    fn long_value_is_long_and_deep_body_is_broken() {
        assert_eq!(values(&["/a"], br#"{"a":"0123456789abcdefg"}"#, true).1, [(0, "Long".into())]);
        assert_eq!(values(&["/a"], b"[[[[[[[[1]]]]]]]]", true).0, Reach::Whole);
        assert_eq!(values(&["/a"], b"[[[[[[[[[1]]]]]]]]]", true).0, Reach::Broken);
    }

    #[test]
    fn nul_makes_a_value_unknown_and_a_name_ambiguous() {
        for value in [r#""admin\u0000""#, r#""admin\u0000x""#, r#""\u0000""#] {
            let (reach, found) = values(&["/role"], format!(r#"{{"role":{value},"x":1}}"#).as_bytes(), true);
            assert_eq!((reach, found), (Reach::Whole, vec![(0, "Long".into())]), "{value}");
        }
        let long = format!(r#"{{"role\u0000{}":"admin"}}"#, "x".repeat(2000));
        for body in [r#"{"role\u0000x":"admin"}"#, r#"{"\u0000":1,"role":"guest"}"#, &long] {
            assert_eq!(values(&["/role"], body.as_bytes(), true).0, Reach::Broken, "{body}");
        }
        let elsewhere = br#"{"x":{"a\u0000":"\u0000"},"role":"admin"}"#;
        assert_eq!(values(&["/role"], elsewhere, true), (Reach::Whole, vec![(0, "admin".into())]));
    }

    #[test]
    fn invalid_json_is_broken() {
        for body in [
            "{",
            "{\"a\":1,}",
            "[1 2]",
            "01",
            "1.",
            "-",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\n\"",
            "tru",
            "truex",
            "{} {}",
            "'a'",
            "{a:1}",
            "NaN",
        ] {
            assert_eq!(values(&["/a"], body.as_bytes(), true).0, Reach::Broken, "{body}");
        }
        assert_eq!(values(&["/a"], b"\"\xff\"", true).0, Reach::Broken);
    }

    #[test]
    fn byte_order_mark_is_not_part_of_the_text() {
        assert_eq!(values(&["/a"], b"\xef\xbb\xbf{\"a\":1}", true), (Reach::Whole, vec![(0, "1".into())]));
        assert_eq!(values(&["/a"], b"\xef\xbb\xbf\xef\xbb\xbf{\"a\":1}", true).0, Reach::Broken);
    }

    #[test]
    fn number_at_the_cut_is_not_a_value() {
        assert_eq!(values(&["/a"], br#"{"a":12"#, false), (Reach::Cut, vec![]));
        assert_eq!(values(&["/a"], br#"{"a":12 "#, false), (Reach::Cut, vec![(0, "12".into())]));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            "[a-c\"\\\\\u{e9}]{0,3}".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_equal_those_of_a_tree_parser(tree in json(), pointer in "(/[a-c0-2]){0,3}") {
            let (reach, found) = values(&[&pointer], tree.to_string().as_bytes(), true);
            prop_assert_eq!(reach, Reach::Whole);
            let expected = tree.pointer(&pointer).map(|value| match value {
                serde_json::Value::String(text) => text.clone(),
                serde_json::Value::Array(_) | serde_json::Value::Object(_) => "Opaque".into(),
                other => other.to_string(),
            });
            prop_assert_eq!(found.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), Vec::from_iter(expected));
        }
    }
}
