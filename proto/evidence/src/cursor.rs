//! Reading position in hostile big-endian bytes, and the matching writers.
//!
//! Vectors have a length before them, as in the presentation language of RFC 8446. A read past the end is an error and
//! moves nothing.

/// Error of bytes that are no valid message: what is wrong, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    /// Error with this text.
    pub fn new(what: impl Into<String>) -> Malformed {
        Malformed(what.into())
    }
}

/// Reading position in a message.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Position at the first byte.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(Malformed(format!("{len} bytes expected, {} left", self.rest.len()))),
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(u8::from_be_bytes)
    }

    /// The next 2 bytes as a number.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 4 bytes as a number.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 8 bytes as a number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A vector of at most 255 bytes.
    pub fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u8()?;
        self.bytes(usize::from(len))
    }

    /// A vector of at most 65,535 bytes.
    pub fn long(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u16()?;
        self.bytes(usize::from(len))
    }

    /// A vector of at most 255 bytes of UTF-8 without control characters.
    pub fn short_text(&mut self) -> Result<String, Malformed> {
        self.short().and_then(text)
    }

    /// A vector of at most 65,535 bytes of UTF-8 without control characters, except line ends.
    pub fn long_text(&mut self) -> Result<String, Malformed> {
        self.long().and_then(text)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Error unless everything was read.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Malformed(format!("{left} bytes behind the end"))),
        }
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed::new("text is not UTF-8"))?;
    match text.chars().any(|c| c.is_control() && c != '\n') {
        true => Err(Malformed::new("text has control characters")),
        false => Ok(text.to_owned()),
    }
}

/// Appends a vector of at most 255 bytes; longer ones are cut at a character.
pub fn put_short(out: &mut Vec<u8>, text: &str) {
    let text = cut(text, usize::from(u8::MAX));
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a vector of at most 65,535 bytes; longer ones are cut.
pub fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// The longest beginning of a text that has at most `len_max` bytes and ends with a whole character.
pub fn cut(text: &str, len_max: usize) -> &str {
    let mut len = text.len().min(len_max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_past_the_end_moves_nothing() {
        let mut cursor = Cursor::new(&[1, 2, 3]);
        assert_eq!(cursor.u32(), Err(Malformed::new("4 bytes expected, 3 left")));
        assert_eq!(cursor.u16(), Ok(0x0102));
        assert_eq!(cursor.end(), Err(Malformed::new("1 bytes behind the end")));
        assert_eq!(cursor.rest(), [3]);
        assert_eq!(cursor.end(), Ok(()));
    }

    #[test]
    fn text_with_control_characters_is_refused() {
        assert!(Cursor::new(b"\x02a\x1b").short_text().is_err());
        assert!(Cursor::new(b"\x01\xff").short_text().is_err());
        assert_eq!(Cursor::new(b"\x02a\n").short_text(), Ok("a\n".into()));
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let mut out = Vec::new();
        put_short(&mut out, &"ä".repeat(200));
        assert_eq!(out[0], 254);
        assert_eq!(Cursor::new(&out).short_text().unwrap().chars().count(), 127);
    }
}
