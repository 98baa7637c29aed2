//! Request to disclose one connection: the text that the requester and the approvers sign.

use super::text::{BadLine, Lines, hex, one_line, unhex};
use crate::base64;
use crate::envelope::{POINT_BYTES, Point};
use crate::merkle::Hash;
use crate::note::{Note, NoteError, is_name};

/// Most bytes of a request with its signatures.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Most bytes of the reason.
pub const REASON_BYTES_MAX: usize = 1000;
/// Most bytes of the reference and of a name.
pub const NAME_BYTES_MAX: usize = 255;
const TITLE: &str = "evergate-audit/disclosure@v1";

/// Number that makes a request unique.
pub type Nonce = [u8; 16];

/// What a request discloses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One connection.
    Connection,
    /// Every connection that shares a master secret of TLS 1.2.
    Family,
}

impl Scope {
    /// Word in texts.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Connection => "connection",
            Scope::Family => "family",
        }
    }

    /// Scope of a word.
    pub fn of(name: &str) -> Option<Scope> {
        [Scope::Connection, Scope::Family].into_iter().find(|scope| scope.name() == name)
    }
}

/// Reason why bytes are no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// More bytes than the bound.
    #[error("request has more than {REQUEST_BYTES_MAX} bytes")]
    Long,
    /// The note itself is wrong.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// Line that is not as the format asks: its number, from 1.
    #[error("request line {0} has no valid '{1}'")]
    Line(usize, &'static str),
}

impl From<BadLine> for RequestError {
    fn from(BadLine(number, what): BadLine) -> RequestError {
        RequestError::Line(number, what)
    }
}

/// Request to disclose one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the connection in the Recorder; 0: only its randoms are known.
    pub connection: u64,
    /// Random of the ClientHello.
    pub client_random: Hash,
    /// Random of the ServerHello.
    pub server_random: Hash,
    /// Epoch of the connection.
    pub epoch: u64,
    /// Recorder that has the packets.
    pub recorder: Hash,
    /// Public key of the recipient (HPKE, P-256).
    pub recipient: Point,
    /// What is disclosed.
    pub scope: Scope,
    /// Whether exports may have credentials: cookies, passwords, tokens.
    pub with_credentials: bool,
    /// Reason, for people. The policy refuses an empty one.
    pub reason: String,
    /// Reference of the case; may be empty.
    pub reference: String,
    /// Name of the requester's key.
    pub requester: String,
    /// Time of the request in seconds since 1970.
    pub created_s: u64,
    /// Time from which the request is void, in seconds since 1970.
    pub expires_s: u64,
    /// Number that makes the request unique.
    pub nonce: Nonce,
}

impl Request {
    /// Request from a note's text.
    pub fn parse_text(text: &str) -> Result<Request, RequestError> {
        let mut lines = Lines::new(text, TITLE)?;
        let request = Request {
            connection: lines.number("connection")?,
            client_random: lines.parse("client-random", unhex)?,
            server_random: lines.parse("server-random", unhex)?,
            epoch: lines.number("epoch")?,
            recorder: lines.parse("recorder", unhex)?,
            recipient: lines.parse("recipient", recipient)?,
            scope: lines.parse("scope", Scope::of)?,
            with_credentials: lines.parse("credentials", credentials)?,
            reason: lines.parse("reason", |text| one_line(text, REASON_BYTES_MAX))?,
            reference: lines.parse("reference", |text| one_line(text, NAME_BYTES_MAX))?,
            requester: lines.parse("requester", name)?,
            created_s: lines.number("created")?,
            expires_s: lines.number("expires")?,
            nonce: lines.parse("nonce", unhex)?,
        };
        lines.end()?;
        Ok(request)
    }

    /// Request and note from exactly the note's bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Request, Note), RequestError> {
        if bytes.len() > REQUEST_BYTES_MAX {
            return Err(RequestError::Long);
        }
        let note = Note::parse(bytes)?;
        Ok((Request::parse_text(note.text())?, note))
    }

    /// Text that is signed.
    pub fn to_text(&self) -> String {
        let lines = [
            ("connection", self.connection.to_string()),
            ("client-random", hex(&self.client_random)),
            ("server-random", hex(&self.server_random)),
            ("epoch", self.epoch.to_string()),
            ("recorder", hex(&self.recorder)),
            ("recipient", base64::encode(&self.recipient)),
            ("scope", self.scope.name().to_owned()),
            ("credentials", credentials_name(self.with_credentials).to_owned()),
            ("reason", self.reason.clone()),
            ("reference", self.reference.clone()),
            ("requester", self.requester.clone()),
            ("created", self.created_s.to_string()),
            ("expires", self.expires_s.to_string()),
            ("nonce", hex(&self.nonce)),
        ];
        lines.iter().fold(format!("{TITLE}\n"), |text, (key, value)| text + key + " " + value + "\n")
    }

    /// Note without signatures yet. An error if a text of the request has line ends or is too long.
    pub fn to_note(&self) -> Result<Note, RequestError> {
        let text = self.to_text();
        Request::parse_text(&text)?;
        Ok(Note::new(text)?)
    }
}

/// Whether credentials are included, from the word in texts.
pub(super) fn credentials(name: &str) -> Option<bool> {
    [true, false].into_iter().find(|include| credentials_name(*include) == name)
}

/// Word in texts.
pub(super) fn credentials_name(include: bool) -> &'static str {
    if include { "include" } else { "redact" }
}

/// Name of a key or of a person.
pub(super) fn name(text: &str) -> Option<String> {
    (is_name(text) && text.len() <= NAME_BYTES_MAX).then(|| text.to_owned())
}

fn recipient(text: &str) -> Option<Point> {
    base64::decode_array::<POINT_BYTES>(text).filter(|point| point[0] == 4)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn request() -> Request {
        Request {
            connection: 7,
            client_random: [1; 32],
            server_random: [2; 32],
            epoch: 497_000,
            recorder: [3; 32],
            recipient: [4; 65],
            scope: Scope::Connection,
            with_credentials: false,
            reason: "fraud report of 2026-11-27".into(),
            reference: "case-12".into(),
            requester: "alice".into(),
            created_s: 1_795_000_000,
            expires_s: 1_795_086_400,
            nonce: [9; 16],
        }
    }

    #[test]
    fn request_survives_its_text() {
        let request = request();
        assert_eq!(Request::parse_text(&request.to_text()), Ok(request.clone()));
        let mut other = Request { reference: String::new(), reason: String::new(), ..request };
        other.with_credentials = true;
        assert_eq!(Request::parse_text(&other.to_text()), Ok(other));
    }

    #[test]
    fn other_texts_are_refused_with_their_line() {
        let text = request().to_text();
        let line = |text: &str| match Request::parse_text(text) {
            Err(RequestError::Line(line, _)) => line,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(line(&text.replace("@v1", "@v2")), 1);
        for (number, wrong) in [
            (2, ("connection 7", "connection 07")),
            (3, ("client-random 01", "client-random 0A")),
            (6, ("recorder 03", "recorder  03")),
            (7, ("recipient BA", "recipient AA")),
            (8, ("scope connection", "scope all")),
            (9, ("redact", "keep")),
            (12, ("requester alice", "requester al ice")),
            (15, ("nonce 09", "nonce 9")),
        ] {
            assert_eq!(line(&text.replace(wrong.0, wrong.1)), number, "{wrong:?}");
        }
        assert_eq!(line(&format!("{text}more\n")), 16);
        assert_eq!(line(text.trim_end()), 1);
        let swapped = text.replace("created", "x").replace("expires", "created").replace("x ", "expires ");
        assert_eq!(line(&swapped), 13);
        assert_eq!(Request::parse(&[b'a'; REQUEST_BYTES_MAX + 1]), Err(RequestError::Long));
    }

    #[test]
    fn values_with_line_ends_make_no_note() {
        let request = Request { reason: "a\nscope family".into(), ..request() };
        assert!(request.to_note().is_err());
        let request = Request { reason: "a".repeat(REASON_BYTES_MAX + 1), ..request };
        assert!(request.to_note().is_err());
    }

    proptest! {
        #[test]
        fn parsed_text_is_the_written_one(at: usize, byte in 0x0a_u8..0x7f) {
            let mut text = request().to_text().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            if let Ok(text) = String::from_utf8(text)
                && let Ok(request) = Request::parse_text(&text)
            {
                prop_assert_eq!(request.to_text(), text);
            }
        }
    }
}
