//! Properties of the TLS session that rules and logs may use, and their wire form inside a log entry.

use crate::audit::{ENVELOPE_BYTES_MAX, SealedSecrets};
use crate::certificate_subject::subject_text;
use evergate_base::session::SessionId;
use evergate_tls::Version;

/// The bit for the first text; the bits of the other texts follow, then the policy's and that of sealed secrets.
const FIRST_TEXT: u8 = 4;
const POLICY: u8 = FIRST_TEXT << 3;
const SEALED: u8 = POLICY << 1;

/// The longest text that the wire form has whole.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;

/// What rules and logs may know of the TLS session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsInfo {
    pub(crate) version: &'static str,
    /// The cipher suite's registered number.
    pub(crate) suite: u16,
    pub(crate) sni: Option<String>,
    pub(crate) alpn: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) resumed: bool,
    /// Where the session goes by an id; none any more when it was withdrawn.
    pub(crate) session: Option<Box<SessionId>>,
    /// What the client was let in under, where it was asked for a certificate.
    pub(crate) policy: Option<Box<[u8; 32]>>,
    /// Sealed secrets of an audited connection.
    pub(crate) sealed: Option<Box<SealedSecrets>>,
}

impl TlsInfo {
    /// Whether the version is TLS 1.3.
    pub(crate) fn is_tls13(&self) -> bool {
        self.version == "TLSv1.3"
    }

    /// The registered name of the cipher suite.
    pub(crate) fn suite_name(&self) -> &'static str {
        evergate_tls::suite_name(self.suite)
    }

    /// The wire form inside a log entry: a bit set of the parts, the suite, length-prefixed texts, the policy, the
    /// sealed secrets, then the session's id.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let texts = [&self.sni, &self.alpn, &self.subject];
        let mut out = vec![u8::from(self.is_tls13()) | u8::from(self.resumed) << 1];
        out.extend_from_slice(&self.suite.to_be_bytes());
        for (index, text) in texts.into_iter().enumerate() {
            let Some(text) = text else { continue };
            out[0] |= FIRST_TEXT << index;
            let bytes = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
            out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
            out.extend_from_slice(bytes);
        }
        if let Some(policy) = &self.policy {
            out[0] |= POLICY;
            out.extend_from_slice(&policy[..]);
        }
        if let Some(sealed) = &self.sealed {
            out[0] |= SEALED;
            out.extend_from_slice(&sealed.client_random);
            out.extend_from_slice(&(sealed.envelope.len() as u16).to_be_bytes());
            out.extend_from_slice(&sealed.envelope);
        }
        out.extend_from_slice(self.session.as_deref().map_or(&[][..], |id| id));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<TlsInfo> {
        let (&[there, high, low], mut bytes) = bytes.split_first_chunk::<3>()?;
        let mut texts: [Option<String>; 3] = Default::default();
        if there >= SEALED << 1 {
            return None;
        }
        for (index, text) in texts.iter_mut().enumerate() {
            if there & (FIRST_TEXT << index) != 0 {
                let (&length, rest) = bytes.split_first_chunk::<2>()?;
                let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(length)))?;
                bytes = rest;
                *text = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        let [sni, alpn, subject] = texts;
        let mut policy = None;
        if there & POLICY != 0 {
            let (found, rest) = bytes.split_first_chunk::<32>()?;
            (policy, bytes) = (Some(Box::new(*found)), rest);
        }
        let mut sealed = None;
        if there & SEALED != 0 {
            let (client_random, rest) = bytes.split_first_chunk::<32>()?;
            let (&length, rest) = rest.split_first_chunk::<2>()?;
            let (envelope, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(length)))?;
            if envelope.len() > ENVELOPE_BYTES_MAX {
                return None;
            }
            let found = SealedSecrets { client_random: *client_random, envelope: envelope.to_vec() };
            (sealed, bytes) = (Some(Box::new(found)), rest);
        }
        let version = if there & 1 == 1 { "TLSv1.3" } else { "TLSv1.2" };
        let session = match bytes {
            [] => None,
            id => Some(Box::new(id.try_into().ok()?)),
        };
        let (suite, resumed) = (u16::from_be_bytes([high, low]), there & 2 == 2);
        Some(TlsInfo { version, suite, sni, alpn, subject, resumed, session, policy, sealed })
    }

    pub(crate) fn of(
        facts: evergate_tls::SessionFacts,
        session: Option<SessionId>,
        policy: Option<[u8; 32]>,
    ) -> TlsInfo {
        let subject = facts.client_certificates.first().and_then(|certificate| subject_text(certificate));
        TlsInfo {
            version: if facts.version == Version::Tls13 { "TLSv1.3" } else { "TLSv1.2" },
            suite: facts.suite_number,
            sni: facts.sni,
            alpn: facts.alpn.map(|alpn| String::from_utf8_lossy(&alpn).into_owned()),
            subject,
            resumed: facts.resumed,
            session: session.map(Box::new),
            policy: policy.map(Box::new),
            sealed: None,
        }
    }
}
