//! Limits on what a peer may send, and the verdict when a message is refused.

/// Limits of one message. Units are in the names; heads and trailers are counted with their line ends.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Start line and headers together, with the empty line that ends them.
    pub head_bytes_max: usize,
    /// Number of header lines; never more than the 128 that [`crate::HeaderSlots`] holds.
    pub headers_max: usize,
    /// The request target as sent.
    pub target_bytes_max: usize,
    /// All trailer lines of a chunked body, with the empty line that ends them.
    pub trailer_bytes_max: usize,
    /// One chunk-size line: digits and extensions.
    pub chunk_line_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes_max: 16 * 1024,
            headers_max: 100,
            target_bytes_max: 8 * 1024,
            trailer_bytes_max: 4 * 1024,
            chunk_line_bytes_max: 256,
        }
    }
}

impl Limits {
    /// Head positions have 32 bits; no configuration may ask for more than this.
    const HEAD_BYTES_CEILING: usize = 1 << 24;

    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes_max.min(Self::HEAD_BYTES_CEILING)
    }
}

/// Verdict on a refused message: the status to answer and a stable token for logs and counters.
///
/// The status is 400, 414, 417, 431, 501 or 505 for a request and 502 for a response. A [`crate::Body`] belongs to
/// either, so [`crate::Body::advance`] returns 400: see [`Refusal::for_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message refused with status {status}: {reason}")]
pub struct Refusal {
    /// The HTTP status to answer with.
    pub status: u16,
    /// A stable `snake_case` token.
    pub reason: &'static str,
}

impl Refusal {
    pub(crate) const fn bad(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }

    pub(crate) const fn with(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }

    /// The same refusal for a fault of the server: the client receives a 502.
    pub const fn for_response(self) -> Self {
        Self { status: 502, reason: self.reason }
    }
}

/// Result of parsing the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The bytes are valid so far; more are needed.
    Partial,
    /// The complete message part.
    Complete(T),
}
