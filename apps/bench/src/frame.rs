//! Binary WebSocket frames of up to 65,535 bytes (RFC 6455 section 5.2).

use anyhow::{Result, bail};

/// FIN and opcode 2.
const BINARY: u8 = 0x82;
const MASKED: u8 = 0x80;
/// Payload length value that announces two further bytes of length.
const LONG: u8 = 126;

/// Appends one frame with `payload`, masked with `key` if there is one, as required of clients.
pub(crate) fn encode(payload: &[u8], key: Option<[u8; 4]>, out: &mut Vec<u8>) -> Result<()> {
    let mask = if key.is_some() { MASKED } else { 0 };
    match u8::try_from(payload.len()).ok().filter(|length| *length < LONG) {
        Some(length) => out.extend([BINARY, mask | length]),
        None => {
            let Ok(length) = u16::try_from(payload.len()) else {
                bail!("a frame of {} bytes", payload.len())
            };
            out.extend([BINARY, mask | LONG]);
            out.extend(length.to_be_bytes());
        }
    }
    let key = key.inspect(|key| out.extend(key)).unwrap_or_default();
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    Ok(())
}

/// Payload, without its mask, and length of the first frame of `bytes`; `None` while it is incomplete.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    if *first != BINARY || second & !MASKED > LONG {
        bail!("not a binary frame of up to 65,535 bytes: {first:#x} {second:#x}");
    }
    let (length, rest) = match (second & !MASKED, rest) {
        (LONG, [high, low, rest @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        (LONG, _) => return Ok(None),
        (length, rest) => (usize::from(length), rest),
    };
    let (key, rest) = match (second & MASKED != 0, rest.split_first_chunk()) {
        (true, Some((key, rest))) => (*key, rest),
        (true, None) => return Ok(None),
        (false, _) => ([0; 4], rest),
    };
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let payload = payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
    Ok(Some((payload, bytes.len() - rest.len() + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6455 section 5.7, with opcode 2.
    #[test]
    fn masked_frame_is_as_in_the_rfc() {
        let mut out = Vec::new();
        encode(b"Hello", Some([0x37, 0xfa, 0x21, 0x3d]), &mut out).unwrap();
        assert_eq!(out, [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
    }

    #[test]
    fn frame_decodes_to_its_payload_only_when_whole() {
        for length in [0, 1, 125, 126, 4096, 65_535] {
            let payload: Vec<u8> = (0..length).map(|at: usize| at as u8).collect();
            for key in [None, Some([1, 2, 3, 4])] {
                let mut out = Vec::new();
                encode(&payload, key, &mut out).unwrap();
                let end = out.len();
                out.extend(b"next");
                assert_eq!(decode(&out).unwrap(), Some((payload.clone(), end)));
                for part in (0..end).step_by(977).chain(end - 1..end) {
                    assert_eq!(decode(&out[..part]).unwrap(), None);
                }
            }
        }
        assert!(encode(&[0; 65_536], None, &mut Vec::new()).is_err());
        assert!(decode(&[0x81, 5]).is_err() && decode(&[0x82, 127]).is_err());
    }
}
