//! Signed notes of C2SP, byte for byte: text, a blank line, signature lines.
//!
//! [`Note::parse`] accepts exactly the bytes that [`Note::to_bytes`] writes. It refuses non-canonical base64, a missing
//! last line end, bytes behind the last line, and two lines of one key. Verification reports lines of unknown keys,
//! because C2SP asks readers to ignore them and an auditor wants to know of them.

use crate::base64;
use crate::merkle::sha256;
use std::fmt;

/// Most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 1 << 16;
/// Most signature lines of a note: C2SP asks for at least 16.
pub const SIGNATURES_MAX: usize = 64;

const DASH: &str = "\u{2014} ";
/// Bytes of a P-256 public key in SPKI form before its uncompressed point.
pub(crate) const P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Reason why bytes are no signed note, no verifying key, or are not signed as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// More bytes or lines than the bounds.
    #[error("note is longer than {NOTE_BYTES_MAX} bytes or has more than {SIGNATURES_MAX} signatures")]
    Long,
    /// Bytes that are not UTF-8, or control characters.
    #[error("note is not plain UTF-8 text")]
    NotText,
    /// Bytes behind the last line end, or no line end at all.
    #[error("note does not end with a line end")]
    NoLineEnd,
    /// No blank line before signatures.
    #[error("note has no blank line between text and signatures")]
    NoBlankLine,
    /// Line that is no signature line: its number, from 1, within the whole note.
    #[error("line {0} is no signature: expected a dash, a key name and canonical base64")]
    Signature(usize),
    /// Second line of one key.
    #[error("two signatures of one key {0}")]
    Duplicate(String),
    /// Text that is no verifying key.
    #[error("'{0}' is no verifying key: expected NAME+ID+BASE64 of Ed25519 or ECDSA P-256")]
    Key(String),
    /// Signature of a known key that does not verify.
    #[error("signature of {0} does not verify")]
    Wrong(String),
    /// No signature of a known key.
    #[error("no signature of a known key: expected {0}")]
    Unsigned(String),
}

/// Signature algorithms that notes use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Ed25519 with 32 bytes of public key and 64 of signature.
    Ed25519,
    /// ECDSA on P-256 with SHA-256: an uncompressed point of 65 bytes, a signature in DER.
    EcdsaP256,
}

/// Verification of signatures: injected, because this crate holds no cryptography but hashes.
pub trait SignatureVerifier {
    /// Whether `signature` is the key's over `message`.
    fn is_valid(&self, algorithm: Algorithm, key: &[u8], message: &[u8], signature: &[u8]) -> bool;
}

/// Public key of a log or of a witness.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PublicKey {
    /// Ed25519 key of a log (0x01).
    Ed25519([u8; 32]),
    /// P-256 key of a log (0x02), as an uncompressed point. Its id hashes the key alone.
    EcdsaP256([u8; 65]),
    /// Ed25519 key of a witness that signs with a time (`cosignature/v1`, 0x04).
    Cosignature([u8; 32]),
}

/// Name and public key: what a vkey has.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    name: String,
    key: PublicKey,
}

impl VerifyingKey {
    /// Key with a name: not empty, without spaces, control characters and plus signs.
    pub fn new(name: &str, key: PublicKey) -> Result<VerifyingKey, NoteError> {
        let is_point = !matches!(key, PublicKey::EcdsaP256(point) if point[0] != 4);
        match is_name(name) && is_point {
            true => Ok(VerifyingKey { name: name.to_owned(), key }),
            false => Err(NoteError::Key(name.to_owned())),
        }
    }

    /// Key from `NAME+ID+BASE64`; the id must be that of the key.
    pub fn parse(text: &str) -> Result<VerifyingKey, NoteError> {
        let error = || NoteError::Key(crate::cursor::cut(text, 200).to_owned());
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(error());
        };
        let bytes = base64::decode(key).ok_or_else(error)?;
        let (&kind, key) = bytes.split_first().ok_or_else(error)?;
        let key = match kind {
            1 => PublicKey::Ed25519(key.try_into().map_err(|_| error())?),
            2 => PublicKey::of_p256_spki(key).ok_or_else(error)?,
            4 => PublicKey::Cosignature(key.try_into().map_err(|_| error())?),
            _ => return Err(error()),
        };
        let key = VerifyingKey::new(name, key)?;
        if id == format!("{:08x}", key.id()) { Ok(key) } else { Err(error()) }
    }

    /// Text that [`VerifyingKey::parse`] reads.
    pub fn to_vkey(&self) -> String {
        format!("{}+{:08x}+{}", self.name, self.id(), base64::encode(&self.key.typed_bytes()))
    }

    /// Name of the key: the origin of a log, or a witness.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The public key.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Id of the key in signature lines.
    pub fn id(&self) -> u32 {
        let hash = match &self.key {
            PublicKey::EcdsaP256(_) => sha256(&self.key.typed_bytes()[1..]),
            _ => sha256(&[self.name.as_bytes(), b"\n", &self.key.typed_bytes()].concat()),
        };
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
    }

    /// Time of a cosignature if the signature is the key's over the text, `Some(None)` for keys without times.
    fn check(&self, text: &str, signature: &[u8], verifier: &dyn SignatureVerifier) -> Option<Option<u64>> {
        match &self.key {
            PublicKey::Ed25519(key) => {
                verifier.is_valid(Algorithm::Ed25519, key, text.as_bytes(), signature).then_some(None)
            }
            PublicKey::EcdsaP256(key) => {
                verifier.is_valid(Algorithm::EcdsaP256, key, text.as_bytes(), signature).then_some(None)
            }
            PublicKey::Cosignature(key) => {
                let (time, signature) = signature.split_first_chunk::<8>()?;
                let time = u64::from_be_bytes(*time);
                let message = cosigned_text(time, text);
                let is_valid = i64::try_from(time).is_ok()
                    && verifier.is_valid(Algorithm::Ed25519, key, message.as_bytes(), signature);
                is_valid.then_some(Some(time))
            }
        }
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_vkey())
    }
}

impl PublicKey {
    /// P-256 key from its SPKI form.
    pub fn of_p256_spki(spki: &[u8]) -> Option<PublicKey> {
        let point: [u8; 65] = spki.strip_prefix(&P256_SPKI)?.try_into().ok()?;
        (point[0] == 4).then_some(PublicKey::EcdsaP256(point))
    }

    /// Key as in vkeys: type, then key.
    fn typed_bytes(&self) -> Vec<u8> {
        match self {
            PublicKey::Ed25519(key) => [&[1], &key[..]].concat(),
            PublicKey::EcdsaP256(point) => [&[2], &P256_SPKI[..], point].concat(),
            PublicKey::Cosignature(key) => [&[4], &key[..]].concat(),
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64::encode(&self.typed_bytes()))
    }
}

/// Text that a witness signs for a note's text.
pub fn cosigned_text(time_s: u64, text: &str) -> String {
    format!("cosignature/v1\ntime {time_s}\n{text}")
}

/// Signature line of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureLine {
    /// Name of the key.
    pub name: String,
    /// Id of the key.
    pub id: u32,
    /// Signature behind the id.
    pub signature: Vec<u8>,
}

impl SignatureLine {
    /// Line of a key.
    pub fn of(key: &VerifyingKey, signature: Vec<u8>) -> SignatureLine {
        SignatureLine { name: key.name.clone(), id: key.id(), signature }
    }

    /// Line from its text without the line end.
    pub fn parse(line: &str) -> Option<SignatureLine> {
        let (name, base64) = line.strip_prefix(DASH)?.split_once(' ')?;
        let bytes = base64::decode(base64)?;
        let (id, signature) = bytes.split_first_chunk::<4>()?;
        let is_whole = is_name(name) && !signature.is_empty();
        is_whole.then(|| SignatureLine {
            name: name.to_owned(),
            id: u32::from_be_bytes(*id),
            signature: signature.to_vec(),
        })
    }
}

impl fmt::Display for SignatureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.id.to_be_bytes()[..], &self.signature].concat();
        write!(f, "{DASH}{} {}", self.name, base64::encode(&bytes))
    }
}

/// Text and signatures that verify for known keys, and lines of unknown ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Known keys whose signatures verify: their place in the list given, with the time of a cosignature in s.
    pub keys: Vec<(usize, Option<u64>)>,
    /// Names and ids of unknown keys.
    pub foreign: Vec<String>,
}

/// Signed note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    text: String,
    signatures: Vec<SignatureLine>,
}

impl Note {
    /// Note without signatures yet; the text ends with a line end.
    pub fn new(text: String) -> Result<Note, NoteError> {
        check_text(text.as_bytes())?;
        match text.ends_with('\n') {
            true => Ok(Note { text, signatures: Vec::new() }),
            false => Err(NoteError::NoLineEnd),
        }
    }

    /// Note from exactly its bytes.
    pub fn parse(bytes: &[u8]) -> Result<Note, NoteError> {
        let all = check_text(bytes)?;
        if !all.ends_with('\n') {
            return Err(NoteError::NoLineEnd);
        }
        // The last blank line: one at the very end has no signatures behind it.
        let (text, lines) = all.rsplit_once("\n\n").ok_or(NoteError::NoBlankLine)?;
        let first = text.split('\n').count() + 2;
        let mut note = Note { text: format!("{text}\n"), signatures: Vec::new() };
        let lines = lines.strip_suffix('\n').unwrap_or(lines);
        for (index, line) in lines.split('\n').enumerate() {
            let line = SignatureLine::parse(line).ok_or(NoteError::Signature(first + index))?;
            note.sign(line)?;
        }
        Ok(note)
    }

    /// Appends a signature line.
    pub fn sign(&mut self, line: SignatureLine) -> Result<(), NoteError> {
        if self.signatures.iter().any(|other| other.name == line.name && other.id == line.id) {
            return Err(NoteError::Duplicate(line.name));
        }
        if self.signatures.len() == SIGNATURES_MAX {
            return Err(NoteError::Long);
        }
        self.signatures.push(line);
        Ok(())
    }

    /// The note's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = format!("{}\n", self.text);
        for line in &self.signatures {
            out.push_str(&line.to_string());
            out.push('\n');
        }
        out.into_bytes()
    }

    /// Signed text, with its last line end.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Signature lines in order.
    pub fn signatures(&self) -> &[SignatureLine] {
        &self.signatures
    }

    /// Verifies all lines of known keys. An error if one of them does not verify, or if there is none.
    pub fn verify(
        &self,
        keys: &[VerifyingKey],
        verifier: &dyn SignatureVerifier,
    ) -> Result<Verified, NoteError> {
        let mut verified = Verified::default();
        for line in &self.signatures {
            let known = keys.iter().position(|key| key.name == line.name && key.id() == line.id);
            let Some(index) = known else {
                verified.foreign.push(format!("{}+{:08x}", line.name, line.id));
                continue;
            };
            let time = keys[index].check(&self.text, &line.signature, verifier);
            verified.keys.push((index, time.ok_or_else(|| NoteError::Wrong(line.name.clone()))?));
        }
        if verified.keys.is_empty() {
            let names: Vec<String> =
                keys.iter().map(|key| format!("{}+{:08x}", key.name, key.id())).collect();
            return Err(NoteError::Unsigned(names.join(", ")));
        }
        Ok(verified)
    }
}

fn check_text(bytes: &[u8]) -> Result<&str, NoteError> {
    if bytes.len() > NOTE_BYTES_MAX {
        return Err(NoteError::Long);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| NoteError::NotText)?;
    match text.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
        true => Err(NoteError::NotText),
        false => Ok(text),
    }
}

/// Whether this is a key's name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c.is_control() || c == '+')
}
