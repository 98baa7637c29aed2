//! What rules and logs may know of the TLS session, and its wire form inside a mirror entry.

use evergate_base::session::SessionId;
use evergate_tls::Version;

/// What rules and logs may know of the TLS session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) version: &'static str,
    pub(crate) suite: String,
    pub(crate) sni: Option<String>,
    pub(crate) alpn: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) resumed: bool,
    /// Where the session goes by an id; none any more when it was withdrawn.
    pub(crate) session: Option<Box<SessionId>>,
}

impl Facts {
    /// The wire form inside a mirror entry: length-prefixed texts, then the session's id.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![(self.version == "TLSv1.3") as u8, self.resumed as u8];
        let texts = [Some(&self.suite), self.sni.as_ref(), self.alpn.as_ref(), self.subject.as_ref()];
        for text in texts {
            let bytes = text.map_or(&b""[..], |text| text.as_bytes());
            let bytes = &bytes[..bytes.len().min(4096)];
            out.push(text.is_some() as u8);
            out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
            out.extend_from_slice(bytes);
        }
        out.extend_from_slice(self.session.as_deref().map_or(&[][..], |id| id));
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Facts> {
        let (head, rest) = bytes.split_first_chunk::<2>()?;
        bytes = rest;
        let mut texts: [Option<String>; 4] = Default::default();
        for text in &mut texts {
            let (head, rest) = bytes.split_first_chunk::<3>()?;
            let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([head[1], head[2]])))?;
            bytes = rest;
            if head[0] == 1 {
                *text = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        let [suite, sni, alpn, subject] = texts;
        let version = if head[0] == 1 { "TLSv1.3" } else { "TLSv1.2" };
        let session = match bytes {
            [] => None,
            id => Some(Box::new(id.try_into().ok()?)),
        };
        let suite = suite.unwrap_or_default();
        Some(Facts { version, suite, sni, alpn, subject, resumed: head[1] == 1, session })
    }

    pub(crate) fn of(facts: evergate_tls::SessionFacts, session: Option<SessionId>) -> Facts {
        let subject = facts.client_certificates.first().map(|certificate| subject_text(certificate));
        Facts {
            version: if facts.version == Version::Tls13 { "TLSv1.3" } else { "TLSv1.2" },
            suite: facts.suite.to_string(),
            sni: facts.sni,
            alpn: facts.alpn.map(|alpn| String::from_utf8_lossy(&alpn).into_owned()),
            subject,
            resumed: facts.resumed,
            session: session.map(Box::new),
        }
    }
}

fn subject_text(certificate: &[u8]) -> String {
    use x509_parser::prelude::{FromDer, X509Certificate};
    X509Certificate::from_der(certificate).map(|(_, parsed)| parsed.subject().to_string()).unwrap_or_default()
}
