//! Partition of traffic among recorders: a hash of a frame, and the same hash as a classic BPF program.
//!
//! Pure code. Both directions of a TCP or UDP flow have one part. Fragments (first ones too) and other protocols over
//! IP are divided by their addresses alone, and all that is not IP belongs to part 0. VLAN tags are skipped: up to
//! [`TAGS_MAX`], in the frame or, the outer one, in the kernel's metadata.
//!
//! Invariants: each frame, malformed ones too, has exactly one part; [`Partition::program`] accepts exactly the frames
//! for which [`part_of`] returns its part.

use crate::program::{Assembler, Instruction, Label, accept_all, op};
use crate::statement::Partition;

/// Most VLAN tags in front of the IP header: 802.1Q inside 802.1ad.
pub const TAGS_MAX: usize = 2;

/// Length of an Ethernet header; all offsets of IP fields count from its start.
const ETHERNET: u32 = 14;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
/// Types of VLAN tags: 802.1Q, 802.1ad, and the older one of some switches.
const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const TCP: u32 = 6;
const UDP: u32 = 17;
/// More-fragments flag and offset of an IPv4 header: all zero in a whole packet.
const FRAGMENT: u32 = 0x3fff;
/// Knuth's multiplicative hash: 2^32 divided by the golden ratio.
const MULTIPLIER: u32 = 2_654_435_761;

impl Partition {
    /// Part `part` (from 0) of `parts`; `None` unless `part` is below `parts`.
    pub fn new(part: u16, parts: u16) -> Option<Partition> {
        (part < parts).then_some(Partition { part, parts })
    }

    /// The program that accepts this part's frames and cuts them to `snaplen` bytes.
    pub fn program(&self, snaplen: u32) -> Vec<Instruction> {
        if self.parts == 1 { accept_all(snaplen) } else { Builder::new().build(*self, snaplen) }
    }
}

/// Part of a frame, below `parts`. `tag_in_metadata`: the frame's outer VLAN tag is not in `frame`. Of `parts` 0 the
/// part is 0.
pub fn part_of(frame: &[u8], tag_in_metadata: bool, parts: u16) -> u16 {
    flow_sum(frame, tag_in_metadata).map_or(0, |sum| scale(sum, parts))
}

/// Maps the sum of a flow to a part below `parts`, in the 32-bit arithmetic of classic BPF.
fn scale(sum: u32, parts: u16) -> u16 {
    (((sum.wrapping_mul(MULTIPLIER) >> 16) * u32::from(parts)) >> 16) as u16
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|half| u32::from(u16::from_be_bytes(*half)))
}

/// Sum of a flow's addresses and ports, the same in both directions; `None` for a frame without a whole IP header.
fn flow_sum(frame: &[u8], tag_in_metadata: bool) -> Option<u32> {
    let mut tags = usize::from(tag_in_metadata);
    let mut kind_at = 12;
    let mut kind = half(frame, kind_at)?;
    while TAGS.contains(&kind) {
        tags += 1;
        if tags > TAGS_MAX {
            return None;
        }
        kind_at += 4;
        kind = half(frame, kind_at)?;
    }
    let packet = &frame[kind_at + 2..];
    match kind {
        IPV4 => ipv4_sum(packet),
        IPV6 => ipv6_sum(packet),
        _ => None,
    }
}

fn ipv4_sum(packet: &[u8]) -> Option<u32> {
    let addresses = word(packet, 12)?.wrapping_add(word(packet, 16)?);
    let header_words = packet[0] & 0x0f;
    let has_ports =
        half(packet, 6)? & FRAGMENT == 0 && [TCP, UDP].contains(&packet[9].into()) && header_words >= 5;
    let ports = if has_ports { port_sum(packet, usize::from(header_words) * 4) } else { None };
    Some(addresses.wrapping_add(ports.unwrap_or(0)))
}

fn ipv6_sum(packet: &[u8]) -> Option<u32> {
    let header: &[u8; 40] = packet.first_chunk()?;
    let words = header[8..].chunks_exact(4).filter_map(|chunk| word(chunk, 0));
    let addresses = words.fold(0u32, u32::wrapping_add);
    let ports = if [TCP, UDP].contains(&header[6].into()) { port_sum(packet, 40) } else { None };
    Some(addresses.wrapping_add(ports.unwrap_or(0)))
}

/// Both ports; `None` when the frame ends before them.
fn port_sum(packet: &[u8], at: usize) -> Option<u32> {
    let pair = word(packet, at)?;
    Some((pair >> 16) + (pair & 0xffff))
}

/// Scratch memory of the program.
const SUM: u32 = 0;
const TAG_BYTES: u32 = 1;
const PORT: u32 = 2;

/// The program in the making. X is the length of the tags in the frame, and after [`Builder::ipv4`] or
/// [`Builder::ipv6`] found ports the offset of the transport header less [`ETHERNET`].
struct Builder {
    code: Assembler,
    ipv4: Label,
    ipv6: Label,
    /// X is set: adds the ports.
    ports: Label,
    /// The sum is complete.
    complete: Label,
    /// No IP header.
    other: Label,
}

impl Builder {
    fn new() -> Builder {
        let mut code = Assembler::default();
        let [ipv4, ipv6, ports, complete, other] = std::array::from_fn(|_| code.label());
        Builder { code, ipv4, ipv6, ports, complete, other }
    }

    fn build(mut self, partition: Partition, snaplen: u32) -> Vec<Instruction> {
        self.tags();
        self.ipv4();
        self.ipv6();
        self.ports();
        let (accept, refuse) = (self.code.label(), self.code.label());
        self.code.place(self.complete);
        self.code.emit(op::LOAD_MEMORY, SUM);
        self.code.emit(op::MULTIPLY, MULTIPLIER);
        self.code.emit(op::SHIFT_RIGHT, 16);
        self.code.emit(op::MULTIPLY, u32::from(partition.parts));
        self.code.emit(op::SHIFT_RIGHT, 16);
        self.code.branch(op::JUMP_EQUAL, u32::from(partition.part), Some(accept), Some(refuse));
        self.code.place(self.other);
        // The first of both places for part 0, the second for all others: one instruction decides.
        self.code.jump(if partition.part == 0 { accept } else { refuse });
        self.code.place(accept);
        self.code.emit(op::RETURN, snaplen);
        self.code.place(refuse);
        self.code.emit(op::RETURN, 0);
        self.code.finish()
    }

    /// Jumps to `short` unless the frame has at least X + `bytes` bytes. A load behind the end would refuse the frame.
    fn require(&mut self, bytes: u32, short: Label) {
        self.code.emit(op::LOAD_LENGTH, 0);
        self.code.branch(op::JUMP_AT_LEAST, bytes, None, Some(short));
        self.code.emit(op::SUBTRACT, bytes);
        self.code.branch(op::JUMP_AT_LEAST_X, 0, None, Some(short));
    }

    /// Skips tags and branches by protocol. A level for each number of tags seen; a tag in the metadata is the first.
    fn tags(&mut self) {
        let levels: Vec<Label> = (0..=TAGS_MAX).map(|_| self.code.label()).collect();
        self.code.emit(op::SET_X, 0);
        self.code.emit(op::LOAD_ABSOLUTE, op::VLAN_TAG_PRESENT);
        self.code.branch(op::JUMP_EQUAL, 0, Some(levels[0]), Some(levels[1]));
        for (seen, level) in levels.iter().enumerate() {
            self.code.place(*level);
            self.require(ETHERNET, self.other);
            self.code.emit(op::LOAD_HALF, 12);
            self.code.branch(op::JUMP_EQUAL, IPV4, Some(self.ipv4), None);
            self.code.branch(op::JUMP_EQUAL, IPV6, Some(self.ipv6), None);
            if seen == TAGS_MAX {
                self.code.jump(self.other);
                break;
            }
            let tag = self.code.label();
            self.code.branch(op::JUMP_EQUAL, TAGS[0], Some(tag), None);
            self.code.branch(op::JUMP_EQUAL, TAGS[1], Some(tag), None);
            self.code.branch(op::JUMP_EQUAL, TAGS[2], Some(tag), Some(self.other));
            self.code.place(tag);
            self.code.emit(op::X_TO_A, 0);
            self.code.emit(op::ADD, 4);
            self.code.emit(op::A_TO_X, 0);
        }
    }

    fn ipv4(&mut self) {
        self.code.place(self.ipv4);
        self.require(ETHERNET + 20, self.other);
        self.sum_words(ETHERNET + 12, 2);
        self.code.emit(op::LOAD_HALF, ETHERNET + 6);
        self.code.branch(op::JUMP_BITS, FRAGMENT, Some(self.complete), None);
        self.code.emit(op::LOAD_BYTE, ETHERNET + 9);
        self.require_ports();
        self.code.emit(op::LOAD_BYTE, ETHERNET);
        self.code.emit(op::AND, 0x0f);
        self.code.branch(op::JUMP_AT_LEAST, 5, None, Some(self.complete));
        self.code.emit(op::SHIFT_LEFT, 2);
        self.code.emit(op::ADD_X, 0);
        self.code.emit(op::A_TO_X, 0);
        self.code.jump(self.ports);
    }

    fn ipv6(&mut self) {
        self.code.place(self.ipv6);
        self.require(ETHERNET + 40, self.other);
        self.sum_words(ETHERNET + 8, 8);
        self.code.emit(op::LOAD_BYTE, ETHERNET + 6);
        self.require_ports();
        self.code.emit(op::X_TO_A, 0);
        self.code.emit(op::ADD, 40);
        self.code.emit(op::A_TO_X, 0);
    }

    /// Jumps to `complete` unless A is a protocol with ports.
    fn require_ports(&mut self) {
        let found = self.code.label();
        self.code.branch(op::JUMP_EQUAL, TCP, Some(found), None);
        self.code.branch(op::JUMP_EQUAL, UDP, None, Some(self.complete));
        self.code.place(found);
    }

    /// Sets the sum to that of `count` words of the frame from X + `at` on. X stays.
    fn sum_words(&mut self, at: u32, count: u32) {
        self.code.emit(op::STORE_X, TAG_BYTES);
        self.code.emit(op::LOAD_WORD, at);
        self.code.emit(op::STORE, SUM);
        for index in 1..count {
            self.code.emit(op::LOAD_WORD, at + 4 * index);
            self.code.emit(op::LOAD_X_MEMORY, SUM);
            self.code.emit(op::ADD_X, 0);
            self.code.emit(op::STORE, SUM);
            self.code.emit(op::LOAD_X_MEMORY, TAG_BYTES);
        }
    }

    fn ports(&mut self) {
        self.code.place(self.ports);
        self.require(ETHERNET + 4, self.complete);
        self.code.emit(op::LOAD_HALF, ETHERNET);
        self.code.emit(op::STORE, PORT);
        self.code.emit(op::LOAD_HALF, ETHERNET + 2);
        self.code.emit(op::LOAD_X_MEMORY, PORT);
        self.code.emit(op::ADD_X, 0);
        self.code.emit(op::LOAD_X_MEMORY, SUM);
        self.code.emit(op::ADD_X, 0);
        self.code.emit(op::STORE, SUM);
    }
}
