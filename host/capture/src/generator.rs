//! Traffic for tests and measurements: paced frames of many flows over a packet socket.
//!
//! Frames are complete Ethernet frames with TCP over IPv4 or IPv6; the TCP checksum is not filled in. No product uses
//! this module.

use crate::block::VlanTag;
use crate::error::CaptureError;
use crate::interface::Interface;
use crate::sockopt::{bind_packet, set, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Frames of one system call.
const BATCH: usize = 32;

/// Traffic to send.
#[derive(Clone, Debug)]
pub struct Load {
    /// Number of flows; frames take turns.
    pub flows: usize,
    /// Length of a frame with all its headers and tags, at least 78 + 4 for each tag.
    pub frame_bytes: usize,
    /// Frames a second; 0 sends as fast as possible.
    pub rate: u64,
    /// Time to send.
    pub duration: Duration,
    /// Whether addresses are IPv6.
    pub ipv6: bool,
    /// VLAN tags, the outer one first.
    pub tags: Vec<VlanTag>,
    /// Whether each flow has frames in both directions.
    pub both_directions: bool,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            flows: 2000,
            frame_bytes: 1415,
            rate: 10_000,
            duration: Duration::from_secs(1),
            ipv6: false,
            tags: Vec::new(),
            both_directions: false,
        }
    }
}

/// Traffic that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Frames that the kernel accepted.
    pub frames: u64,
    /// Calls that the kernel refused.
    pub refused: u64,
    /// Time that it took.
    pub elapsed: Duration,
}

impl Load {
    /// All frames, one or two a flow.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let directions = if self.both_directions { &[false, true][..] } else { &[false] };
        let flows = (0..self.flows).flat_map(|flow| directions.iter().map(move |back| (flow, *back)));
        flows.map(|(flow, back)| self.frame(flow, back)).collect()
    }

    /// One frame of a flow; `back`: from the server to the client. Ports of clients are even.
    pub fn frame(&self, flow: usize, back: bool) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        self.tags.iter().for_each(|tag| frame.extend(tag.bytes()));
        let (client, server) = ([10, 99, (flow >> 12) as u8, 1], [10, 99, 0, 2]);
        let (source, destination) = if back { (server, client) } else { (client, server) };
        let length = self.frame_bytes.saturating_sub(frame.len() + 2);
        if self.ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((length.saturating_sub(40) as u16).to_be_bytes());
            frame.extend([6, 64]);
            for address in [source, destination] {
                frame.extend([0xfd, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                frame.extend(address);
            }
        } else {
            frame.extend([8, 0]);
            frame.extend(ipv4_header(length as u16, source, destination));
        }
        let port = 32_768 + (flow % 4096) as u16 * 2;
        let (from, to) = if back { (443, port) } else { (port, 443) };
        frame.extend(from.to_be_bytes());
        frame.extend(to.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ flow as u64;
        while frame.len() < self.frame_bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            frame.push(state as u8);
        }
        frame
    }
}

fn ipv4_header(length: u16, source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(length.to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    header.extend(source);
    header.extend(destination);
    let halves = header.chunks_exact(2).map(|half| u32::from(u16::from_be_bytes([half[0], half[1]])));
    let sum = halves.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    header
}

/// Packet socket that sends.
#[derive(Debug)]
pub struct Generator {
    socket: OwnedFd,
}

impl Generator {
    /// A sender on this interface. Frames do not pass the interface's queue discipline.
    pub fn open(interface: &str) -> Result<Generator, CaptureError> {
        let interface = Interface::named(interface)?;
        let open = || {
            let socket = socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
            set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)?;
            bind_packet(&socket, interface.index(), 0)?;
            Ok(Generator { socket })
        };
        open().map_err(CaptureError::kernel("opening the generator's socket"))
    }

    /// Sends frames once each, in order.
    pub fn send_all(&self, frames: &[Vec<u8>]) -> io::Result<()> {
        let mut left = frames;
        while !left.is_empty() {
            left = &left[self.send(&left[..left.len().min(BATCH)])?..];
        }
        Ok(())
    }

    /// Sends a load.
    pub fn run(&self, load: &Load) -> io::Result<Sent> {
        let frames = load.frames();
        // Whole batches, so that a batch is a slice: the frames of a flow keep their distance.
        let batches: Vec<Vec<u8>> =
            frames.iter().cycle().take(frames.len().next_multiple_of(BATCH)).cloned().collect();
        let (start, mut sent, mut at) = (Instant::now(), Sent::default(), 0);
        let end = load.duration;
        let total = if load.rate == 0 { u64::MAX } else { (load.rate as f64 * end.as_secs_f64()) as u64 };
        while sent.frames < total {
            let elapsed = start.elapsed();
            if elapsed > end.mul_f64(if load.rate == 0 { 1.0 } else { 1.5 }) {
                break;
            }
            let due = elapsed.as_secs_f64() * load.rate as f64;
            let count = (total - sent.frames).min(BATCH as u64) as usize;
            let early = (sent.frames + count as u64) as f64 - due;
            if load.rate != 0 && early > 0.0 {
                std::thread::sleep(Duration::from_secs_f64((early / load.rate as f64).min(0.01)));
                continue;
            }
            match self.send(&batches[at..at + count]) {
                Ok(accepted) => sent.frames += accepted as u64,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => sent.refused += 1,
                Err(error) => return Err(error),
            }
            at = (at + BATCH) % batches.len();
        }
        sent.elapsed = start.elapsed();
        Ok(sent)
    }

    /// Sends up to [`BATCH`] frames in one call; returns how many the kernel accepted.
    fn send(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        let part = |frame: &Vec<u8>| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        };
        let mut parts: Vec<libc::iovec> = frames.iter().take(BATCH).map(part).collect();
        let message = |part: &mut libc::iovec| {
            // SAFETY: mmsghdr is plain data for which all zero bytes are a valid value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let mut messages: Vec<libc::mmsghdr> = parts.iter_mut().map(message).collect();
        // SAFETY: pointers and lengths describe messages, parts and frames, which live across the call. The kernel only
        // reads the frames.
        let accepted = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0)
        };
        usize::try_from(accepted).map_err(|_| io::Error::last_os_error())
    }
}
