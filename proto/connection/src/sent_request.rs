//! The request as a server leg sends it.

/// How many bytes of an idempotent request are kept for another try.
const RETAINED_MAX: usize = 65_536;

/// What a leg has sent of its request, and whether another leg may send the request again.
#[derive(Debug, Default)]
pub(crate) struct SentRequest {
    /// The request may be repeated although it was sent.
    pub(crate) idempotent: bool,
    /// What was sent, or is to be sent when the leg opens; kept while the request may be repeated.
    pub(crate) bytes: Vec<u8>,
    pub(crate) head_bytes: usize,
    /// Some byte has been handed to the server's socket, or waits in front of it.
    pub(crate) written: bool,
    pub(crate) body_bytes: u64,
    /// Of the body's framing: chunk sizes, extensions, trailers.
    pub(crate) framing_bytes: u64,
    /// The server is asked to close the connection after the response.
    pub(crate) closes: bool,
    /// The first write to the leg failed, so that no byte of the request has left.
    pub(crate) never_left: bool,
    /// What was written to the leg met a broken connection: its end may be a RST that reads like an end in order.
    pub(crate) in_doubt: bool,
}

impl SentRequest {
    /// Nothing is sent yet.
    pub(crate) fn new(idempotent: bool) -> SentRequest {
        SentRequest { idempotent, ..SentRequest::default() }
    }

    /// The same request for another leg, which has sent nothing of it.
    pub(crate) fn for_next_leg(self) -> SentRequest {
        SentRequest { written: false, never_left: false, in_doubt: false, ..self }
    }

    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let SentRequest {
            idempotent: _, bytes: _, head_bytes: _, written: _, body_bytes: _, never_left: _, in_doubt: _,
            framing_bytes: _, // some more are no harm
            closes: _, // of legs with backups
        } = self;
    }

    /// Keeps what was sent while the request may be repeated.
    pub(crate) fn retain(&mut self, data: &[u8]) {
        if !self.idempotent {
            self.bytes = Vec::new(); // not the whole request any more
            return;
        }
        if self.bytes.len() + data.len() > RETAINED_MAX {
            self.idempotent = false;
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(data);
        }
    }

    /// The leg is open, and these bytes are sent: keeps them while the request may be repeated. `reused`: the server
    /// may have closed the connection just before.
    pub(crate) fn retain_first(&mut self, sent: Vec<u8>, reused: bool) {
        let fits = sent.len() <= RETAINED_MAX;
        self.idempotent &= fits;
        if fits && (self.idempotent || reused) {
            self.bytes = sent; // without it what is kept of the body would be no request
        }
    }

    /// Whether another leg can send the request, and no server executes it twice. `free`: none has executed it.
    pub(crate) fn may_repeat(&self, free: bool) -> bool {
        let whole = !self.bytes.is_empty() && self.bytes.len() >= self.head_bytes;
        !self.written || (whole && (self.idempotent || free))
    }
}
