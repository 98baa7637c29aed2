//! A host without sockets, for unit tests of types that name one.

use super::{Channel, Channels, Gate, Host, Listener, Pipe, Poll, Restoring, Slot, Socket};
use crate::log_event::LogEvent;
use evergate_base::Bucket;
use evergate_base::net::{
    Flow, GateEvents, Keepalive, Loss, Origin, PeerPosition, Probe, Restore, Restored, Strange, TcpParams,
    Transfer,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// A host that has nothing: a value of its types does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nothing {}

impl Host for Nothing {
    type Socket = Nothing;
    type Listener = Nothing;
    type Poll = Nothing;
    type Pipe = Nothing;
    type Restoring = Nothing;
    type Gate = Nothing;
    type Channels = Nothing;
    type Command = Nothing;

    fn monotonic_us(&self) -> u64 {
        match *self {}
    }
    fn steady_clock_ms(&self) -> u64 {
        match *self {}
    }
    fn wall_clock_s(&self) -> u64 {
        match *self {}
    }
    fn wall_clock_ns(&self) -> u64 {
        match *self {}
    }
    fn thread_cpu_ns(&self) -> u64 {
        match *self {}
    }
    fn fill_random(&self, _: &mut [u8]) {
        match *self {}
    }
    fn lacks_descriptors(&self) -> bool {
        match *self {}
    }
    fn log(&self, _: LogEvent) {
        match *self {}
    }
    fn is_of_machine(&self, _: &io::Error) -> bool {
        match *self {}
    }
    fn connect(&self, _: SocketAddr) -> io::Result<Nothing> {
        match *self {}
    }
    fn connect_from(&self, _: IpAddr, _: RangeInclusive<u16>, _: SocketAddr) -> io::Result<Nothing> {
        match *self {}
    }
    fn pipe(&self) -> io::Result<Nothing> {
        match *self {}
    }
    fn restore(&self, _: &Restore) -> io::Result<Nothing> {
        match *self {}
    }
}

impl Restoring for Nothing {
    type Socket = Nothing;

    fn receive(&self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }
    fn finish(self) -> io::Result<Nothing> {
        match self {}
    }
}

impl Listener for Nothing {
    type Socket = Nothing;

    fn descriptor(&self) -> i32 {
        match *self {}
    }
    fn accept(&self) -> io::Result<Option<(Nothing, SocketAddr)>> {
        match *self {}
    }
    fn set_keepalive(&self, _: Option<Keepalive>) -> io::Result<()> {
        match *self {}
    }
    fn lowest_free_descriptor(&self) -> i32 {
        match *self {}
    }
}

impl Poll for Nothing {
    fn add(&self, _: i32, _: u64) -> io::Result<()> {
        match *self {}
    }
    fn add_input(&self, _: i32, _: u64) -> io::Result<()> {
        match *self {}
    }
    fn add_without_reads(&self, _: i32, _: u64) -> io::Result<()> {
        match *self {}
    }
    fn report_again(&self, _: i32, _: u64) -> io::Result<()> {
        match *self {}
    }
    fn remove(&self, _: i32) -> io::Result<()> {
        match *self {}
    }
    fn drain_wakes(&self) {
        match *self {}
    }
}

impl Pipe<Nothing> for Nothing {
    fn highest_descriptor(&self) -> i32 {
        match *self {}
    }
    fn held(&self) -> usize {
        match *self {}
    }
    fn fill(&mut self, _: &Nothing, _: usize, _: bool) -> Transfer {
        match *self {}
    }
    fn empty(&mut self, _: &Nothing) -> Transfer {
        match *self {}
    }
}

impl Channels for Nothing {
    type Channel = Nothing;

    fn listener(&self) -> Option<i32> {
        match *self {}
    }
    fn accept(&self) -> io::Result<Option<(Nothing, SocketAddr)>> {
        match *self {}
    }
    fn connect(&self, _: SocketAddr) -> io::Result<Nothing> {
        match *self {}
    }
}

impl Channel for Nothing {
    fn descriptor(&self) -> i32 {
        match *self {}
    }
    fn connect_error(&self) -> io::Result<()> {
        match *self {}
    }
    fn receive(&mut self, _: bool) -> io::Result<()> {
        match *self {}
    }
    fn input(&mut self) -> &mut Vec<u8> {
        match *self {}
    }
    fn has_more(&self) -> bool {
        match *self {}
    }
    fn send(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Socket for Nothing {
    fn descriptor(&self) -> i32 {
        match *self {}
    }
    fn read(&self, _: &mut [u8]) -> Transfer {
        match *self {}
    }
    fn read_scattered(&self, _: &mut [u8], _: &[(usize, usize)]) -> Transfer {
        match *self {}
    }
    fn write(&self, _: &[u8]) -> Transfer {
        match *self {}
    }
    fn write_gathered(&self, _: &[&[u8]]) -> Transfer {
        match *self {}
    }
    fn write_last(&self, _: &[&[u8]]) -> Transfer {
        match *self {}
    }
    fn shutdown_write(&self) {
        match *self {}
    }
    fn reset_on_close(&self) {
        match *self {}
    }
    fn forget_on_close(&self) -> io::Result<()> {
        match *self {}
    }
    fn acknowledge_now(&self) {
        match *self {}
    }
    fn has_input(&self) -> bool {
        match *self {}
    }
    fn is_drained(&self) -> bool {
        match *self {}
    }
    fn unacknowledged(&self) -> u64 {
        match *self {}
    }
    fn bytes_received(&self) -> io::Result<u64> {
        match *self {}
    }
    fn timestamp(&self) -> io::Result<u32> {
        match *self {}
    }
    fn connect_error(&self) -> io::Result<()> {
        match *self {}
    }
    fn local_address(&self) -> io::Result<SocketAddr> {
        match *self {}
    }
    fn tcp_params(&self, _: Option<(SocketAddr, SocketAddr)>, _: u64) -> io::Result<TcpParams> {
        match *self {}
    }
    fn set_keepalive(&self, _: Option<Keepalive>) -> io::Result<()> {
        match *self {}
    }
}

impl Gate for Nothing {
    type Slot = Nothing;

    const ACKS_AT_ONCE: usize = 1;

    fn now_ns(&self) -> u64 {
        match *self {}
    }
    fn bucket(&self, _: &Flow) -> Bucket {
        match *self {}
    }
    fn ports(&self, _: Bucket) -> Option<RangeInclusive<u16>> {
        match *self {}
    }
    fn slot(&mut self, _: &Flow) -> Option<Nothing> {
        match *self {}
    }
    fn finish(&mut self, _: Nothing, _: Option<u32>) {
        match *self {}
    }
    fn sweep(&mut self) {
        match *self {}
    }
    fn forget_finished(&mut self, _: Option<Bucket>) {
        match *self {}
    }
    fn emit_acks<'a>(&mut self, _: impl IntoIterator<Item = &'a Nothing>) -> io::Result<()> {
        match *self {}
    }
    fn wake_at(&self, _: &Nothing, _: u32) -> bool {
        match *self {}
    }
    fn events(&mut self, _: &mut GateEvents) -> io::Result<()> {
        match *self {}
    }
    fn set_pending(&self, _: Bucket, _: bool) {
        match *self {}
    }
    fn restore(&self, _: &Restored) -> io::Result<Nothing> {
        match *self {}
    }
    fn restore_unless_begun(&self, _: &Restored, _: u64) -> io::Result<Option<Nothing>> {
        match *self {}
    }
    fn restore_again(&self, _: Nothing, _: &Restored) -> Nothing {
        match *self {}
    }
    fn peer_position(&self, _: &Flow) -> Option<PeerPosition> {
        match *self {}
    }
    fn forget_peer_position(&self, _: &Flow) {
        match *self {}
    }
    fn has_answered_syn(&self, _: &Flow, _: Strange) -> bool {
        match *self {}
    }
    fn hold(&self, _: Bucket) {
        match *self {}
    }
    fn close(&self, _: Bucket) {
        match *self {}
    }
    fn release(&self, _: Bucket) {
        match *self {}
    }
    fn open(&self, _: Bucket) {
        match *self {}
    }
    fn greeted_ns(&self, _: Bucket) -> Option<u64> {
        match *self {}
    }
    fn add_neighbour(&self, _: u32, _: IpAddr, _: [u8; 6]) {
        match *self {}
    }
    fn ask(&self, _: &TcpParams, _: &Probe) -> io::Result<()> {
        match *self {}
    }
    fn notify_loss(&self, _: &TcpParams, _: &Loss, _: u32) -> io::Result<bool> {
        match *self {}
    }
}

impl Slot for Nothing {
    fn flow(&self) -> Flow {
        match *self {}
    }
    fn index(&self) -> u32 {
        match *self {}
    }
    fn origin(&self) -> Origin {
        match *self {}
    }
    fn committed(&self) -> u32 {
        match *self {}
    }
    fn set_committed(&self, _: u32) {
        match *self {}
    }
    fn sent_ack(&self) -> u32 {
        match *self {}
    }
    fn peer_acked(&self) -> u32 {
        match *self {}
    }
    fn owes_ack(&self) -> bool {
        match *self {}
    }
    fn is_over(&self, _: u32) -> bool {
        match *self {}
    }
    fn strange(&self) -> Option<Strange> {
        match *self {}
    }
    fn next_hop(&self) -> [u8; 6] {
        match *self {}
    }
    fn allow_fin(&self) {
        match *self {}
    }
    fn allow_rst(&self) {
        match *self {}
    }
    fn open(&self) {
        match *self {}
    }
    fn set_asleep(&self, _: bool) {
        match *self {}
    }
}
