//! Lines `KEY VALUE` of a note in a fixed order, and their values.

use crate::checkpoint::parse_decimal;

/// Reader of lines in order.
pub(super) struct Lines<'a> {
    rest: std::str::Split<'a, char>,
    /// Number of the next line, from 1.
    number: usize,
}

/// Line that is not as the format asks: its number, from 1, and what it has by the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLine(pub(super) usize, pub(super) &'static str);

impl<'a> Lines<'a> {
    /// Lines behind the title.
    pub(super) fn new(text: &'a str, title: &'static str) -> Result<Lines<'a>, BadLine> {
        let mut rest = text.strip_suffix('\n').ok_or(BadLine(1, title))?.split('\n');
        match rest.next() {
            Some(first) if first == title => Ok(Lines { rest, number: 2 }),
            _ => Err(BadLine(1, title)),
        }
    }

    /// Value of the next line, which has this key.
    pub(super) fn value(&mut self, key: &'static str) -> Result<&'a str, BadLine> {
        let line = self.next();
        let value = line.and_then(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value.ok_or(BadLine(self.number - 1, key))
    }

    /// Value of the next line through a reader of its type.
    pub(super) fn parse<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<T, BadLine> {
        let value = self.value(key)?;
        read(value).ok_or(BadLine(self.number - 1, key))
    }

    /// Decimal number of the next line.
    pub(super) fn number(&mut self, key: &'static str) -> Result<u64, BadLine> {
        self.parse(key, parse_decimal)
    }

    /// The next line as it is.
    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.number += 1;
        self.rest.next()
    }

    /// Error unless every line was read.
    pub(super) fn end(mut self) -> Result<(), BadLine> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(BadLine(self.number - 1, "line: the text ends before it")),
        }
    }
}

/// Hexadecimal digits in lower case.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly `N` bytes from hexadecimal digits in lower case.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

/// Text of at most `len_max` bytes on one line.
pub(super) fn one_line(text: &str, len_max: usize) -> Option<String> {
    (text.len() <= len_max && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}
