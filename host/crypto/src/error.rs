//! Errors of configuration and machine, none of a peer. Each message states the remedy.

/// Reason why a file with parts of PEM is not PEM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PemError(pub(crate) String);

/// Reason why a certificate or private key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file holds no certificate, or a broken one.
    #[error("certificate chain: {0}; expected PEM blocks `BEGIN CERTIFICATE`, the server's own first")]
    Chain(String),
    /// The certificate itself cannot be read.
    #[error("certificate: cannot parse it: {0}")]
    Certificate(String),
    /// The file holds no private key, or a broken one.
    #[error("private key: {0}; expected one unencrypted PEM block (PKCS#8, SEC1 or PKCS#1)")]
    Key(String),
    /// The key is protected by a passphrase.
    #[error("private key is encrypted; decrypt it first: openssl pkey -in key.pem -out plain.pem")]
    Encrypted,
    /// The key is of a kind that cannot sign reproducibly.
    #[error(
        "private key: {0} is not supported; use ECDSA P-256, P-384 or P-521, RSA of 2048 to 4096 bits, or Ed25519"
    )]
    Unsupported(String),
    /// Certificate and key do not belong together.
    #[error(
        "private key does not belong to certificate {subject}; check that both files are from one issuance"
    )]
    Mismatch {
        /// Subject of the certificate.
        subject: String,
    },
    /// The key is that of another certificate of the chain.
    #[error(
        "certificate chain: {subject} stands first, and the private key is that of number {number}, {own}; begin the \
         file with {own}, then its issuer, then the issuer of that"
    )]
    Order {
        /// Subject of the first certificate.
        subject: String,
        /// Subject of the certificate that the key belongs to.
        own: String,
        /// Its position in the chain, from 1.
        number: usize,
    },
    /// The certificate is of a version without extensions, so it cannot state its purpose.
    #[error(
        "certificate {subject} is of X.509 version {version}, and TLS needs version 3; reissue it with extensions, \
         such as subjectAltName (openssl x509 -extfile)"
    )]
    Version {
        /// Subject of the certificate.
        subject: String,
        /// Its version, from 1.
        version: u32,
    },
    /// The TLS library cannot use the certificate.
    #[error("certificate {subject} cannot be used: {reason}; reissue it")]
    Unusable {
        /// Subject of the certificate.
        subject: String,
        /// Reason of the library.
        reason: String,
    },
    /// The certificate names no host.
    #[error(
        "certificate {subject} names no host: it has neither subject alternative names nor a common name"
    )]
    NoName {
        /// Subject of the certificate.
        subject: String,
    },
    /// A self-signed certificate could not be made.
    #[error("cannot make a self-signed certificate for {names}: {reason}")]
    SelfSigned {
        /// The requested names.
        names: String,
        /// The cause.
        reason: String,
    },
}

/// Reason why ticket keys cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketKeyError {
    /// The file is empty.
    #[error("ticket key file holds no key")]
    Empty,
    /// A text line that is not a key.
    #[error(
        "ticket key file, line {line}: {reason}; expected 64 bytes in base64, then optionally a unix time"
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Fault of the line.
        reason: &'static str,
    },
    /// A binary file of a wrong size.
    #[error("ticket key file of {0} bytes is neither text nor a row of 64-byte keys")]
    Length(usize),
    /// More keys than a node keeps.
    #[error("ticket key file holds {0} keys; keep the newest 3, newest first")]
    TooMany(usize),
    /// One key twice.
    #[error("ticket key file holds key {0} twice")]
    Duplicate(usize),
}

/// Reason why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No certificate is configured.
    #[error("no certificate configured; a tls listener needs at least one")]
    NoCertificate,
    /// The version range is empty.
    #[error("minimum tls version is above the maximum")]
    Versions,
    /// An ALPN name that cannot be sent.
    #[error("application protocol of {0} bytes; a name has 1 to 255")]
    Alpn(usize),
    /// Client authentication without a root to trust.
    #[error("client certificates are asked for, but no root certificate is given to check them against")]
    NoRoots,
    /// Client authentication with certificates of which none may issue others.
    #[error(
        "client certificates are asked for, but none of those to check them against is an authority's \
         (basicConstraints CA:TRUE, and keyCertSign where there is a keyUsage)"
    )]
    NoAuthority,
    /// A root certificate that cannot be used.
    #[error("root certificate {index}: {reason}")]
    Root {
        /// Its position in the list, from 0.
        index: usize,
        /// Fault of the certificate.
        reason: String,
    },
    /// No file with the system's roots was found.
    #[error("no system root certificates found at {0}; install ca-certificates or name the roots")]
    NoSystemRoots(String),
    /// `rustls` refused the configuration.
    #[error("tls library refused the configuration: {0}")]
    Tls(#[from] rustls::Error),
}
