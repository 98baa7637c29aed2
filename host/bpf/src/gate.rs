//! Gate: loads the programs, attaches them, and holds their tables.

use crate::bucket::in_table;
use crate::counters::Counters;
use crate::flow::words;
use crate::owner_table::number_of;
use crate::skeleton::gate::{GateSkel, GateSkelBuilder, OpenGateSkel};
use crate::skeleton::types;
use crate::table::{Table, bytes};
use crate::worker_port::{WorkerPort, WorkerPortId};
use crate::{
    BucketKey, CookieKey, Flow, GateError, Leases, Owners, PortBlocks, bucket_of, clock, libbpf_log, pins,
};
use evergate_base::{Bucket, NodeId};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapMut, ProgramMut, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder,
};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroU32};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Treatment of packets that belong to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The virtual MAC is at one node, which passes packets on to their owners.
    Steer,
    /// The switch floods the virtual MAC: every node sees every packet and drops what is not its own.
    Flood,
}

/// Options of the gate.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// Folder for pinned maps, on a BPF file system; one per node, as in `/sys/fs/bpf/evergate/NODE`.
    pub pins: &'a Path,
    /// This node.
    pub node: NodeId,
    /// Treatment of other nodes' packets.
    pub mode: Mode,
    /// Ports of server legs.
    pub ports: PortBlocks,
    /// Key of the hash over client legs.
    pub bucket_key: BucketKey,
    /// Most flows at once; connections beyond it do not start. 256 bytes each, plus the table that finds them.
    pub flows_max: u32,
    /// Keep the maps of a process that ran before, with all flows in them (an upgrade); else start empty.
    pub keep: bool,
}

/// A movable address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Whether server legs start from it; then its ports in the blocks are gated.
    pub legs: bool,
    /// The owner of this bucket answers ARP and neighbour discovery for it.
    pub bucket: Bucket,
    /// The virtual MAC in these answers.
    pub mac: [u8; 6],
}

/// Number of an interface in the calling thread's network namespace.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: a terminated string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

pub(crate) struct Maps {
    pub(crate) flows: MapHandle,
    pub(crate) free_slots: MapHandle,
    pub(crate) events: MapHandle,
    pub(crate) greetings: Table<types::greeting>,
    pub(crate) peer_input: MapHandle,
    addresses: MapHandle,
    listeners: MapHandle,
    peers: MapHandle,
    settings: MapHandle,
    counters: MapHandle,
}

pub(crate) struct Programs {
    pub(crate) egress: OwnedFd,
    pub(crate) ingress: OwnedFd,
    pub(crate) emit: OwnedFd,
    clock: OwnedFd,
}

const LOADING: &str = "loading the gate";

fn handle(map: &MapMut<'_>) -> Result<MapHandle, GateError> {
    MapHandle::try_from(map).map_err(|error| GateError::bpf("keeping a map", &error))
}

fn program(program: &ProgramMut<'_>) -> Result<OwnedFd, GateError> {
    program.as_fd().try_clone_to_owned().map_err(|error| GateError::kernel("keeping a program", error))
}

impl Maps {
    fn of(loaded: &GateSkel<'_>) -> Result<Maps, GateError> {
        Ok(Maps {
            flows: handle(&loaded.maps.flows)?,
            free_slots: handle(&loaded.maps.free_slots)?,
            events: handle(&loaded.maps.events)?,
            greetings: Table::map(&handle(&loaded.maps.greetings)?)?,
            peer_input: handle(&loaded.maps.peer_input)?,
            addresses: handle(&loaded.maps.addresses)?,
            listeners: handle(&loaded.maps.listeners)?,
            peers: handle(&loaded.maps.peers)?,
            settings: handle(&loaded.maps.settings)?,
            counters: handle(&loaded.maps.counters)?,
        })
    }
}

impl Programs {
    fn of(loaded: &GateSkel<'_>) -> Result<Programs, GateError> {
        Ok(Programs {
            egress: program(&loaded.progs.gate_egress)?,
            ingress: program(&loaded.progs.gate_ingress)?,
            emit: program(&loaded.progs.gate_emit)?,
            clock: program(&loaded.progs.gate_clock)?,
        })
    }
}

/// Gives maps their sizes and where they are pinned.
fn size_and_pin(open: &mut OpenGateSkel<'_>, flows_max: u32, folder: &Path) -> Result<(), GateError> {
    let failed = |error| GateError::bpf(LOADING, &error);
    for map in
        [&mut open.maps.slots, &mut open.maps.flows, &mut open.maps.free_slots, &mut open.maps.peer_input]
    {
        map.set_max_entries(flows_max).map_err(failed)?;
    }
    for mut map in open.open_object_mut().maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        // Constants and the test clock belong to one load; rings belong to one process.
        if !name.contains('.') && name != "events" {
            map.set_pin_path(folder.join(name)).map_err(failed)?;
        }
    }
    Ok(())
}

/// The loaded gate.
pub struct PacketGate {
    pub(crate) maps: Arc<Maps>,
    pub(crate) programs: Arc<Programs>,
    pub(crate) slots: Arc<Table<types::slot>>,
    batches: Arc<Table<types::batch>>,
    owners: Owners,
    leases: Leases,
    pending: Table<u64>,
    ports: PortBlocks,
    pub(crate) bucket_key: BucketKey,
    legs: std::sync::Mutex<BTreeMap<IpAddr, bool>>,
    pub(crate) folder: PathBuf,
    /// Number of this node in the maps.
    pub(crate) node: NonZeroU8,
    clock: Option<Table<u64>>,
    pub(crate) in_use: AtomicUsize,
    /// Key of the loaded stateless accept, and its epoch where that is fixed.
    pub(crate) cookies: OnceLock<(CookieKey, Option<NonZeroU32>)>,
}

impl PacketGate {
    /// Loads the programs and makes or finds their maps. Nothing is attached yet. Fails in a time namespace in which
    /// this process sees another boot time than the programs ([`GateError::Clock`]).
    pub fn load(options: &Options<'_>) -> Result<PacketGate, GateError> {
        let gate = PacketGate::load_with_clock(options, false)?;
        clock::check(gate.programs.clock.as_fd())?;
        Ok(gate)
    }

    /// As [`PacketGate::load`]; with `test_clock` the programs read the time from [`PacketGate::set_test_clock_ns`].
    /// For tests.
    pub fn load_with_clock(options: &Options<'_>, test_clock: bool) -> Result<PacketGate, GateError> {
        let node = node_number(options.node)?;
        let folder = pins::folder(options.pins, options.flows_max)?;
        if !options.keep {
            pins::clear(&folder)
                .map_err(|reported| GateError::Pins { path: options.pins.to_owned(), reported })?;
        }
        let mut storage = MaybeUninit::uninit();
        let mut open = GateSkelBuilder::default()
            .open(&mut storage)
            .map_err(|error| GateError::bpf("opening the gate's programs", &error))?;
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.node = u32::from(node.get());
            constants.flood = u32::from(options.mode == Mode::Flood);
            constants.port_first = u32::from(options.ports.first());
            constants.port_block = u32::from(options.ports.block());
            constants.bucket_key = options.bucket_key.0;
            constants.test_clock = u32::from(test_clock);
        }
        size_and_pin(&mut open, options.flows_max, &folder)?;
        let (loaded, reported) = libbpf_log::quietly(|| open.load());
        let loaded = loaded.map_err(|error| GateError::bpf(format!("{LOADING} {reported}"), &error))?;
        if !options.keep {
            // What cannot be removed takes memory, and nothing else.
            let _ = pins::clear_others(&folder);
        }
        let clock = if test_clock { Some(Table::map(&handle(&loaded.maps.bss)?)?) } else { None };
        let gate = PacketGate {
            slots: Arc::new(Table::map(&handle(&loaded.maps.slots)?)?),
            batches: Arc::new(Table::map(&handle(&loaded.maps.batches)?)?),
            owners: Owners { table: Arc::new(Table::map(&handle(&loaded.maps.owners)?)?) },
            leases: Leases { table: Arc::new(Table::map(&handle(&loaded.maps.leases)?)?) },
            pending: Table::map(&handle(&loaded.maps.pending)?)?,
            maps: Arc::new(Maps::of(&loaded)?),
            programs: Arc::new(Programs::of(&loaded)?),
            ports: options.ports,
            bucket_key: options.bucket_key,
            legs: std::sync::Mutex::new(BTreeMap::new()),
            folder,
            node,
            clock,
            in_use: AtomicUsize::new(0),
            cookies: OnceLock::new(),
        };
        Bucket::all().for_each(|bucket| gate.set_pending(bucket, None)); // what a process before was about
        if !options.keep {
            gate.fill_free_slots(options.flows_max)?;
        }
        Ok(gate)
    }

    fn fill_free_slots(&self, flows_max: u32) -> Result<(), GateError> {
        for index in 0..flows_max {
            self.maps
                .free_slots
                .update(&[], &index.to_ne_bytes(), MapFlags::ANY)
                .map_err(|error| GateError::bpf("filling the list of free slots", &error))?;
        }
        Ok(())
    }

    /// Attaches to an interface of the calling thread's network namespace, replacing what an earlier process attached.
    /// `mac` is the card's address. It stays attached until [`PacketGate::detach`], whatever happens to the process.
    pub fn attach(&self, interface: u32, mac: [u8; 6]) -> Result<(), GateError> {
        let node = types::peer { ifindex: interface, node: 0 };
        self.put(&self.maps.peers, &node, &types::mac { mac, pad: 0 }, "noting the card's address")?;
        // Egress first: what comes in before it could be answered ungated.
        for mut hook in self.hooks(interface) {
            let attempt = || format!("attaching the gate to interface {interface} (tc clsact)");
            // The queue discipline may be there already.
            libbpf_log::quietly(|| hook.create()).0.map_err(|error| GateError::bpf(attempt(), &error))?;
            let (attached, reported) = libbpf_log::quietly(|| hook.attach());
            attached.map_err(|error| GateError::bpf(format!("{} {reported}", attempt()), &error))?;
        }
        Ok(())
    }

    /// Whether it is attached to an interface. A network manager that sets up the interface again may remove it.
    pub fn is_attached(&self, interface: u32) -> bool {
        self.hooks(interface).iter_mut().all(|hook| libbpf_log::quietly(|| hook.query()).0.is_ok())
    }

    /// Takes the gate off an interface: from now on nothing is withheld there.
    pub fn detach(&self, interface: u32) -> Result<(), GateError> {
        for mut hook in self.hooks(interface).into_iter().rev() {
            hook.detach()
                .map_err(|error| GateError::bpf(format!("detaching from interface {interface}"), &error))?;
        }
        Ok(())
    }

    /// The programs of the gate: egress, then ingress.
    pub fn programs(&self) -> [BorrowedFd<'_>; 2] {
        [self.programs.egress.as_fd(), self.programs.ingress.as_fd()]
    }

    /// Its hooks on an interface: egress, then ingress.
    fn hooks(&self, interface: u32) -> [TcHook; 2] {
        [(&self.programs.egress, TC_EGRESS), (&self.programs.ingress, TC_INGRESS)].map(|(program, point)| {
            TcHookBuilder::new(program.as_fd())
                .ifindex(interface as i32)
                .replace(true)
                .handle(1)
                .priority(1)
                .hook(point)
        })
    }

    /// Makes an address movable: its packets follow the owner table, leases bind it, and its listeners can be gated.
    pub fn add_address(&self, address: &Address) -> Result<(), GateError> {
        let key = types::address { ip: words(address.ip) };
        let bucket = in_table(address.bucket).ok_or(GateError::Bucket(address.bucket))?;
        let value = types::address_info {
            flags: u32::from(address.legs),
            bucket: bucket.0,
            mac: address.mac,
            pad: 0,
        };
        self.maps
            .addresses
            .update(bytes(&key), bytes(&value), MapFlags::ANY)
            .map_err(|_| GateError::Full { address: address.ip })?;
        if let Ok(mut legs) = self.legs.lock() {
            legs.insert(address.ip.to_canonical(), address.legs);
        }
        Ok(())
    }

    /// Gates connections to this address and port from their SYN-ACK on. `stateless`: an attached [stateless
    /// accept](crate::Accept) answers their SYNs; for protocols whose client sends first.
    pub fn add_listener(&self, at: SocketAddr, stateless: bool) -> Result<(), GateError> {
        self.maps
            .listeners
            .update(bytes(&listener(at)), &u32::from(stateless).to_ne_bytes(), MapFlags::ANY)
            .map_err(|_| GateError::Full { address: at.ip() })
    }

    /// Stops gating new connections to this address and port; open connections stay gated.
    pub fn remove_listener(&self, at: SocketAddr) -> Result<(), GateError> {
        self.remove(&self.maps.listeners, &listener(at), "removing a listener")
    }

    /// Sets the destination of a node's packets on an interface: the link address of its card there.
    pub fn set_peer(&self, interface: u32, node: NodeId, mac: [u8; 6]) -> Result<(), GateError> {
        let key = types::peer { ifindex: interface, node: u32::from(node_number(node)?.get()) };
        self.put(&self.maps.peers, &key, &types::mac { mac, pad: 0 }, "noting a node's address")
    }

    /// Sets whether packets of unknown connections may be answered with RST; initially they may not. Only a node that
    /// holds the state of its buckets may allow it.
    pub fn set_reset_unknown(&self, allowed: bool) -> Result<(), GateError> {
        let value = types::settings { reset_unknown: u32::from(allowed), pad: 0 };
        self.put(&self.maps.settings, &0u32, &value, "changing a setting")
    }

    /// The owner table; clones share it.
    pub fn owners(&self) -> Owners {
        self.owners.clone()
    }

    /// The leases; clones share them.
    pub fn leases(&self) -> Leases {
        self.leases.clone()
    }

    /// Connections of the bucket are being recovered: segments of flows that have no slot yet are diverted to this port
    /// ([`DivertedSegment`](crate::DivertedSegment)), besides their usual treatment. `None`: all flows have slots.
    pub fn set_pending(&self, bucket: Bucket, port: Option<WorkerPortId>) {
        let word = port.map_or(0, |port| port.number() as u64 + 1);
        if let Some(bucket) = in_table(bucket) {
            self.pending.word(bucket.index()).store(word, Ordering::Release);
        }
    }

    /// When our kernel last answered the SYN of a client of the bucket, in nanoseconds of the programs' clock, while a
    /// program has not accepted all such clients: no other node could continue them. Clients accepted from a cookie do
    /// not count.
    pub fn greeted_ns(&self, bucket: Bucket) -> Option<u64> {
        self.maps.greeted_ns(bucket)
    }

    /// The ports of server legs.
    pub fn ports(&self) -> PortBlocks {
        self.ports
    }

    /// The bucket of a flow of ours, client or server leg.
    pub fn bucket(&self, flow: &Flow) -> Bucket {
        let legs =
            self.legs.lock().is_ok_and(|legs| legs.get(&flow.local.ip().to_canonical()) == Some(&true));
        let in_block = if legs { self.ports.bucket(flow.local.port()) } else { None };
        in_block.unwrap_or_else(|| bucket_of(self.bucket_key, flow))
    }

    /// The port of one worker, for use in its thread. A second port of the same number receives the first one's events.
    pub fn worker_port(&self, id: WorkerPortId) -> Result<WorkerPort, GateError> {
        WorkerPort::new(
            id,
            self.maps.clone(),
            self.programs.clone(),
            self.slots.clone(),
            self.batches.clone(),
        )
    }

    /// The gate's counters so far.
    pub fn counters(&self) -> Result<Counters, GateError> {
        Counters::read(&self.maps.counters)
    }

    /// Sets the clock of a gate loaded with a test clock.
    pub fn set_test_clock_ns(&self, now_ns: u64) {
        if let Some(clock) = &self.clock {
            clock.word(0).store(now_ns, Ordering::SeqCst);
        }
    }

    pub(crate) fn put<K: Copy, V: Copy>(
        &self,
        map: &MapHandle,
        key: &K,
        value: &V,
        attempt: &str,
    ) -> Result<(), GateError> {
        map.update(bytes(key), bytes(value), MapFlags::ANY).map_err(|error| GateError::bpf(attempt, &error))
    }

    fn remove<K: Copy>(&self, map: &MapHandle, key: &K, attempt: &str) -> Result<(), GateError> {
        match map.delete(bytes(key)) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(GateError::bpf(attempt, &error))
            }
            _ => Ok(()),
        }
    }
}

fn node_number(node: NodeId) -> Result<NonZeroU8, GateError> {
    number_of(node).ok_or(GateError::Node(node))
}

fn listener(at: SocketAddr) -> types::listener {
    types::listener { ip: words(at.ip()), port: at.port().to_be(), pad: 0 }
}
