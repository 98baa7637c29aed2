//! Alert descriptions of RFC 8446 section 6 and RFC 5246 section 7.2, by the numbers on the wire.

/// The sender will send no more data.
pub const CLOSE_NOTIFY: u8 = 0;
/// A message or record that is not allowed at this point.
pub const UNEXPECTED_MESSAGE: u8 = 10;
/// A record that does not decrypt.
pub const BAD_RECORD_MAC: u8 = 20;
/// A record longer than the protocol allows.
pub const RECORD_OVERFLOW: u8 = 22;
/// No parameters that both sides support.
pub const HANDSHAKE_FAILURE: u8 = 40;
/// A field whose value is not allowed, or contradicts another.
pub const ILLEGAL_PARAMETER: u8 = 47;
/// The peer is authenticated, but access is denied.
pub const ACCESS_DENIED: u8 = 49;
/// A message that cannot be parsed.
pub const DECODE_ERROR: u8 = 50;
/// A signature, a Finished or a binder that does not verify.
pub(crate) const DECRYPT_ERROR: u8 = 51;
/// No version that both sides support.
pub const PROTOCOL_VERSION: u8 = 70;
/// An internal error of this side.
pub const INTERNAL_ERROR: u8 = 80;
/// The peer gave up for a reason outside the protocol; `CLOSE_NOTIFY` follows.
pub const USER_CANCELED: u8 = 90;
/// TLS 1.2: this side refuses a second handshake.
pub const NO_RENEGOTIATION: u8 = 100;

/// A message without an extension that its version requires (RFC 8446 section 9.2).
pub const MISSING_EXTENSION: u8 = 109;

/// No server for the requested name (RFC 6066 section 3).
pub const UNRECOGNIZED_NAME: u8 = 112;

/// A fatal alert record in clear, for the time before keys exist.
pub fn clear_alert(description: u8) -> [u8; 7] {
    const FATAL: u8 = 2;
    [21, 3, 3, 0, 2, FATAL, description]
}
