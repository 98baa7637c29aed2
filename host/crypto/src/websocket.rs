//! What a WebSocket server answers to a client's key.

use crate::base64;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// RFC 6455 section 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `Sec-WebSocket-Accept` that belongs to a `Sec-WebSocket-Key` (RFC 6455 section 4.2.2). It protects nothing: it shows
/// that the server speaks WebSocket.
pub fn websocket_accept(key: &str) -> String {
    base64::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    /// RFC 6455 section 1.3.
    #[test]
    fn the_answer_is_the_one_of_the_rfc() {
        assert_eq!(super::websocket_accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
