//! CRC32c (RFC 4960 appendix B: the Castagnoli polynomial, reflected).

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC32c of bytes.
pub(crate) fn crc32c<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    !bytes.fold(!0, |crc: u32, &byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of RFC 3720 appendix B.4, as numbers, and the usual check value.
    #[test]
    fn checksum_matches_the_published_values() {
        assert_eq!(crc32c([0; 32].iter()), 0x8a91_36aa);
        assert_eq!(crc32c([0xff; 32].iter()), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(ascending.iter()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789".iter()), 0xe306_9283);
    }
}
