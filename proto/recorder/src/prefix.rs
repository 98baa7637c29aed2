//! First bytes of one direction of a connection, put in order: enough for a hello.
//!
//! Bounds: [`PENDING_MAX`] segments wait for earlier ones, and a prefix has at most the limit of its direction.

/// Most segments that wait for an earlier one.
const PENDING_MAX: usize = 4;

/// First bytes of one direction.
#[derive(Debug, Default)]
pub(crate) struct Prefix {
    /// Sequence number behind `bytes`; `None` before the first segment.
    next: Option<u32>,
    bytes: Vec<u8>,
    pending: Vec<(u32, Vec<u8>)>,
}

impl Prefix {
    /// Takes the payload of a segment; answers whether `bytes` grew.
    pub(crate) fn push(&mut self, seq: u32, payload: &[u8], limit: usize) -> bool {
        let next = *self.next.get_or_insert(seq);
        let before = self.bytes.len();
        let ahead = seq.wrapping_sub(next) as i32;
        if ahead > 0 {
            if self.pending.len() < PENDING_MAX && (ahead as usize) < limit {
                self.pending.push((seq, payload[..payload.len().min(limit)].to_vec()));
            }
            return false;
        }
        self.append(seq, payload, limit);
        while let Some(place) = self.pending.iter().position(|(seq, _)| self.is_due(*seq)) {
            let (seq, payload) = self.pending.swap_remove(place);
            self.append(seq, &payload, limit);
        }
        self.bytes.len() > before
    }

    /// Sets the place of the first byte, behind a SYN.
    pub(crate) fn start(&mut self, seq: u32) {
        self.next = Some(seq);
    }

    /// The bytes in order.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn is_due(&self, seq: u32) -> bool {
        self.next.is_some_and(|next| seq.wrapping_sub(next) as i32 <= 0)
    }

    fn append(&mut self, seq: u32, payload: &[u8], limit: usize) {
        let Some(next) = self.next else { return };
        let skip = next.wrapping_sub(seq) as usize;
        let new = payload.get(skip..).unwrap_or_default();
        let room = limit.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&new[..new.len().min(room)]);
        self.next = Some(next.wrapping_add(new.len() as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_out_of_order_are_put_in_order() {
        let mut prefix = Prefix::default();
        prefix.start(u32::MAX);
        assert!(!prefix.push(2, b"def", 100));
        assert!(prefix.push(u32::MAX, b"abc", 100));
        assert!(!prefix.push(u32::MAX, b"abc", 100));
        assert_eq!(prefix.bytes(), b"abcdef");
    }

    #[test]
    fn limit_bounds_the_bytes() {
        let mut prefix = Prefix::default();
        prefix.push(5, &[7; 50], 20);
        assert_eq!(prefix.bytes().len(), 20);
    }
}
