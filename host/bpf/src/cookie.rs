//! Cookies of the stateless accept, as `bpf/accept.bpf.c` makes them.

use crate::Flow;
use crate::flow::words;
use evergate_base::Sip;
use std::num::NonZeroU8;

/// Key of the cookies: the same on all nodes, a secret.
#[derive(Clone, Copy)]
pub struct CookieKey(pub [u64; 2]);

impl CookieKey {
    /// Whether a node has answered a SYN of this flow with the number `theirs` by the number `ours`, in `epoch` or the
    /// one before or after. One of five million wrong pairs looks like that.
    pub(crate) fn has_answered(self, flow: &Flow, theirs: u32, ours: u32, epoch: u32) -> bool {
        // 0: the epoch before, 1: this one, 2: the next
        let distance = (ours >> 8).wrapping_sub(epoch).wrapping_add(1) & 3;
        let of = epoch.wrapping_add(distance).wrapping_sub(1);
        distance != 3 && self.hash(flow, of, ours & 0xff).wrapping_add(theirs) << 10 == ours & !0x3ff
    }

    /// Offset of the timestamps of a node's SYN-ACKs from its monotonic clock, in milliseconds: another number on each
    /// node. Clients do not learn the machine's uptime (RFC 7323, section 7.1).
    pub(crate) fn timestamp_offset(self, node: NonZeroU8) -> u32 {
        let mut state = Sip::new(self.0);
        state.word_in_two_rounds(u64::from(node.get()));
        state.word_in_two_rounds(8 << 56);
        state.finish_after(4) as u32
    }

    /// SipHash-2-4 of the flow, the epoch and the option bits.
    fn hash(self, flow: &Flow, epoch: u32, options: u32) -> u32 {
        let (remote, local) = (words(flow.remote.ip()), words(flow.local.ip()));
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let ports = u32::from(flow.remote.port().to_be()) << 16 | u32::from(flow.local.port().to_be());
        let mut state = Sip::new(self.0);
        for word in [
            pair(remote[0], remote[1]),
            pair(remote[2], remote[3]),
            pair(local[0], local[1]),
            pair(local[2], local[3]),
            pair(ports, 0),
            pair(epoch, options),
            48 << 56,
        ] {
            state.word_in_two_rounds(word);
        }
        state.finish_after(4) as u32
    }
}
