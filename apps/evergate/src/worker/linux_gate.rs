//! The packet gate of the kernel as the gate of a worker.

use crate::agent::Neighbours;
use evergate_base::Bucket;
use evergate_base::net::{Flow, GateEvents, Loss, Origin, PeerPosition, Probe, Restored, Strange, TcpParams};
use evergate_bpf::{BATCH, GateError, Leases, Owners, PacketGate, WorkerPort, WorkerPortId};
use evergate_membership::NodeId;
use evergate_sys::Prober;
use evergate_worker::host::{Gate, Slot};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// One worker's part of the node's gate, and its raw sockets.
pub struct LinuxGate {
    gate: Arc<PacketGate>,
    port: WorkerPort,
    owners: Owners,
    node: NodeId,
    prober: Prober,
    /// Neighbours that the kernel has.
    neighbours: Arc<Mutex<Neighbours>>,
}

/// Handle of a gated flow.
#[derive(Debug)]
pub struct LinuxSlot(evergate_bpf::Slot);

impl LinuxGate {
    /// The part of this worker of this node. Needs `CAP_NET_RAW`.
    pub(super) fn new(
        gate: Arc<PacketGate>,
        worker: usize,
        node: NodeId,
        neighbours: Arc<Mutex<Neighbours>>,
    ) -> anyhow::Result<LinuxGate> {
        let port = gate.worker_port(WorkerPortId::new(worker)?)?;
        Ok(LinuxGate { port, owners: gate.owners(), node, prober: Prober::new()?, neighbours, gate })
    }

    /// The descriptor to register for events of the gate.
    pub(super) fn events_fd(&self) -> RawFd {
        self.port.events_fd()
    }
}

fn other(error: GateError) -> io::Error {
    io::Error::other(error)
}

impl Gate for LinuxGate {
    type Slot = LinuxSlot;

    const ACKS_AT_ONCE: usize = BATCH;

    fn now_ns(&self) -> u64 {
        Leases::now_ns()
    }

    fn bucket(&self, flow: &Flow) -> Bucket {
        self.gate.bucket(flow)
    }

    fn ports(&self, bucket: Bucket) -> Option<RangeInclusive<u16>> {
        self.gate.ports().of(bucket)
    }

    fn slot(&mut self, flow: &Flow) -> Option<LinuxSlot> {
        self.port.slot(flow).map(LinuxSlot)
    }

    fn finish(&mut self, slot: LinuxSlot, end: Option<u32>) {
        self.port.finish(slot.0, end, Leases::now_ns());
    }

    fn sweep(&mut self) {
        self.port.sweep(Leases::now_ns());
    }

    fn forget_finished(&mut self, bucket: Option<Bucket>) {
        let gate = &self.gate;
        self.port.forget_finished(|flow| bucket.is_none_or(|bucket| gate.bucket(flow) == bucket));
    }

    fn emit_acks<'a>(&mut self, slots: impl IntoIterator<Item = &'a LinuxSlot>) -> io::Result<()> {
        self.port.emit_acks(slots.into_iter().map(|slot| &slot.0))
    }

    fn wake_at(&self, slot: &LinuxSlot, ack: u32) -> bool {
        slot.0.wake_at(self.port.id(), ack)
    }

    fn events(&mut self, into: &mut GateEvents) -> io::Result<()> {
        self.port.events(into)
    }

    fn set_pending(&self, bucket: Bucket, pending: bool) {
        self.gate.set_pending(bucket, pending.then(|| self.port.id()));
    }

    fn restore(&self, from: &Restored) -> io::Result<LinuxSlot> {
        self.gate.restore(from).map(LinuxSlot).map_err(other)
    }

    fn restore_unless_begun(&self, from: &Restored, since_ns: u64) -> io::Result<Option<LinuxSlot>> {
        let restored = self.gate.restore_unless_begun(from, since_ns);
        restored.map(|slot| slot.map(LinuxSlot)).map_err(other)
    }

    fn restore_again(&self, slot: LinuxSlot, from: &Restored) -> LinuxSlot {
        LinuxSlot(self.gate.restore_again(slot.0, from))
    }

    fn peer_position(&self, flow: &Flow) -> Option<PeerPosition> {
        self.gate.peer_position(flow)
    }

    fn forget_peer_position(&self, flow: &Flow) {
        self.gate.forget_peer_position(flow);
    }

    fn has_answered_syn(&self, flow: &Flow, came: Strange) -> bool {
        self.gate.has_answered_syn(flow, came)
    }

    fn hold(&self, bucket: Bucket) {
        self.owners.hold(bucket, self.node);
    }

    fn close(&self, bucket: Bucket) {
        self.owners.close(bucket, self.node);
    }

    fn release(&self, bucket: Bucket) {
        self.owners.release(bucket);
    }

    fn open(&self, bucket: Bucket) {
        self.owners.open(bucket);
    }

    fn greeted_ns(&self, bucket: Bucket) -> Option<u64> {
        self.gate.greeted_ns(bucket)
    }

    fn add_neighbour(&self, interface: u32, remote: IpAddr, next_hop: [u8; 6]) {
        let mut neighbours = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
        // Without the entry a failover resolves the neighbour: slower, but correct.
        if neighbours.wants(remote, next_hop, || evergate_sys::is_on_link(interface, remote).ok())
            && evergate_sys::set_neighbour(interface, remote, next_hop).is_ok()
        {
            neighbours.note(remote, next_hop);
        }
    }

    fn ask(&self, params: &TcpParams, probe: &Probe) -> io::Result<()> {
        self.prober.ask(params, probe)
    }

    fn notify_loss(&self, params: &TcpParams, loss: &Loss, before: u32) -> io::Result<bool> {
        self.prober.notify_loss(params, loss, before)
    }
}

impl Slot for LinuxSlot {
    fn flow(&self) -> Flow {
        self.0.flow()
    }

    fn index(&self) -> u32 {
        self.0.index()
    }

    fn origin(&self) -> Origin {
        self.0.origin()
    }

    fn committed(&self) -> u32 {
        self.0.committed()
    }

    fn set_committed(&self, ack: u32) {
        self.0.set_committed(ack);
    }

    fn sent_ack(&self) -> u32 {
        self.0.sent_ack()
    }

    fn peer_acked(&self) -> u32 {
        self.0.peer_acked()
    }

    fn owes_ack(&self) -> bool {
        self.0.owes_ack()
    }

    fn is_over(&self, end: u32) -> bool {
        self.0.is_over(end)
    }

    fn strange(&self) -> Option<Strange> {
        self.0.strange()
    }

    fn next_hop(&self) -> [u8; 6] {
        self.0.next_hop()
    }

    fn allow_fin(&self) {
        self.0.allow_fin();
    }

    fn allow_rst(&self) {
        self.0.allow_rst();
    }

    fn open(&self) {
        self.0.open();
    }

    fn set_asleep(&self, asleep: bool) {
        self.0.set_asleep(asleep);
    }
}
