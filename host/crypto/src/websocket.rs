//! Answer of a WebSocket server to a client's key.

use crate::base64;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// Fixed suffix of the key (RFC 6455 section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `Sec-WebSocket-Accept` of a `Sec-WebSocket-Key` (RFC 6455 section 4.2.2). It protects nothing; it only shows
/// that the server supports WebSocket.
pub fn websocket_accept(key: &str) -> String {
    base64::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    /// Example of RFC 6455 section 1.3.
    #[test]
    fn accept_value_is_that_of_the_rfc() {
        assert_eq!(super::websocket_accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
