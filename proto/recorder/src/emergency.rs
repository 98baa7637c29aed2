//! Emergency mode: the ring fills faster than digests can be made.
//!
//! The mode begins when half of the ring's blocks are ready, and ends when at most an eighth is. In it the Recorder
//! writes blocks as they are, and defers digests and index rows. Statements sign the time that the mode lasted.

/// State of the mode, and the time that it lasted.
#[derive(Clone, Debug, Default)]
pub struct Emergency {
    since_ns: Option<u64>,
    lasted_ns: u64,
    entered: u64,
}

/// Change of the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The mode begins.
    Enter,
    /// The mode ends.
    Leave,
}

impl Emergency {
    /// Takes the number of ready blocks of `blocks` in the ring.
    pub fn on_ready(&mut self, ready: usize, blocks: usize, now_ns: u64) -> Option<Change> {
        match self.since_ns {
            None if ready * 2 >= blocks && ready > 0 => {
                self.since_ns = Some(now_ns);
                self.entered += 1;
                Some(Change::Enter)
            }
            Some(since_ns) if ready * 8 <= blocks => {
                self.lasted_ns += now_ns.saturating_sub(since_ns);
                self.since_ns = None;
                Some(Change::Leave)
            }
            _ => None,
        }
    }

    /// Whether the mode lasts.
    pub fn is_active(&self) -> bool {
        self.since_ns.is_some()
    }

    /// Times that the mode began.
    pub fn entered(&self) -> u64 {
        self.entered
    }

    /// Time that the mode lasted until now, in milliseconds.
    pub fn lasted_ms(&self, now_ns: u64) -> u32 {
        let current = self.since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        u32::try_from((self.lasted_ns + current) / 1_000_000).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_lasts_from_half_to_an_eighth() {
        let mut mode = Emergency::default();
        assert_eq!(mode.on_ready(31, 64, 0), None);
        assert_eq!(mode.on_ready(32, 64, 1_000_000), Some(Change::Enter));
        assert_eq!(mode.on_ready(9, 64, 2_000_000), None);
        assert_eq!(mode.lasted_ms(3_000_000), 2);
        assert_eq!(mode.on_ready(8, 64, 5_000_000), Some(Change::Leave));
        assert_eq!((mode.is_active(), mode.lasted_ms(9_000_000), mode.entered()), (false, 4, 1));
    }
}
