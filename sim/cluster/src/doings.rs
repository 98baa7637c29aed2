//! What the agent of `proto/agent` acts on in a simulated node: the gate's words in the model kernel, and instructions
//! to the process, which arrive a little later.

use crate::bucket_words::BucketWords;
use crate::kernel::Kernel;
use evergate_agent::{Notice, Outside, OwnerWord};
use evergate_base::Micros;
use evergate_membership::{Bucket, NodeId};
use evergate_worker::Instruction;

/// The model kernel, and what the agent decided.
pub(crate) struct Doings<'a> {
    me: NodeId,
    kernel: &'a mut Kernel,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) notices: Vec<Notice>,
}

impl Doings<'_> {
    /// The doings of one call on this node.
    pub(crate) fn of(me: NodeId, kernel: &mut Kernel) -> Doings<'_> {
        Doings { me, kernel, instructions: Vec::new(), notices: Vec::new() }
    }
}

impl Outside for Doings<'_> {
    fn set_owner(&mut self, bucket: Bucket, word: OwnerWord) {
        let words: &mut BucketWords = &mut self.kernel.words;
        match word.owner == Some(self.me) {
            true if word.on_hold => drop(words.held.insert(bucket)),
            true => {} // a hold lasts until the worker releases it
            false => words.disown(bucket),
        }
    }

    fn clear_owners(&mut self) {
        self.kernel.words.held.clear();
        self.kernel.words.closed.clear();
    }

    fn answer_unknown(&mut self, allowed: bool) {
        self.kernel.resets_unknown = allowed;
    }

    // The world checks leases by the protocol's own answer whenever a packet leaves.
    fn set_own_lease(&mut self, _: Micros) {}

    fn set_lease(&mut self, _: NodeId, _: Micros) {}

    fn set_lease_of_all(&mut self, _: Micros) {}

    fn revoke_leases(&mut self) {}

    fn instruct(&mut self, _: usize, instruction: Instruction) {
        self.instructions.push(instruction);
    }

    fn wall_clock_s(&self) -> u64 {
        0
    }

    fn note(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}
