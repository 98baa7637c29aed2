//! Loading the programs, attaching them, and their tables.

use crate::counters::Counters;
use crate::flow::words;
use crate::lane::{Lane, LaneId};
use crate::skeleton::{gate::GateSkelBuilder, types};
use crate::slot::{FLAG_LEARN, FLAG_TAKEN, Restored, Slot};
use crate::table::{Table, bytes};
use crate::{
    Bucket, BucketKey, Flow, GateError, Leases, NodeId, Owners, PortBlocks, bucket_of, clock, pins, says,
};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, TC_EGRESS, TC_INGRESS, TcHookBuilder};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What becomes of packets that belong to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The virtual MAC is at one node, which passes packets on to their owners.
    Steer,
    /// The switch floods the virtual MAC: every node sees every packet and drops what is not its own.
    Flood,
}

/// How to load the gate.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// Folder for pinned maps, on a BPF file system; one per node, as in `/sys/fs/bpf/evergate/NODE`.
    pub pins: &'a Path,
    /// This node.
    pub node: NodeId,
    /// What to do with others' packets.
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
    /// What it answers: the virtual MAC.
    pub mac: [u8; 6],
}

/// What the peer of a flow said while the flow was held or belonged to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Sequence number of the newest packet.
    pub seq: u32,
    /// The highest ACK: what the peer has of our stream.
    pub ack: u32,
    /// The newest window, as on the wire.
    pub window: u32,
    /// Packets heard.
    pub count: u32,
    /// The newest timestamp and its echo; zero when the flow has none.
    pub timestamps: (u32, u32),
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
    greetings: Table<types::greeting>,
    heard: MapHandle,
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

/// The loaded gate.
pub struct Gate {
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
    pub(crate) node: NodeId,
    clock: Option<Table<u64>>,
    in_use: AtomicUsize,
}

impl Gate {
    /// Loads the programs and makes or finds their maps. Nothing is attached yet. Fails in a time namespace in which this
    /// process sees another boot time than the programs ([`GateError::Clock`]).
    pub fn load(options: &Options<'_>) -> Result<Gate, GateError> {
        let gate = Gate::load_with_clock(options, false)?;
        clock::check(gate.programs.clock.as_fd())?;
        Ok(gate)
    }

    /// As [`Gate::load`]; with `test_clock` the programs read the time from [`Gate::set_test_clock_ns`]. For tests.
    pub fn load_with_clock(options: &Options<'_>, test_clock: bool) -> Result<Gate, GateError> {
        let folder = pins::folder(options.pins, options.flows_max)?;
        if !options.keep {
            pins::clear(&folder)
                .map_err(|source| GateError::Pins { path: options.pins.to_owned(), source })?;
        }
        let loading = "loading the gate";
        let mut storage = MaybeUninit::uninit();
        let mut open = GateSkelBuilder::default()
            .open(&mut storage)
            .map_err(|error| GateError::bpf("opening the gate's programs", &error))?;
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.node = u32::from(options.node.number());
            constants.flood = u32::from(options.mode == Mode::Flood);
            constants.port_first = u32::from(options.ports.first());
            constants.port_block = u32::from(options.ports.block());
            constants.bucket_key = options.bucket_key.0;
            constants.test_clock = u32::from(test_clock);
        }
        let sized =
            [&mut open.maps.slots, &mut open.maps.flows, &mut open.maps.free_slots, &mut open.maps.heard];
        for map in sized {
            map.set_max_entries(options.flows_max).map_err(|error| GateError::bpf(loading, &error))?;
        }
        for mut map in open.open_object_mut().maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            // Constants and the test clock belong to one load; rings belong to one process.
            if !name.contains('.') && name != "events" {
                map.set_pin_path(folder.join(name)).map_err(|error| GateError::bpf(loading, &error))?;
            }
        }
        let (loaded, said) = says::quietly(|| open.load());
        let loaded = loaded.map_err(|error| GateError::bpf(format!("{loading} {said}"), &error))?;
        if !options.keep {
            // What cannot be removed takes memory, and nothing else.
            let _ = pins::clear_others(&folder);
        }
        let handle = |map: &libbpf_rs::MapMut<'_>| {
            MapHandle::try_from(map).map_err(|error| GateError::bpf("keeping a map", &error))
        };
        let program = |program: &libbpf_rs::ProgramMut<'_>| {
            program
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| GateError::kernel("keeping a program", error))
        };
        let clock = match (test_clock, &loaded.maps.bss) {
            (true, map) => Some(Table::map(&handle(map)?)?),
            _ => None,
        };
        let gate = Gate {
            slots: Arc::new(Table::map(&handle(&loaded.maps.slots)?)?),
            batches: Arc::new(Table::map(&handle(&loaded.maps.batches)?)?),
            owners: Owners { table: Arc::new(Table::map(&handle(&loaded.maps.owners)?)?) },
            leases: Leases { table: Arc::new(Table::map(&handle(&loaded.maps.leases)?)?) },
            pending: Table::map(&handle(&loaded.maps.pending)?)?,
            maps: Arc::new(Maps {
                flows: handle(&loaded.maps.flows)?,
                free_slots: handle(&loaded.maps.free_slots)?,
                events: handle(&loaded.maps.events)?,
                greetings: Table::map(&handle(&loaded.maps.greetings)?)?,
                heard: handle(&loaded.maps.heard)?,
                addresses: handle(&loaded.maps.addresses)?,
                listeners: handle(&loaded.maps.listeners)?,
                peers: handle(&loaded.maps.peers)?,
                settings: handle(&loaded.maps.settings)?,
                counters: handle(&loaded.maps.counters)?,
            }),
            programs: Arc::new(Programs {
                egress: program(&loaded.progs.gate_egress)?,
                ingress: program(&loaded.progs.gate_ingress)?,
                emit: program(&loaded.progs.gate_emit)?,
                clock: program(&loaded.progs.gate_clock)?,
            }),
            ports: options.ports,
            bucket_key: options.bucket_key,
            legs: std::sync::Mutex::new(BTreeMap::new()),
            folder,
            node: options.node,
            clock,
            in_use: AtomicUsize::new(0),
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
    /// `mac` is the card's address. It stays attached until [`Gate::detach`], whatever happens to the process.
    pub fn attach(&self, interface: u32, mac: [u8; 6]) -> Result<(), GateError> {
        let node = types::peer { ifindex: interface, node: 0 };
        self.put(&self.maps.peers, &node, &types::mac { mac, pad: 0 }, "noting the card's address")?;
        // Egress first: what comes in before it could be answered ungated.
        for (program, point) in [(&self.programs.egress, TC_EGRESS), (&self.programs.ingress, TC_INGRESS)] {
            let attempt = || format!("attaching the gate to interface {interface} (tc clsact)");
            let mut hook = TcHookBuilder::new(program.as_fd())
                .ifindex(interface as i32)
                .replace(true)
                .handle(1)
                .priority(1)
                .hook(point);
            // The queue discipline may be there already.
            says::quietly(|| hook.create()).0.map_err(|error| GateError::bpf(attempt(), &error))?;
            let (attached, said) = says::quietly(|| hook.attach());
            attached.map_err(|error| GateError::bpf(format!("{} {said}", attempt()), &error))?;
        }
        Ok(())
    }

    /// Takes the gate off an interface: from now on nothing is withheld there.
    pub fn detach(&self, interface: u32) -> Result<(), GateError> {
        for (program, point) in [(&self.programs.ingress, TC_INGRESS), (&self.programs.egress, TC_EGRESS)] {
            TcHookBuilder::new(program.as_fd())
                .ifindex(interface as i32)
                .handle(1)
                .priority(1)
                .hook(point)
                .detach()
                .map_err(|error| GateError::bpf(format!("detaching from interface {interface}"), &error))?;
        }
        Ok(())
    }

    /// Makes an address movable: its packets follow the owner table, leases bind it, and its listeners can be gated.
    pub fn add_address(&self, address: &Address) -> Result<(), GateError> {
        let key = types::address { ip: words(address.ip) };
        let value = types::address_info {
            flags: u32::from(address.legs),
            bucket: address.bucket.number() as u16,
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

    /// Lets go of an address.
    pub fn remove_address(&self, ip: IpAddr) -> Result<(), GateError> {
        if let Ok(mut legs) = self.legs.lock() {
            legs.remove(&ip.to_canonical());
        }
        self.remove(&self.maps.addresses, &types::address { ip: words(ip) }, "removing an address")
    }

    /// Gates connections to this address and port from their SYN-ACK on. `stateless`: where the [stateless
    /// accept](crate::Accept) is attached it answers their SYNs; for protocols whose client speaks first.
    pub fn add_listener(&self, at: SocketAddr, stateless: bool) -> Result<(), GateError> {
        self.maps
            .listeners
            .update(bytes(&listener(at)), &u32::from(stateless).to_ne_bytes(), MapFlags::ANY)
            .map_err(|_| GateError::Full { address: at.ip() })
    }

    /// New connections to this address and port are not gated any more; those that live are.
    pub fn remove_listener(&self, at: SocketAddr) -> Result<(), GateError> {
        self.remove(&self.maps.listeners, &listener(at), "removing a listener")
    }

    /// Where a node's packets go on an interface: its card's address there.
    pub fn set_peer(&self, interface: u32, node: NodeId, mac: [u8; 6]) -> Result<(), GateError> {
        let key = types::peer { ifindex: interface, node: u32::from(node.number()) };
        self.put(&self.maps.peers, &key, &types::mac { mac, pad: 0 }, "noting a node's address")
    }

    /// Whether packets of connections that nobody knows may be answered with RST. Only a node that holds the state of its
    /// buckets may say so; initially it may not.
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

    /// Connections of the bucket are being continued: segments of flows that have no slot yet are handed to this lane
    /// ([`Knock`](crate::Knock)), whatever else becomes of them. `None`: all have one.
    pub fn set_pending(&self, bucket: Bucket, lane: Option<LaneId>) {
        let word = lane.map_or(0, |lane| lane.number() as u64 + 1);
        self.pending.word(bucket.number()).store(word, Ordering::Release);
    }

    /// When our kernel last answered the SYN of a client of the bucket, in nanoseconds of the programs' clock, while there are
    /// such clients whom no program has accepted: no other node could continue them. Those that were accepted from a cookie
    /// do not count.
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

    /// What one worker needs, to be used in its thread. A second lane of the same number takes the first one's events.
    pub fn lane(&self, id: LaneId) -> Result<Lane, GateError> {
        Lane::new(id, self.maps.clone(), self.programs.clone(), self.slots.clone(), self.batches.clone())
    }

    /// Whether a program of this node holds a slot of the flow that is no older than `since_ns`: there is a connection of these
    /// ends already, and not one that is left from when the bucket was here before.
    pub fn is_held(&self, flow: &Flow, since_ns: u64) -> bool {
        let mut index = [0; 4];
        let found = self.maps.flows.lookup_into(bytes(&flow.key()), &mut index, MapFlags::ANY);
        let slot = u32::from_ne_bytes(index) as usize;
        if !matches!(found, Ok(true)) || slot >= self.slots.entries() {
            return false;
        }
        let pointer = self.slots.pointer(slot);
        // SAFETY: aligned fields of an entry of the table.
        let (flags, born) = unsafe {
            (AtomicU32::from_ptr(&raw mut (*pointer).flags), AtomicU64::from_ptr(&raw mut (*pointer).born_ns))
        };
        flags.load(Ordering::Acquire) & FLAG_TAKEN != 0 && born.load(Ordering::Acquire) >= since_ns
    }

    /// Gates a flow that lived elsewhere, before its socket exists. Its bucket must be on hold.
    pub fn restore(&self, from: &Restored) -> Result<Slot, GateError> {
        let bucket = self.bucket(&from.flow).number() as u16;
        let mut index = [0; 4];
        let found = self.maps.free_slots.lookup_into_and_delete(&[], &mut index);
        if !matches!(found, Ok(true)) {
            return Err(GateError::NoSlot { flows_max: self.slots.entries() as u32 });
        }
        let slot = Slot::write(&self.slots, u32::from_ne_bytes(index), from, bucket);
        let key = from.flow.key();
        let registered = self.put(&self.maps.flows, &key, &slot.index(), "registering a restored flow");
        match registered {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.maps.free(&self.slots, slot.index(), &key);
                Err(error)
            }
        }
    }

    /// Writes a restored flow again with what was learnt since. Its bucket must still be on hold.
    pub fn restore_again(&self, slot: Slot, from: &Restored) -> Slot {
        Slot::write(&self.slots, slot.index(), from, self.bucket(&from.flow).number() as u16)
    }

    /// What the peer said on hold, or while we backed the flow up.
    pub fn heard(&self, flow: &Flow) -> Option<Heard> {
        let mut value = [0; size_of::<types::heard>()];
        let found = self.maps.heard.lookup_into(bytes(&flow.key()), &mut value, MapFlags::ANY);
        let word = |index: usize| {
            value
                .get(index * 4..index * 4 + 4)
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(0, u32::from_ne_bytes)
        };
        matches!(found, Ok(true)).then(|| Heard {
            seq: word(0),
            ack: word(1),
            window: word(2),
            count: word(3),
            timestamps: (word(4), word(5)),
        })
    }

    /// Forgets it, so that the next answer is known to be new.
    pub fn forget_heard(&self, flow: &Flow) {
        // Nothing heard is fine too.
        let _ = self.maps.heard.delete(bytes(&flow.key()));
    }

    /// Frees slots of connections that never came to be: older than `age_ns` and taken by no program. Returns how many. Looks
    /// through the whole table, and counts what it finds, see [`Gate::slots_counted`].
    pub fn reclaim(&self, now_ns: u64, age_ns: u64) -> usize {
        self.sweep(now_ns, age_ns, |_| true)
    }

    /// Like [`Gate::reclaim`], but only those whose peers have not answered our SYN-ACK: in a flood nobody ever will. Not
    /// those whose peers have not answered our SYN.
    pub fn reclaim_unanswered(&self, now_ns: u64, age_ns: u64) -> usize {
        self.sweep(now_ns, age_ns, |slot| {
            // SAFETY: aligned fields of an entry of the table, which outlives the call.
            let (established, syn_sent) =
                unsafe { (&raw mut (*slot).established, &raw mut (*slot).syn_sent) };
            // SAFETY: as above.
            [established, syn_sent].map(|field| unsafe { AtomicU32::from_ptr(field) }.load(Ordering::Acquire))
                == [0, 0]
        })
    }

    fn sweep(&self, now_ns: u64, age_ns: u64, wanted: impl Fn(*mut types::slot) -> bool) -> usize {
        let (mut freed, mut in_use) = (0, 0);
        for index in 0..self.slots.entries() {
            let pointer = self.slots.pointer(index);
            // SAFETY: aligned fields of an entry of the table.
            let (born, flags) = unsafe {
                (
                    AtomicU64::from_ptr(&raw mut (*pointer).born_ns),
                    AtomicU32::from_ptr(&raw mut (*pointer).flags),
                )
            };
            let born_ns = born.load(Ordering::Acquire);
            in_use += usize::from(born_ns != 0);
            if born_ns == 0 || now_ns.saturating_sub(born_ns) < age_ns || !wanted(pointer) {
                continue;
            }
            let take = |free| flags.compare_exchange(free, FLAG_TAKEN, Ordering::AcqRel, Ordering::Acquire);
            if take(0).is_ok() || take(FLAG_LEARN).is_ok() {
                // SAFETY: the key is written at registration only, and the slot is ours now.
                let key = unsafe { (&raw const (*pointer).key).read_volatile() };
                self.maps.free(&self.slots, index as u32, &key);
                freed += 1;
            }
        }
        self.in_use.store(in_use - freed, Ordering::Relaxed);
        freed
    }

    /// How many slots were in use when [`Gate::reclaim`] looked last, and how many there are.
    pub fn slots_counted(&self) -> (usize, usize) {
        (self.in_use.load(Ordering::Relaxed), self.slots.entries())
    }

    /// Slots of flows that live, start or end.
    pub fn slots_in_use(&self) -> usize {
        let born = |index| {
            let pointer = self.slots.pointer(index);
            // SAFETY: an aligned field of an entry of the table.
            unsafe { AtomicU64::from_ptr(&raw mut (*pointer).born_ns) }.load(Ordering::Relaxed)
        };
        (0..self.slots.entries()).filter(|index| born(*index) != 0).count()
    }

    /// What happened at the gate so far.
    pub fn counters(&self) -> Result<Counters, GateError> {
        Counters::read(&self.maps.counters)
    }

    /// Sets the clock of a gate loaded with a test clock.
    pub fn set_test_clock_ns(&self, now_ns: u64) {
        if let Some(clock) = &self.clock {
            clock.word(0).store(now_ns, Ordering::SeqCst);
        }
    }

    fn put<K: Copy, V: Copy>(
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

impl Maps {
    /// Gives a slot back. The flow's entry goes too, unless a newer connection of the same ends has taken it over.
    pub(crate) fn free(&self, slots: &Table<types::slot>, index: u32, key: &types::flow_key) {
        let mut found = [0; 4];
        let is_ours = |found: [u8; 4]| u32::from_ne_bytes(found) == index;
        // Looked at first: a newer connection must not be without its entry, not even for a moment.
        if let Ok(true) = self.flows.lookup_into(bytes(key), &mut found, MapFlags::ANY)
            && is_ours(found)
            && let Ok(true) = self.flows.lookup_into_and_delete(bytes(key), &mut found)
            && !is_ours(found)
        {
            // Refused only when an even newer connection has registered meanwhile.
            let _ = self.flows.update(bytes(key), &found, MapFlags::NO_EXIST);
        }
        self.end_greeting(slots, index);
        let pointer = slots.pointer(index as usize);
        // SAFETY: an aligned field of an entry of the table.
        unsafe { AtomicU64::from_ptr(&raw mut (*pointer).born_ns) }.store(0, Ordering::Release);
        // The list holds as many entries as there are slots, so it is never full.
        let _ = self.free_slots.update(&[], &index.to_ne_bytes(), MapFlags::ANY);
    }

    /// A program has the connection, or nobody ever will: it is not counted among those that only our kernel knows.
    pub(crate) fn end_greeting(&self, slots: &Table<types::slot>, index: u32) {
        let pointer = slots.pointer(index as usize);
        // SAFETY: aligned fields of an entry of the table; the bucket is written before the slot is taken.
        let (greeted, bucket) = unsafe {
            (AtomicU32::from_ptr(&raw mut (*pointer).greeted), (&raw const (*pointer).bucket).read_volatile())
        };
        if greeted.swap(0, Ordering::AcqRel) != 0 && usize::from(bucket) < self.greetings.entries() {
            self.greeting(usize::from(bucket)).0.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn greeted_ns(&self, bucket: Bucket) -> Option<u64> {
        let (count, newest_ns) = self.greeting(bucket.number());
        (count.load(Ordering::Acquire) > 0).then(|| newest_ns.load(Ordering::Acquire))
    }

    fn greeting(&self, bucket: usize) -> (&AtomicU64, &AtomicU64) {
        let pointer = self.greetings.pointer(bucket);
        // SAFETY: aligned fields of an entry of the table, which lives as long as this.
        unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*pointer).count),
                AtomicU64::from_ptr(&raw mut (*pointer).newest_ns),
            )
        }
    }
}

fn listener(at: SocketAddr) -> types::listener {
    types::listener { ip: words(at.ip()), port: at.port().to_be(), pad: 0 }
}
