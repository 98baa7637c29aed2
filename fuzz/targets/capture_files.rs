//! Foreign captures, pcap and pcapng: the same packets and the same error in windows of any size. The decoder moves
//! with every step, demands a bounded number of bytes that it does not have yet, and names the place of an error.

#![no_main]

use evergate_evidence::capture_file::{
    CAPTURE_BLOCK_BYTES_MAX, CaptureDecoder, CaptureError, CapturedPacket, PACKET_BYTES_MAX, Step,
};
use evergate_fuzz::input::split;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (windows, bytes) = split(data);
    let whole = read(&[bytes], bytes);
    assert_eq!(read(&windows.pieces(bytes), bytes), whole);
});

fn read<'a>(pieces: &[&[u8]], bytes: &'a [u8]) -> (Vec<CapturedPacket<'a>>, Result<(), CaptureError>) {
    let (mut decoder, mut packets, mut at, mut end) = (CaptureDecoder::default(), Vec::new(), 0, 0);
    for piece in pieces {
        end += piece.len();
        loop {
            match decoder.read(&bytes[at..end]) {
                Ok(Step::Need(length)) => {
                    assert!(length > end - at && length <= CAPTURE_BLOCK_BYTES_MAX);
                    break;
                }
                Ok(Step::Skip(length)) => {
                    assert!(length > 0);
                    at += length;
                }
                Ok(Step::Packet(length, packet)) => {
                    assert!(packet.data.len() < length && packet.data.len() <= PACKET_BYTES_MAX);
                    at += length;
                    packets.push(packet);
                }
                Err(error) => {
                    assert_eq!(error.offset, at as u64);
                    return (packets, Err(error));
                }
            }
            assert_eq!(decoder.offset(), at as u64);
        }
    }
    (packets, decoder.finish(end - at))
}
