//! Output that the peers of a connection with backups have acknowledged.

/// Output positions that the client and one server have acknowledged.
#[derive(Debug, Default)]
pub(crate) struct PeerAcks {
    /// Output position that the client has acknowledged.
    pub(crate) client: u64,
    /// The client of a plaintext connection has not acknowledged its position, which may be beyond this.
    pub(crate) loss_notices: Option<u64>,
    /// Number of a server leg, and the output position that its server has acknowledged.
    server: (u32, u64),
    /// Something was learned since the last call.
    pub(crate) has_news: bool,
}

impl PeerAcks {
    /// What a restored connection starts from: its client has `output`.
    pub(crate) fn starting_at(output: u64) -> PeerAcks {
        PeerAcks { client: output, ..PeerAcks::default() }
    }

    /// A leg is restored: its server has `output`.
    pub(crate) fn restore_server(&mut self, leg: u32, output: u64) {
        self.server = (leg, output);
    }

    /// Whether the node before has, or may have, sent more than this: the client has acknowledged it, or is silent. In
    /// plaintext no entry need record it.
    pub(crate) fn has_sent(&self, output: u64) -> bool {
        self.client > output || self.loss_notices.is_some()
    }

    /// The client has so much.
    pub(crate) fn note_client(&mut self, output: u64) {
        self.client = self.client.max(output);
        self.loss_notices = self.loss_notices.filter(|known| output <= *known);
        self.has_news = true;
    }

    /// The server of a leg has so much.
    pub(crate) fn note_server(&mut self, leg: u32, output: u64) {
        let (known, acked) = self.server;
        if leg > known {
            self.server = (leg, output);
        } else if leg == known {
            self.server.1 = acked.max(output);
        }
        self.has_news = true;
    }

    /// Output position that the server of a leg has acknowledged.
    pub(crate) fn server(&self, leg: u32) -> u64 {
        if self.server.0 == leg { self.server.1 } else { 0 }
    }

    /// Whether the server of a leg has acknowledged the output up to a position.
    pub(crate) fn has_server(&self, leg: u32, output: u64) -> bool {
        self.server.0 == leg && self.server.1 >= output
    }
}
