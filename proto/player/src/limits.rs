//! Bounds of a session's memory.

/// Bounds of one session, in bytes where nothing else is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload of one direction that waits for earlier bytes; more makes the missing bytes a hole.
    pub pending: usize,
    /// Payload of one direction that is kept to compare repeats with it.
    pub history: usize,
    /// Raw bytes of one direction that wait to be opened.
    pub records: usize,
    /// IP fragments that wait for the rest of their packet.
    pub fragments: usize,
    /// Start line and header lines of a message.
    pub head: usize,
    /// Body of a message that is kept. Longer bodies are counted and digested, and their end is left out.
    pub body: usize,
    /// Packets whose copies from other Recorders are recognised, 60 bytes each; 0 for a single Recorder.
    pub copies: usize,
}

impl Limits {
    /// Limits of one of `sessions` that share this memory.
    pub fn of_memory(bytes: usize, sessions: usize) -> Limits {
        let share = (bytes / sessions.max(1)).max(256 << 10);
        Limits {
            pending: share / 8,
            history: (share / 16).min(1 << 20),
            records: (share / 8).max(64 << 10),
            fragments: (share / 16).max(80 << 10),
            head: (share / 16).min(256 << 10),
            body: share / 8,
            copies: (share / 512).min(4096),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::of_memory(512 << 20, 1)
    }
}
