//! Receiving ring of a packet socket (TPACKET_V3).
//!
//! The order of the start makes the counters exact: the socket has protocol 0, gets version, ring and filter, and is
//! bound last, so that nothing is queued or counted before. In a fanout group a filter that refuses everything comes
//! first, then the bind and the group, and the real filter last.
//!
//! The order of the stop: [`Ring::stop`], then blocks until [`Ring::wait`] has been idle for three times the retire
//! time, then [`Ring::counters`].

use crate::error::CaptureError;
use crate::filter::{self, Filter};
use crate::interface::Interface;
use crate::mapping::{Block, Mapping};
use crate::sockopt::{bind_packet, get, set, socket};
use evergate_evidence::program::{Instruction, accept_all, refuse_all};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size that the kernel counts frames in. TPACKET_V3 packs packets of any length, so that it only has to divide blocks.
const FRAME_BYTES: u32 = 2048;
/// Sleep while the newest filled block is out, as a part of the retire time: see [`Ring::wait`].
const OUT_SLEEPS_PER_RETIRE: u32 = 4;
/// All protocols, in host order.
const ALL_PROTOCOLS: u16 = libc::ETH_P_ALL as u16;

/// Options of a ring.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Name of the interface.
    pub interface: String,
    /// Size of the ring; rounded down to whole blocks, at least two.
    pub bytes: usize,
    /// Size of a block: a power of two from 4 KiB to 128 MiB, and the bound of a packet's length.
    pub block_bytes: usize,
    /// Time after which the kernel passes on a block that is not full, from 1.
    pub retire_ms: u32,
    /// Most bytes of a packet that are kept; 0 keeps all.
    pub snaplen: u32,
    /// Whether the interface receives frames for other machines too.
    pub promiscuous: bool,
    /// Sockets of this group share the packets of the interface by a symmetric hash of the kernel.
    pub fanout: Option<Group>,
    /// Choice of frames; `None` receives all.
    pub filter: Option<Filter>,
}

impl RingOptions {
    /// The usual options for an interface: 512 MiB in blocks of 512 KiB, 20 ms, whole packets, promiscuous. Smaller
    /// blocks cost more wakeups; on virtual machines the kernel takes longer to set up larger ones.
    pub fn new(interface: impl Into<String>) -> RingOptions {
        RingOptions {
            interface: interface.into(),
            bytes: 512 << 20,
            block_bytes: 512 << 10,
            retire_ms: 20,
            snaplen: 0,
            promiscuous: true,
            fanout: None,
            filter: None,
        }
    }

    /// The number of blocks.
    fn blocks(&self) -> Result<usize, CaptureError> {
        let refuse = |text: String| Err(CaptureError::Options(text));
        let block = self.block_bytes;
        if !block.is_power_of_two() || !(4096..=128 << 20).contains(&block) {
            return refuse(format!("block of {block} bytes: choose a power of two from 4 KiB to 128 MiB"));
        }
        let blocks = self.bytes / block;
        if blocks < 2 || u32::try_from(self.bytes / FRAME_BYTES as usize).is_err() {
            return refuse(format!(
                "ring of {} bytes: choose two blocks ({block} bytes each) to 8 TiB",
                self.bytes
            ));
        }
        if !(1..=60_000).contains(&self.retire_ms) {
            return refuse(format!("retire time of {} ms: choose 1 to 60000", self.retire_ms));
        }
        Ok(blocks)
    }
}

/// Fanout group: its id in the network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u16);

/// Sums since the start of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that passed the filter: in blocks or dropped.
    pub seen: u64,
    /// Packets that the ring had no room for.
    pub dropped: u64,
    /// Times that the ring was full.
    pub freezes: u64,
}

/// Outcome of [`Ring::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A block is ready.
    Ready,
    /// The time is over.
    Idle,
    /// The interface went down. The ring receives again when it comes up.
    Down,
}

/// Packet socket with its ring. One thread owns it and takes blocks; blocks may go to other threads.
#[derive(Debug)]
pub struct Ring {
    socket: OwnedFd,
    mapping: Arc<Mapping>,
    interface: Interface,
    /// Index of the block that the kernel passes next.
    next: usize,
    /// Sleep while the newest filled block is out.
    out_sleep: Duration,
    totals: Counters,
}

impl Ring {
    /// Opens a ring that receives from now on. A member of a group receives its share of the group's packets; for a
    /// whole group in one process use [`Ring::open_group`].
    pub fn open(options: &RingOptions) -> Result<Ring, CaptureError> {
        let ring = Ring::prepare(options)?;
        match options.fanout {
            Some(group) => {
                ring.refuse_all()?;
                ring.bind()?;
                ring.join(group, 0)?;
                ring.begin(options)?;
            }
            None => ring.bind()?,
        }
        Ok(ring)
    }

    /// Opens `members` rings that share the packets of the interface, in a new group; `options.fanout` is not used. The
    /// members begin to receive when all are complete. From then on the sum of their counters is exact.
    pub fn open_group(options: &RingOptions, members: usize) -> Result<Vec<Ring>, CaptureError> {
        let mut rings: Vec<Ring> = Vec::with_capacity(members);
        let mut group = None;
        for _ in 0..members {
            let ring = Ring::prepare(options)?;
            ring.refuse_all()?;
            ring.bind()?;
            match group {
                Some(group) => ring.join(group, 0)?,
                None => {
                    ring.join(Group(0), libc::PACKET_FANOUT_FLAG_UNIQUEID)?;
                    group = Some(ring.group()?);
                }
            }
            rings.push(ring);
        }
        rings.iter().try_for_each(|ring| ring.begin(options))?;
        Ok(rings)
    }

    /// A socket with ring and filter that is not bound yet.
    fn prepare(options: &RingOptions) -> Result<Ring, CaptureError> {
        let blocks = options.blocks()?;
        let interface = Interface::named(&options.interface)?;
        interface.check()?;
        let socket =
            socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => CaptureError::Privilege,
                _ => CaptureError::kernel("opening a packet socket")(error),
            })?;
        let option = |name: i32, value: i32, what: &str| {
            set(&socket, libc::SOL_PACKET, name, &value).map_err(CaptureError::kernel(what))
        };
        option(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V3 as i32, "choosing TPACKET_V3")?;
        option(libc::PACKET_IGNORE_OUTGOING, 1, "ignoring sent packets (PACKET_IGNORE_OUTGOING)")?;
        request_memory(&socket, blocks, options)?;
        let mapping = Mapping::new(&socket, blocks, options.block_bytes)
            .map_err(|error| memory_error(error, options, "mapping the ring"))?;
        if options.promiscuous {
            be_promiscuous(&socket, &interface)?;
        }
        if let Some(program) = filter::program(options.filter, options.snaplen) {
            attach(&socket, &program)?;
        }
        let out_sleep = Duration::from_millis(options.retire_ms.into()) / OUT_SLEEPS_PER_RETIRE;
        let mapping = Arc::new(mapping);
        Ok(Ring { socket, mapping, interface, next: 0, out_sleep, totals: Counters::default() })
    }

    fn refuse_all(&self) -> Result<(), CaptureError> {
        attach(&self.socket, &refuse_all())
    }

    fn bind(&self) -> Result<(), CaptureError> {
        bind_packet(&self.socket, self.interface.index(), ALL_PROTOCOLS)
            .map_err(CaptureError::kernel(format!("binding to interface {}", self.interface.name())))
    }

    /// Joins a group that divides by the kernel's symmetric flow hash. Never with defragmentation: datagrams would be
    /// received that no wire carried. The group has its own hook in the kernel, which does not know the socket's
    /// PACKET_IGNORE_OUTGOING.
    fn join(&self, group: Group, flags: u32) -> Result<(), CaptureError> {
        let mode = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING | flags;
        let value = u32::from(group.0) | mode << 16;
        set(&self.socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value).map_err(|reported| {
            CaptureError::Fanout { group: group.0, name: self.interface.name().to_owned(), reported }
        })
    }

    /// The group that this ring is a member of.
    fn group(&self) -> Result<Group, CaptureError> {
        // SAFETY: the option is an integer.
        let value = unsafe { get(&self.socket, libc::SOL_PACKET, libc::PACKET_FANOUT, 0u32) };
        value.map(|value| Group(value as u16)).map_err(CaptureError::kernel("reading the fanout group"))
    }

    /// Puts the real filter in place of the one that refuses everything.
    fn begin(&self, options: &RingOptions) -> Result<(), CaptureError> {
        let all = || accept_all(u32::MAX);
        attach(&self.socket, &filter::program(options.filter, options.snaplen).unwrap_or_else(all))
    }

    /// Ends the reception, so that a drain ends under constant traffic too. Packets that arrive from now on are counted
    /// nowhere; packets that are under way inside the kernel may still arrive. A member that leaves a fanout group
    /// loses the packets of its flows until the socket is closed.
    pub fn stop(&self) -> Result<(), CaptureError> {
        self.refuse_all()
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Number of blocks of the ring.
    pub fn blocks(&self) -> usize {
        self.mapping.blocks()
    }

    /// Number of blocks that are ready and not taken. Blocks in use elsewhere are not counted.
    pub fn ready_blocks(&self) -> usize {
        // From `next` on, ready blocks come first, then free ones, then those that are out: a binary search.
        let (mut low, mut high) = (0, self.blocks());
        while low < high {
            let middle = (low + high) / 2;
            if self.mapping.is_ready((self.next + middle) % self.blocks()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Takes the next block, if it is ready. Blocks come in order of arrival.
    pub fn next_block(&mut self) -> Option<Block> {
        let block = self.mapping.take(self.next)?;
        self.next = (self.next + 1) % self.blocks();
        Some(block)
    }

    /// Waits for a block, at most this long.
    ///
    /// `poll` looks at the block *before* the one that the kernel fills: while that one is out, `poll` would return at
    /// once and this thread would spin. Instead it sleeps a quarter of the retire time and looks again. With busy
    /// workers these wakeups are the cost of this thread, more than 10 us each on a virtual machine.
    pub fn wait(&self, timeout: Duration) -> Result<Wait, CaptureError> {
        let until = Instant::now() + timeout;
        let newest = (self.next + self.blocks() - 1) % self.blocks();
        loop {
            if self.mapping.is_ready(self.next) {
                return Ok(Wait::Ready);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Wait::Idle);
            }
            if self.mapping.is_out(newest) || self.mapping.is_out(self.next) {
                std::thread::sleep(left.min(self.out_sleep));
            } else if let Some(outcome) = self.poll(left)? {
                return Ok(outcome);
            }
        }
    }

    /// Waits for the socket; `Some` when the wait is over, whatever the ring has. A signal does not end the wait: a
    /// drain that a signal cuts short would lose the open block.
    fn poll(&self, timeout: Duration) -> Result<Option<Wait>, CaptureError> {
        let mut entry = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up, so that the rest of a millisecond does not spin.
        let timeout_ms = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: one entry, which lives across the call.
        let ready = unsafe { libc::poll(&raw mut entry, 1, timeout_ms) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(None)
            } else {
                Err(CaptureError::kernel("waiting for packets")(error))
            };
        }
        if entry.revents & libc::POLLERR != 0 { self.error() } else { Ok(None) }
    }

    /// Takes the socket's error, if there is one.
    fn error(&self) -> Result<Option<Wait>, CaptureError> {
        // SAFETY: the option is an integer.
        let code = unsafe { get(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR, 0i32) }
            .map_err(CaptureError::kernel("reading the socket's error"))?;
        match code {
            0 => Ok(None),
            libc::ENETDOWN if self.interface.exists() => Ok(Some(Wait::Down)),
            libc::ENETDOWN => Err(CaptureError::Gone(self.interface.name().to_owned())),
            code => Err(CaptureError::kernel("receiving packets")(io::Error::from_raw_os_error(code))),
        }
    }

    /// The counters since the start. The kernel's own are 32 bits wide and reset when they are read: call this at least
    /// every few seconds.
    pub fn counters(&mut self) -> Result<Counters, CaptureError> {
        let empty = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        // SAFETY: the structure consists of integers.
        let delta = unsafe { get(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, empty) }
            .map_err(CaptureError::kernel("reading the counters"))?;
        self.totals.seen += u64::from(delta.tp_packets);
        self.totals.dropped += u64::from(delta.tp_drops);
        self.totals.freezes += u64::from(delta.tp_freeze_q_cnt);
        Ok(self.totals)
    }
}

impl AsFd for Ring {
    /// The socket. It is readable while the newest filled block is not given back: see [`Ring::wait`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn attach(socket: &OwnedFd, program: &[Instruction]) -> Result<(), CaptureError> {
    filter::attach(socket, program).map_err(CaptureError::kernel("attaching the packet filter"))
}

fn request_memory(socket: &OwnedFd, blocks: usize, options: &RingOptions) -> Result<(), CaptureError> {
    let request = libc::tpacket_req3 {
        tp_block_size: options.block_bytes as u32,
        tp_block_nr: blocks as u32,
        tp_frame_size: FRAME_BYTES,
        tp_frame_nr: (options.block_bytes / FRAME_BYTES as usize * blocks) as u32,
        tp_retire_blk_tov: options.retire_ms,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
        .map_err(|error| memory_error(error, options, "requesting the ring"))
}

fn memory_error(error: io::Error, options: &RingOptions, attempt: &str) -> CaptureError {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            CaptureError::RingTooLarge { mib: (options.bytes as u64).div_ceil(1 << 20) }
        }
        _ => CaptureError::kernel(attempt)(error),
    }
}

fn be_promiscuous(socket: &OwnedFd, interface: &Interface) -> Result<(), CaptureError> {
    let request = libc::packet_mreq {
        mr_ifindex: interface.index() as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
        .map_err(CaptureError::kernel(format!("making {} promiscuous", interface.name())))
}
