//! The response as a server leg receives it.

/// Interim responses to one request: each gives its server more time, and no state may last for ever.
const INTERIMS_MAX: u32 = 100;

/// How far the response has come.
#[derive(Debug, Default)]
pub(crate) struct ReceivedResponse {
    /// A partial response head.
    pub(crate) held: Vec<u8>,
    /// Some byte of the response has been passed on.
    pub(crate) answered: bool,
    /// All that the client has of it are interim answers (1xx): an answer of our own may still follow.
    pub(crate) interim: bool,
    /// Interim answers so far.
    interims: u32,
    /// The server keeps the connection open after this response.
    pub(crate) keep_alive: bool,
    /// The server's stream has ended.
    pub(crate) ended: bool,
}

impl ReceivedResponse {
    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let ReceivedResponse {
            held: _, answered: _, keep_alive: _, ended: _,
            interim: _, // without it nothing of our own follows what went out
            interims: _, // some more are no harm
        } = self;
    }

    /// A whole head has come. False when there are too many interim heads.
    pub(crate) fn note_head(&mut self, interim: bool) -> bool {
        self.interims += u32::from(interim);
        self.interims <= INTERIMS_MAX
    }

    /// Bytes were passed on. `interim`: a further head is expected behind them.
    pub(crate) fn note_passed_on(&mut self, interim: bool) {
        self.interim = interim && (self.interim || !self.answered);
        self.answered = true;
    }
}
