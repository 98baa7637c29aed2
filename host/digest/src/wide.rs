//! The compression function of SHA-256 (FIPS 180-4) on sixteen messages at once, in AVX-512 registers.
//!
//! A register holds one word of each message. Blocks are loaded by message and transposed.

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm_set_epi64x, _mm512_add_epi32, _mm512_broadcast_i32x4,
    _mm512_loadu_si512, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_shuffle_i32x4, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_ternarylogic_epi32,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Messages side by side.
pub(crate) const LANES: usize = 16;
/// Fewest messages for which this is faster than one after the other with SHA instructions.
pub(crate) const LANES_WORTH: usize = 8;
/// Bytes of a block.
pub(crate) const BLOCK: usize = 64;

/// Blocks that are prefetched ahead. The processor's own prefetch learns a stream only when most of a packet is read.
const AHEAD: usize = 6;

/// State of the sixteen messages: word by word, each of all messages.
pub(crate) type State = [[u32; LANES]; 8];

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide(());

impl Wide {
    pub(crate) fn detect() -> Option<Wide> {
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        has.then_some(Wide(()))
    }

    /// Asks for the start of a message that comes later.
    pub(crate) fn prefetch(self, body: &[u8]) {
        for line in 0..AHEAD.min(body.len().div_ceil(BLOCK)) {
            // SAFETY: a prefetch reads nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(body.as_ptr().wrapping_add(line * BLOCK).cast()) };
        }
    }

    /// Compresses `blocks` blocks of each message into the state. Each input has at least that many.
    pub(crate) fn compress(self, state: &mut State, inputs: &[&[u8]; LANES], blocks: usize) {
        let least = inputs.iter().map(|input| input.len()).min().unwrap_or(0);
        assert!(blocks <= least / BLOCK, "{blocks} blocks of {least} bytes");
        // SAFETY: this value exists only when the processor has the features.
        unsafe { compress(state, inputs, blocks) }
    }
}

/// Round constants.
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// Three-way exclusive or, choice and majority as truth tables.
const XOR: i32 = 0x96;
const CHOICE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;

/// Transposes 16 registers of 16 words.
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose(rows: &mut [__m512i; 16]) {
    let mut half = [_mm512_setzero_si512(); 16];
    for (pair, out) in rows.chunks_exact(2).zip(half.chunks_exact_mut(2)) {
        out[0] = _mm512_unpacklo_epi32(pair[0], pair[1]);
        out[1] = _mm512_unpackhi_epi32(pair[0], pair[1]);
    }
    // Row 4i + j then has in its 128-bit part k the column 4k + j of the rows 4i to 4i + 3.
    for (four, out) in half.chunks_exact(4).zip(rows.chunks_exact_mut(4)) {
        out[0] = _mm512_unpacklo_epi64(four[0], four[2]);
        out[1] = _mm512_unpackhi_epi64(four[0], four[2]);
        out[2] = _mm512_unpacklo_epi64(four[1], four[3]);
        out[3] = _mm512_unpackhi_epi64(four[1], four[3]);
    }
    for j in 0..4 {
        let (a, b, c, d) = (rows[j], rows[4 + j], rows[8 + j], rows[12 + j]);
        let (even_low, odd_low) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even_high, odd_high) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        half[j] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
        half[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
        half[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
        half[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
    }
    *rows = half;
}

/// The next word of the schedule in place of the oldest one.
#[target_feature(enable = "avx512f,avx512bw")]
fn extend(words: &mut [__m512i; 16], round: usize) {
    let at = |offset: usize| words[(round + offset) % 16];
    let (early, late) = (at(1), at(14));
    let small_0 = _mm512_ternarylogic_epi32::<XOR>(
        _mm512_ror_epi32::<7>(early),
        _mm512_ror_epi32::<18>(early),
        _mm512_srli_epi32::<3>(early),
    );
    let small_1 = _mm512_ternarylogic_epi32::<XOR>(
        _mm512_ror_epi32::<17>(late),
        _mm512_ror_epi32::<19>(late),
        _mm512_srli_epi32::<10>(late),
    );
    words[round % 16] = _mm512_add_epi32(_mm512_add_epi32(at(0), at(9)), _mm512_add_epi32(small_0, small_1));
}

/// One round: `v` is a to h, in this order; the result too.
#[target_feature(enable = "avx512f,avx512bw")]
fn round(v: [__m512i; 8], word: __m512i, constant: u32) -> [__m512i; 8] {
    let [a, b, c, d, e, f, g, h] = v;
    let big_1 = _mm512_ternarylogic_epi32::<XOR>(
        _mm512_ror_epi32::<6>(e),
        _mm512_ror_epi32::<11>(e),
        _mm512_ror_epi32::<25>(e),
    );
    let choice = _mm512_ternarylogic_epi32::<CHOICE>(e, f, g);
    let input = _mm512_add_epi32(h, _mm512_add_epi32(word, _mm512_set1_epi32(constant as i32)));
    let first = _mm512_add_epi32(input, _mm512_add_epi32(big_1, choice));
    let big_0 = _mm512_ternarylogic_epi32::<XOR>(
        _mm512_ror_epi32::<2>(a),
        _mm512_ror_epi32::<13>(a),
        _mm512_ror_epi32::<22>(a),
    );
    let second = _mm512_add_epi32(big_0, _mm512_ternarylogic_epi32::<MAJORITY>(a, b, c));
    [_mm512_add_epi32(first, second), a, b, c, _mm512_add_epi32(d, first), e, f, g]
}

/// # Safety
///
/// Each input has at least `blocks` blocks.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn compress(state: &mut State, inputs: &[&[u8]; LANES], blocks: usize) {
    let big_endian = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
    let mut sum = [_mm512_setzero_si512(); 8];
    for (sum, word) in sum.iter_mut().zip(state.iter()) {
        // SAFETY: the array has the 64 bytes of a register.
        *sum = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
    }
    for block in 0..blocks {
        let mut words = [_mm512_setzero_si512(); 16];
        for (word, input) in words.iter_mut().zip(inputs) {
            let block_start = input.as_ptr().wrapping_add(block * BLOCK);
            // A prefetch reads nothing, wherever it points.
            _mm_prefetch::<_MM_HINT_T0>(block_start.wrapping_add(AHEAD * BLOCK).cast());
            // SAFETY: the caller promises that the block lies inside the input.
            let loaded = unsafe { _mm512_loadu_si512(block_start.cast()) };
            *word = _mm512_shuffle_epi8(loaded, big_endian);
        }
        transpose(&mut words);
        let mut v = sum;
        for (index, constant) in K.into_iter().enumerate() {
            if index >= 16 {
                extend(&mut words, index);
            }
            v = round(v, words[index % 16], constant);
        }
        for (sum, v) in sum.iter_mut().zip(v) {
            *sum = _mm512_add_epi32(*sum, v);
        }
    }
    for (sum, word) in sum.iter().zip(state.iter_mut()) {
        // SAFETY: the array has the 64 bytes of a register.
        unsafe { _mm512_storeu_si512(word.as_mut_ptr().cast(), *sum) };
    }
}
