//! Places in the text: key paths, lines and columns, and the map from a decoded string to the bytes of its
//! source.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use toml::de::DeValue;

/// The path of a key as people write it: `pools[0].servers[2].address`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPath {
    text: String,
    /// Length of the text before each step, so that a parent is a prefix.
    steps: Vec<usize>,
}

impl KeyPath {
    pub(crate) fn root() -> Self {
        Self::default()
    }

    /// The path of `key` in the table at this path. Keys that are not bare are quoted as in TOML.
    pub(crate) fn key(&self, key: &str) -> Self {
        let mut path = self.clone();
        path.steps.push(self.text.len());
        if !self.text.is_empty() {
            path.text.push('.');
        }
        let bare =
            !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if bare {
            path.text.push_str(key);
        } else {
            // Writing to a String does not fail.
            let _ = write!(path.text, "{key:?}");
        }
        path
    }

    /// The path of an element of the array at this path.
    pub(crate) fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.steps.push(self.text.len());
        let _ = write!(path.text, "[{index}]");
        path
    }

    /// The path of the table or array around this one; `None` for the root.
    pub(crate) fn parent(&self) -> Option<Self> {
        let mut path = self.clone();
        let len = path.steps.pop()?;
        path.text.truncate(len);
        Some(path)
    }

    /// The last step alone, for messages that name the key.
    pub(crate) fn last(&self) -> &str {
        let start = self.steps.last().copied().unwrap_or(0);
        self.text.get(start..).unwrap_or_default().trim_start_matches('.')
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

#[derive(Clone, Debug)]
struct Place {
    key: Range<usize>,
    value: Range<usize>,
    /// The text of a table is only its header and is not shown as a value.
    is_table: bool,
}

/// A configuration text with the places of all its keys.
pub(crate) struct Source<'a> {
    file: &'a str,
    text: &'a str,
    places: BTreeMap<String, Place>,
    /// First byte of each line.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    /// A text whose places are not known yet; see [`index`](Self::index).
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file, text, places: BTreeMap::new(), lines }
    }

    /// Records the place of every key and array element under `value`.
    pub(crate) fn index(&mut self, at: &KeyPath, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => {
                for (key, value) in table {
                    let path = at.key(key.get_ref());
                    self.record(&path, key.span(), value.span(), value.get_ref());
                }
            }
            DeValue::Array(array) => {
                for (i, value) in array.iter().enumerate() {
                    let path = at.index(i);
                    self.record(&path, value.span(), value.span(), value.get_ref());
                }
            }
            _ => {}
        }
    }

    fn record(&mut self, path: &KeyPath, key: Range<usize>, value: Range<usize>, content: &DeValue<'_>) {
        let is_table = match content {
            DeValue::Table(_) => true,
            DeValue::Array(a) => a.iter().any(|v| matches!(v.get_ref(), DeValue::Table(_))),
            _ => false,
        };
        self.places.insert(path.as_str().to_owned(), Place { key, value, is_table });
        self.index(path, content);
    }

    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    pub(crate) fn contains(&self, at: &KeyPath) -> bool {
        self.places.contains_key(at.as_str())
    }

    /// The text of the value at `at` as written, if the file gives it and it is not a table.
    pub(crate) fn value(&self, at: &KeyPath) -> Option<&'a str> {
        let place = self.places.get(at.as_str()).filter(|p| !p.is_table)?;
        self.text.get(place.value.clone())
    }

    /// First byte of the value at `at`.
    pub(crate) fn value_start(&self, at: &KeyPath) -> Option<usize> {
        self.places.get(at.as_str()).map(|p| p.value.start)
    }

    /// Line and column of `at`: of its value, which for a table is its header; or of the nearest table around
    /// it when the file does not give it. (0, 0) when nothing around it is in the file.
    pub(crate) fn place(&self, at: &KeyPath) -> (usize, usize) {
        let mut path = Some(at.clone());
        while let Some(p) = path {
            if let Some(place) = self.places.get(p.as_str()) {
                return self.line_column(place.value.start);
            }
            path = p.parent();
        }
        (0, 0)
    }

    /// First byte of the key itself, for keys that should not be there.
    pub(crate) fn key_start(&self, at: &KeyPath) -> Option<usize> {
        self.places.get(at.as_str()).map(|p| p.key.start)
    }

    /// Line and column, both from 1, of a byte offset; columns count characters.
    pub(crate) fn line_column(&self, byte: usize) -> (usize, usize) {
        let mut end = byte.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let line = self.lines.partition_point(|start| *start <= end);
        let start = line.checked_sub(1).and_then(|i| self.lines.get(i)).copied().unwrap_or(0);
        let column = self.text.get(start..end).unwrap_or_default().chars().count() + 1;
        (line, column)
    }

    /// The byte in the text that wrote the character at `line` and `column` (from 1, in characters) of
    /// the decoded string value at `at`.
    pub(crate) fn byte_in_string(&self, at: &KeyPath, line: usize, column: usize) -> Option<usize> {
        let start = self.value_start(at)?;
        let written = self.value(at)?;
        let (mut l, mut c) = (1, 1);
        for (offset, decoded) in StringChars::new(written)? {
            if (l, c) == (line, column) || l > line {
                return Some(start + offset);
            }
            if decoded == '\n' {
                (l, c) = (l + 1, 1);
            } else {
                c += 1;
            }
        }
        // One past the end: the place of "expected more".
        Some(start + written.trim_end_matches(['"', '\'']).len())
    }
}

/// The characters of a TOML string with the offset that wrote each. Decoding errors cannot occur here:
/// the parser accepted the string before.
struct StringChars<'a> {
    written: &'a str,
    offset: usize,
    end: usize,
    escapes: bool,
}

impl<'a> StringChars<'a> {
    fn new(written: &'a str) -> Option<Self> {
        let escapes = written.starts_with('"');
        let quote = if escapes || written.starts_with('\'') { written.get(..1)? } else { return None };
        let long = written.len() >= 6 && written.starts_with(&quote.repeat(3));
        let quotes = if long { 3 } else { 1 };
        let mut offset = quotes;
        if long {
            // A newline right after the opening quotes is not part of the string.
            let rest = written.get(offset..)?;
            offset += if rest.starts_with("\r\n") { 2 } else { usize::from(rest.starts_with('\n')) };
        }
        Some(Self { written, offset, end: written.len().checked_sub(quotes)?, escapes })
    }
}

impl Iterator for StringChars<'_> {
    type Item = (usize, char);

    fn next(&mut self) -> Option<(usize, char)> {
        loop {
            let at = self.offset;
            let rest = self.written.get(at..self.end)?;
            let c = rest.chars().next()?;
            self.offset += c.len_utf8();
            if c != '\\' || !self.escapes {
                return Some((at, c));
            }
            let escaped = self.written.get(self.offset..self.end)?.chars().next()?;
            self.offset += escaped.len_utf8();
            let digits = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                'n' => return Some((at, '\n')),
                c if c.is_whitespace() => {
                    // A backslash at the end of a line swallows the white space after it.
                    let rest = self.written.get(self.offset..self.end)?;
                    self.offset = self.end - rest.trim_start().len();
                    continue;
                }
                c => return Some((at, c)),
            };
            self.offset = (self.offset + digits).min(self.end);
            return Some((at, '\u{fffd}'));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_keys_indexes_and_quoted_keys() {
        let path = KeyPath::root().key("pools").index(2).key("a.b");
        assert_eq!(path.as_str(), "pools[2].\"a.b\"");
        assert_eq!(path.parent().unwrap().as_str(), "pools[2]");
        assert_eq!(path.parent().unwrap().parent().unwrap().as_str(), "pools");
        assert_eq!(KeyPath::root().parent(), None);
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        let source = Source::new("f", "é\nüü=1");
        assert_eq!(source.line_column("é\nüü".len()), (2, 3));
        assert_eq!(source.line_column(9999), (2, 5));
    }

    #[test]
    fn a_place_inside_a_string_survives_escapes_and_long_quotes() {
        for (written, line, column, expected) in [
            ("\"abc\"", 1, 2, "bc\""),
            ("\"a\\\"bc\"", 1, 3, "bc\""),
            ("'a\\bc'", 1, 3, "bc'"),
            ("\"\"\"\nab\ncd\"\"\"", 2, 2, "d\"\"\""),
            ("'''\nab\ncd'''", 1, 1, "ab\ncd'''"),
            ("\"\"\"ab\\\n   cd\"\"\"", 1, 3, "cd\"\"\""),
            ("\"\\u00e9x\"", 1, 2, "x\""),
            ("\"ab\"", 1, 3, "\""),
        ] {
            let text = format!("k = {written}");
            let table = toml::de::DeTable::parse(&text).unwrap();
            let mut source = Source::new("f", &text);
            source.index(&KeyPath::root(), &DeValue::Table(table.into_inner()));
            let byte = source.byte_in_string(&KeyPath::root().key("k"), line, column).unwrap();
            assert_eq!(&text[byte..], expected, "{written}");
        }
    }
}
