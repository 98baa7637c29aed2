//! Text of `rustls` errors for operators: several of its own texts are names of Rust variants.

use rustls::{AlertDescription, CertificateError, Error};

/// The error as text for log, status and health checks. One line; parts of it may come from the peer.
pub fn error_text(error: &Error) -> String {
    match error {
        Error::NoApplicationProtocol => "no application protocol (ALPN) in common".to_owned(),
        Error::InvalidCertificate(why) => format!("invalid peer certificate: {}", certificate_text(why)),
        Error::InvalidMessage(why) => format!("received a malformed message: {}", words(&format!("{why:?}"))),
        Error::PeerIncompatible(why) => format!("peer is incompatible: {}", words(&format!("{why:?}"))),
        Error::PeerMisbehaved(why) => format!("peer misbehaved: {}", words(&format!("{why:?}"))),
        Error::AlertReceived(AlertDescription::Unknown(number)) => format!("received fatal alert: {number}"),
        Error::AlertReceived(alert) => {
            let name = words(&format!("{alert:?}")).to_lowercase().replace(' ', "_"); // as in RFC 8446 section 6
            format!("received fatal alert: {name}")
        }
        other => other.to_string(),
    }
}

fn certificate_text(error: &CertificateError) -> String {
    use CertificateError as C;
    #[expect(deprecated, reason = "other crates may still return the variant without context")]
    let text = match error {
        C::BadEncoding => "malformed certificate",
        C::Expired => "certificate expired",
        C::NotValidYet => "certificate not valid yet",
        C::Revoked => "certificate revoked",
        C::UnhandledCriticalExtension => "certificate has a critical extension that is not supported",
        C::UnknownIssuer => "unknown issuer: it leads to no trusted authority",
        C::UnknownRevocationStatus => "certificate of unknown revocation status",
        C::ExpiredRevocationList => "certificate revocation list expired",
        C::BadSignature => "signature does not verify",
        C::UnsupportedSignatureAlgorithm | C::UnsupportedSignatureAlgorithmContext { .. } => {
            "unsupported signature algorithm"
        }
        C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "signature algorithm does not match the public key"
        }
        C::NotValidForName => "certificate not valid for the expected name",
        C::InvalidPurpose => "certificate not meant for this purpose (extended key usage)",
        C::InvalidOcspResponse => "invalid OCSP response",
        C::ApplicationVerificationFailure => "certificate refused by the application",
        C::Other(why) => return other_text(&why.to_string()),
        with_context => return with_context.to_string(), // expiry, names and purposes: sentences already
    };
    text.to_owned()
}

/// The text of an error of `webpki` for which `rustls` has no variant, from the name of its variant.
fn other_text(name: &str) -> String {
    let text = match name {
        "CaUsedAsEndEntity" => {
            "certificate of an authority (basicConstraints CA:TRUE), which is no peer's own"
        }
        "EndEntityUsedAsCa" => "issuer in the chain is no authority (basicConstraints CA:TRUE is missing)",
        "UnsupportedCertVersion" => "certificate is not of X.509 version 3",
        "SignatureAlgorithmMismatch" => "certificate names two different signature algorithms",
        name if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => return words(name),
        sentence => sentence,
    };
    text.to_owned()
}

/// Changes `NoCipherSuitesInCommon` to `no cipher suites in common`; other texts are unchanged.
fn words(names: &str) -> String {
    let mut out = String::new();
    let mut name = String::new();
    let flush = |name: &mut String, out: &mut String| {
        let abbreviation = name.len() > 1 && !name.bytes().any(|byte| byte.is_ascii_lowercase());
        out.push_str(&if abbreviation { name.clone() } else { name.to_lowercase() });
        name.clear();
    };
    let mut before = ' ';
    for c in names.chars() {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            flush(&mut name, &mut out);
            out.push(' ');
        }
        name.push(c);
        before = c;
    }
    flush(&mut name, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{InvalidMessage, OtherError, PeerIncompatible};
    use std::sync::Arc;

    #[derive(Debug)]
    struct Named(&'static str);

    impl std::fmt::Display for Named {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Named {}

    fn other(name: &'static str) -> Error {
        CertificateError::Other(OtherError(Arc::new(Named(name)))).into()
    }

    #[test]
    fn error_text_has_words_and_no_variant_names() {
        let table = [
            (CertificateError::UnknownIssuer.into(), "unknown issuer"),
            (CertificateError::Expired.into(), "certificate expired"),
            (CertificateError::NotValidYet.into(), "not valid yet"),
            (CertificateError::NotValidForName.into(), "not valid for the expected name"),
            (CertificateError::Revoked.into(), "revoked"),
            (CertificateError::BadSignature.into(), "does not verify"),
            (CertificateError::InvalidPurpose.into(), "extended key usage"),
            (other("CaUsedAsEndEntity"), "certificate of an authority (basicConstraints CA:TRUE)"),
            (other("EndEntityUsedAsCa"), "no authority"),
            (other("PathLenConstraintViolated"), ": path len constraint violated"),
            (other("a sentence, with Words"), ": a sentence, with Words"),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "fatal alert: handshake_failure"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "fatal alert: unknown_ca"),
            (Error::AlertReceived(AlertDescription::Unknown(200)), "fatal alert: 200"),
            (PeerIncompatible::NoCipherSuitesInCommon.into(), "incompatible: no cipher suites in common"),
            (InvalidMessage::InvalidContentType.into(), "message: invalid content type"),
            (Error::NoApplicationProtocol, "no application protocol"),
            (Error::DecryptError, "cannot decrypt"),
        ];
        for (error, part) in table {
            let text = error_text(&error);
            assert!(text.contains(part) && !text.contains("Other("), "{error:?}: {text}");
        }
    }

    #[test]
    fn words_splits_names_and_keeps_abbreviations() {
        for (name, text) in [
            ("UnknownCA", "unknown CA"),
            ("Tls12NotOffered", "tls12 not offered"),
            ("MissingData(\"Finished\")", "missing data(\"finished\")"),
            ("", ""),
        ] {
            assert_eq!(words(name), text);
        }
    }
}
