//! Random frames: tags, IPv4, IPv6, fragments, other protocols, and cuts.

use evergate_capture::VlanTag;

/// Random numbers of a seed (xorshift).
pub(crate) struct Random(u64);

impl Random {
    /// The seed is that of the variable, or a new one; it is printed.
    pub(crate) fn new(variable: &str) -> Random {
        let now =
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or_else(now);
        println!("{variable}={seed}");
        Random(seed | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// The tags of QinQ.
pub(crate) fn qinq() -> Vec<VlanTag> {
    vec![VlanTag { tpid: 0x88a8, tci: 100 }, VlanTag { tpid: 0x8100, tci: 0x2007 }]
}

/// A frame of at least `length_min` bytes; shorter frames end in any header.
pub(crate) fn random_frame(random: &mut Random, length_min: usize) -> Vec<u8> {
    let mut frame = random.bytes(12);
    frame[0] &= 0xfe; // not a group address
    for _ in 0..random.below(5).min(random.below(5)) {
        frame.extend([[0x81, 0], [0x88, 0xa8], [0x91, 0]][random.below(3) as usize]);
        frame.extend(random.bytes(2));
    }
    match random.below(8) {
        0 => frame.extend([8, 6]),
        1 => frame.extend(random.bytes(2)),
        2..=4 => ipv4(random, &mut frame),
        _ => ipv6(random, &mut frame),
    }
    let rest = random.below(60) as usize;
    frame.extend(random.bytes(rest));
    if random.below(4) == 0 {
        frame.truncate(random.below(frame.len() as u64 + 1) as usize);
    }
    if frame.len() < length_min {
        let missing = length_min - frame.len();
        frame.extend(random.bytes(missing));
    }
    frame
}

fn protocol(random: &mut Random) -> u8 {
    [6, 17, 1, 44, 0, 58, 47][random.below(7) as usize]
}

fn ipv4(random: &mut Random, frame: &mut Vec<u8>) {
    frame.extend([8, 0]);
    let options = random.below(16).min(random.below(16)) as usize; // words; less than 5 in all is malformed
    let mut header = random.bytes(20 + options.saturating_sub(5) * 4);
    header[0] = 0x40 | if random.below(2) == 0 { 5 } else { options as u8 };
    let fragment = random.bytes(2);
    header[6..8].copy_from_slice([&[0, 0][..], &[0x40, 0], &[0x20, 0], &fragment][random.below(4) as usize]);
    header[9] = protocol(random);
    frame.extend(header);
}

fn ipv6(random: &mut Random, frame: &mut Vec<u8>) {
    frame.extend([0x86, 0xdd]);
    let mut header = random.bytes(40);
    header[6] = protocol(random);
    frame.extend(header);
}
