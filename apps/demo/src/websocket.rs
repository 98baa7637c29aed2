//! The part of WebSocket (RFC 6455) that an echo needs: unfragmented messages and the closing frame.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use evergate_crypto::base64;
use std::io::{self, Read, Write};

/// Fixed suffix of the key (RFC 6455 section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `Sec-WebSocket-Accept` of a `Sec-WebSocket-Key` (RFC 6455 section 4.2.2). It protects nothing; it only shows
/// that the server supports WebSocket.
pub fn websocket_accept(key: &str) -> String {
    base64::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes()).as_ref())
}

/// Longest message; longer ones end the connection.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Kind of a frame (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Binary,
    Text,
    Close,
    Ping,
    Pong,
}

impl Kind {
    fn opcode(self) -> u8 {
        match self {
            Kind::Text => 1,
            Kind::Binary => 2,
            Kind::Close => 8,
            Kind::Ping => 9,
            Kind::Pong => 10,
        }
    }

    fn of(opcode: u8) -> Option<Kind> {
        [Kind::Text, Kind::Binary, Kind::Close, Kind::Ping, Kind::Pong]
            .into_iter()
            .find(|kind| kind.opcode() == opcode)
    }
}

/// A frame as it is sent: a client must have a mask, a server none (section 5.1).
pub(super) fn frame(kind: Kind, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut frame = vec![0x80 | kind.opcode()];
    match payload.len() {
        length @ 0..126 => frame.push(masked | length as u8),
        length @ 126..65_536 => {
            frame.push(masked | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(masked | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(mask.into_iter().flatten());
    let start = frame.len();
    frame.extend_from_slice(payload);
    unmask(&mut frame[start..], mask.unwrap_or_default());
    frame
}

/// Reads one frame.
pub(super) fn read_frame(stream: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let [first, second] = exactly::<2>(stream)?;
    let kind = Kind::of(first & 0x0f)
        .filter(|_| first & 0xf0 == 0x80)
        .ok_or_else(|| odd("a WebSocket frame of an unsupported kind"))?;
    let length = match second & 0x7f {
        126 => u64::from(u16::from_be_bytes(exactly(stream)?)),
        127 => u64::from_be_bytes(exactly(stream)?),
        length => u64::from(length),
    };
    if length > MESSAGE_BYTES_MAX {
        return Err(odd("a WebSocket message is too long"));
    }
    let mask = if second & 0x80 == 0 { [0; 4] } else { exactly(stream)? };
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    unmask(&mut payload, mask);
    Ok((kind, payload))
}

/// Sends every message back, as a server after its 101, until the client closes.
///
/// # Errors
/// Errors of the streams, and unsupported frames.
pub fn echo(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    loop {
        let (kind, payload) = read_frame(input)?;
        let answer = match kind {
            Kind::Ping => Kind::Pong,
            Kind::Pong => continue,
            kind => kind,
        };
        output.write_all(&frame(answer, None, &payload))?;
        if kind == Kind::Close {
            return Ok(());
        }
    }
}

fn exactly<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Applies the mask of section 5.3, in either direction.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    for (byte, mask) in payload.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_lengths_are_read_as_they_were_written() {
        for length in [0, 1, 125, 126, 65_535, 65_536] {
            let payload: Vec<u8> = (0..length).map(|at: u32| (at * 7) as u8).collect();
            for mask in [None, Some([1, 2, 3, 4])] {
                let bytes = frame(Kind::Binary, mask, &payload);
                assert_eq!(read_frame(&mut bytes.as_slice()).unwrap(), (Kind::Binary, payload.clone()));
            }
        }
    }

    /// RFC 6455 section 5.7.
    #[test]
    fn the_examples_of_the_rfc_are_read() {
        let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
        assert_eq!(read_frame(&mut masked.as_slice()).unwrap(), (Kind::Text, b"Hello".to_vec()));
        assert_eq!(frame(Kind::Text, None, b"Hello"), b"\x81\x05Hello");
    }

    #[test]
    fn long_fragmented_or_unknown_frame_is_an_error() {
        for bytes in [&b"\x82\xff\0\0\0\0\xff\0\0\0"[..], b"\x02\x00", b"\x83\x00", b"\xc2\x00"] {
            assert!(read_frame(&mut &*bytes).is_err(), "{bytes:x?}");
        }
    }

    /// Example of RFC 6455 section 1.3.
    #[test]
    fn accept_value_is_that_of_the_rfc() {
        assert_eq!(super::websocket_accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
