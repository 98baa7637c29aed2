//! Lanes: each digests one message after the other, side by side with the others.
//!
//! A message is cut into three runs of whole blocks: the head with the start of the body, the body in place, and the
//! end with its padding. Each step compresses as many blocks as the shortest present run has. A lane that is done gets
//! the next message. When few messages are left, each is finished alone.

use crate::wide::{BLOCK, LANES, LANES_WORTH, State, Wide};
use crate::{HEAD_BYTES_MAX, Message, Sha256Digest, sha256};
use sha2::block_api::compress256;

/// State before the first block.
const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
/// Most blocks of a step: the length of the input of a lane without a message.
const STEP_BLOCKS: usize = 64;
/// Input of a lane without a message.
static NOTHING: [u8; STEP_BLOCKS * BLOCK] = [0; STEP_BLOCKS * BLOCK];
/// Bytes of a message's length at its end.
const LENGTH_BYTES: usize = 8;

/// A message in work.
struct Lane<'a> {
    /// Number of the message, and so of its digest.
    index: usize,
    front: [u8; HEAD_BYTES_MAX],
    front_len: usize,
    middle: &'a [u8],
    back: [u8; 2 * BLOCK],
    back_len: usize,
    /// Bytes that are compressed, of all three runs.
    done: usize,
}

/// Copies the bytes from `from` on of head and body, one behind the other, until `to` is full.
fn copy(message: &Message<'_>, from: usize, to: &mut [u8]) {
    let head = message.head.get(from..).unwrap_or(&[]);
    let (in_head, in_body) = to.split_at_mut(head.len().min(to.len()));
    in_head.copy_from_slice(&head[..in_head.len()]);
    let start = from.saturating_sub(message.head.len());
    in_body.copy_from_slice(&message.body[start..start + in_body.len()]);
}

impl<'a> Lane<'a> {
    /// A lane at the start of a message whose head has at most [`HEAD_BYTES_MAX`] bytes.
    fn new(index: usize, message: &Message<'a>) -> Lane<'a> {
        let total = message.head.len() + message.body.len();
        let whole = total - total % BLOCK;
        let front_len = message.head.len().next_multiple_of(BLOCK).min(whole);
        let mut front = [0; HEAD_BYTES_MAX];
        copy(message, 0, &mut front[..front_len]);
        let middle = match whole - front_len {
            0 => &[][..],
            length => &message.body[front_len - message.head.len()..][..length],
        };
        let rest = total - whole;
        let back_len = (rest + 1 + LENGTH_BYTES).next_multiple_of(BLOCK);
        let mut back = [0; 2 * BLOCK];
        copy(message, whole, &mut back[..rest]);
        back[rest] = 0x80;
        back[back_len - LENGTH_BYTES..back_len].copy_from_slice(&(total as u64 * 8).to_be_bytes());
        Lane { index, front, front_len, middle, back, back_len, done: 0 }
    }

    /// What is left of the present run; empty at the end of the message.
    fn input(&self) -> &[u8] {
        let (middle, back) = (self.front_len, self.front_len + self.middle.len());
        if self.done < middle {
            &self.front[self.done..self.front_len]
        } else if self.done < back {
            &self.middle[self.done - middle..]
        } else {
            &self.back[self.done - back..self.back_len]
        }
    }
}

/// Digests messages side by side.
pub(crate) fn digest_side_by_side(wide: Wide, messages: &[Message<'_>], digests: &mut Vec<Sha256Digest>) {
    let start = digests.len();
    digests.resize(start + messages.len(), [0; 32]);
    let digests = &mut digests[start..];
    let mut waiting = messages.iter().enumerate();
    let mut lanes: [Option<Lane<'_>>; LANES] = std::array::from_fn(|_| None);
    let mut state: State = [[0; LANES]; 8];
    loop {
        for (column, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.is_none()) {
            *lane = next_lane(&mut waiting, digests);
            if let Some(later) = lane.as_ref().and_then(|lane| messages.get(lane.index + LANES)) {
                wide.prefetch(later.body);
            }
            state.iter_mut().zip(START).for_each(|(word, start)| word[column] = start);
        }
        if lanes.iter().flatten().count() < LANES_WORTH {
            break;
        }
        step(wide, &mut lanes, &mut state, digests);
    }
    for (column, lane) in lanes.iter().enumerate() {
        if let Some(lane) = lane {
            digests[lane.index] = finish(lane, state.map(|word| word[column]), lane.done);
        }
    }
}

/// The next message for a lane. Messages with long heads are digested here.
fn next_lane<'a: 'b, 'b>(
    waiting: &mut impl Iterator<Item = (usize, &'b Message<'a>)>,
    digests: &mut [Sha256Digest],
) -> Option<Lane<'a>> {
    for (index, message) in waiting {
        if message.head.len() <= HEAD_BYTES_MAX {
            return Some(Lane::new(index, message));
        }
        digests[index] = sha256(message);
    }
    None
}

/// Compresses as many blocks as the shortest run has, and takes the digests of messages that are complete.
fn step(wide: Wide, lanes: &mut [Option<Lane<'_>>; LANES], state: &mut State, digests: &mut [Sha256Digest]) {
    let mut inputs = [&NOTHING[..]; LANES];
    for (input, lane) in inputs.iter_mut().zip(lanes.iter()) {
        if let Some(lane) = lane {
            *input = lane.input();
        }
    }
    let blocks = inputs.iter().map(|input| input.len()).min().unwrap_or(0) / BLOCK;
    wide.compress(state, &inputs, blocks);
    for (column, slot) in lanes.iter_mut().enumerate() {
        if let Some(lane) = slot {
            lane.done += blocks * BLOCK;
            if lane.input().is_empty() {
                digests[lane.index] = bytes(state.map(|word| word[column]));
                *slot = None;
            }
        }
    }
}

/// Digests the rest of a lane alone.
fn finish(lane: &Lane<'_>, mut state: [u32; 8], done: usize) -> Sha256Digest {
    let runs = [(&lane.front[..lane.front_len]), lane.middle, &lane.back[..lane.back_len]];
    let mut skip = done;
    for run in runs {
        let skipped = skip.min(run.len());
        skip -= skipped;
        compress256(&mut state, run[skipped..].as_chunks().0);
    }
    bytes(state)
}

fn bytes(state: [u32; 8]) -> Sha256Digest {
    let mut digest = [0; 32];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}
