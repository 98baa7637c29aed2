//! Tokens, each with its byte offset.

use crate::error::ConditionError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Ident(String),
    Text(Vec<u8>),
    Number(String),
    /// An operator or bracket.
    Sign(&'static str),
    End,
}

impl Token {
    pub(super) fn show(&self) -> String {
        match self {
            Token::Ident(name) => format!("'{name}'"),
            Token::Text(bytes) => format!("the string \"{}\"", bytes.escape_ascii()),
            Token::Number(digits) => format!("the number {digits}"),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::End => "the end of the condition".into(),
        }
    }
}

/// Longest first, so that `<=` is not read as `<`.
const SIGNS: [&str; 16] =
    ["&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ",", ".", "-"];

pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(source: &'s str) -> Lexer<'s> {
        Lexer { source, at: 0 }
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// The next token and its offset.
    pub(super) fn next(&mut self) -> Result<(Token, usize), ConditionError> {
        self.at = self.source.len() - self.rest().trim_start().len();
        let start = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok((Token::End, start)) };
        let raw = rest.starts_with("r\"") || rest.starts_with("r'");
        if first == '"' || first == '\'' || raw {
            return Ok((Token::Text(self.text(raw)?), start));
        }
        let word = |more: fn(char) -> bool| &rest[..rest.find(|c| !more(c)).unwrap_or(rest.len())];
        if first.is_ascii_alphabetic() || first == '_' {
            let name = word(|c| c.is_ascii_alphanumeric() || c == '_');
            self.at += name.len();
            return Ok((Token::Ident(name.to_owned()), start));
        }
        if first.is_ascii_digit() {
            let number = word(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
            self.at += number.len();
            return Ok((Token::Number(number.to_owned()), start));
        }
        for sign in SIGNS {
            if rest.starts_with(sign) {
                self.at += sign.len();
                return Ok((Token::Sign(sign), start));
            }
        }
        let remedy = match first {
            '=' => "write == to compare",
            '&' => "write && for and",
            '|' => "write || for or",
            '~' => "write path.matches(\"..\") for a regular expression",
            '“' | '”' => "write plain quotation marks",
            _ => "quote text, as in host == \"a.example\"",
        };
        Err(ConditionError::new(start, format!("unexpected character '{first}'")).remedy(remedy))
    }

    /// The path of the short form `xml.a/b/@c`, read right after the dot.
    pub(super) fn xml_path(&mut self) -> (String, usize) {
        let start = self.at;
        let rest = self.rest();
        let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | '@' | ':');
        let path = &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())];
        self.at += path.len();
        (path.to_owned(), start)
    }

    fn text(&mut self, raw: bool) -> Result<Vec<u8>, ConditionError> {
        let start = self.at;
        let bytes = self.source.as_bytes();
        let mut at = start + usize::from(raw);
        let quote = bytes[at];
        at += 1;
        let mut text = Vec::new();
        loop {
            let Some(&byte) = bytes.get(at) else {
                return Err(ConditionError::new(start, "string without an end")
                    .remedy(format!("close it with {}", char::from(quote))));
            };
            at += 1;
            if byte == quote {
                break;
            }
            if byte != b'\\' || raw {
                text.push(byte);
                continue;
            }
            let escape = bytes.get(at).copied().unwrap_or(0);
            at += 1;
            text.push(match escape {
                b'\\' | b'"' | b'\'' | b'/' => escape,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits =
                        self.source.get(at..at + 2).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                    let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    at += 2;
                    value.ok_or_else(|| {
                        ConditionError::new(at.saturating_sub(4), "\\x without two hexadecimal digits")
                    })?
                }
                _ => {
                    return Err(ConditionError::new(at - 2, "unknown escape in a string")
                        .why("known are \\\\ \\\" \\' \\/ \\n \\r \\t \\xHH")
                        .remedy("double the backslash, or write a raw string as in r\"\\d+\""));
                }
            });
        }
        self.at = at;
        Ok(text)
    }
}
