//! Input that a restored server leg has yet to take in.

/// What of the client and of the server the node before had, and this one has yet to process.
#[derive(Debug, Default)]
pub(crate) struct PendingInput {
    /// The client will send the request's head again.
    pub(crate) awaits_head: bool,
    /// Stashed input of the server.
    pub(crate) stashed: Vec<u8>,
    /// End of the server's stream, if it ended: a server whose end was acknowledged does not send it again.
    pub(crate) ends_at: Option<u64>,
}

impl PendingInput {
    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let PendingInput {
            awaits_head: _, stashed: _, ends_at: _, // of restored legs, which stay
        } = self;
    }
}
