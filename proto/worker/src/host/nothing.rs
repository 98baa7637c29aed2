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

/// Methods that no value can call.
macro_rules! never {
    ($(fn $name:ident(&self $(, $argument:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, _: $argument)*) $(-> $result)? { match *self {} })*
    };
    ($(fn $name:ident(&mut self $(, $argument:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self $(, _: $argument)*) $(-> $result)? { match *self {} })*
    };
}

impl Host for Nothing {
    type Socket = Nothing;
    type Listener = Nothing;
    type Poll = Nothing;
    type Pipe = Nothing;
    type Restoring = Nothing;
    type Gate = Nothing;
    type Channels = Nothing;
    type Command = Nothing;

    never! {
        fn monotonic_us(&self) -> u64;
        fn steady_clock_ms(&self) -> u64;
        fn wall_clock_s(&self) -> u64;
        fn wall_clock_ns(&self) -> u64;
        fn thread_cpu_ns(&self) -> u64;
        fn fill_random(&self, &mut [u8]);
        fn lacks_descriptors(&self) -> bool;
        fn log(&self, LogEvent);
        fn is_of_machine(&self, &io::Error) -> bool;
        fn connect(&self, SocketAddr) -> io::Result<Nothing>;
        fn connect_as(&self, IpAddr, SocketAddr) -> io::Result<Nothing>;
        fn connect_from(&self, IpAddr, RangeInclusive<u16>, SocketAddr) -> io::Result<Nothing>;
        fn end_time_wait(&self, SocketAddr, SocketAddr);
        fn pipe(&self) -> io::Result<Nothing>;
        fn restore(&self, &Restore) -> io::Result<Nothing>;
    }
}

impl Restoring for Nothing {
    type Socket = Nothing;

    fn finish(self) -> io::Result<Nothing> {
        match self {}
    }

    never! {
        fn receive(&self, &[u8]) -> io::Result<usize>;
    }
}

impl Listener for Nothing {
    type Socket = Nothing;

    never! {
        fn descriptor(&self) -> i32;
        fn accept(&self) -> io::Result<Option<(Nothing, SocketAddr)>>;
        fn set_keepalive(&self, Option<Keepalive>) -> io::Result<()>;
        fn lowest_free_descriptor(&self) -> i32;
    }
}

impl Poll for Nothing {
    never! {
        fn add(&self, i32, u64) -> io::Result<()>;
        fn add_input(&self, i32, u64) -> io::Result<()>;
        fn add_without_reads(&self, i32, u64) -> io::Result<()>;
        fn report_again(&self, i32, u64) -> io::Result<()>;
        fn remove(&self, i32) -> io::Result<()>;
        fn drain_wakes(&self);
    }
}

impl Pipe<Nothing> for Nothing {
    never! {
        fn highest_descriptor(&self) -> i32;
        fn held(&self) -> usize;
    }
    never! {
        fn fill(&mut self, &Nothing, usize, bool) -> Transfer;
        fn empty(&mut self, &Nothing) -> Transfer;
    }
}

impl Channels for Nothing {
    type Channel = Nothing;

    never! {
        fn listener(&self) -> Option<i32>;
        fn accept(&self) -> io::Result<Option<(Nothing, SocketAddr)>>;
        fn connect(&self, SocketAddr) -> io::Result<Nothing>;
    }
}

impl Channel for Nothing {
    never! {
        fn descriptor(&self) -> i32;
        fn connect_error(&self) -> io::Result<()>;
        fn has_more(&self) -> bool;
    }
    never! {
        fn receive(&mut self, bool) -> io::Result<()>;
        fn input(&mut self) -> &mut Vec<u8>;
        fn send(&mut self, &[u8]) -> io::Result<usize>;
    }
}

impl Socket for Nothing {
    fn read_scattered(&self, _: &mut [u8], _: &[(usize, usize)]) -> Transfer {
        match *self {}
    }
    fn tcp_params(&self, _: Option<(SocketAddr, SocketAddr)>, _: u64) -> io::Result<TcpParams> {
        match *self {}
    }

    never! {
        fn descriptor(&self) -> i32;
        fn read(&self, &mut [u8]) -> Transfer;
        fn peek(&self, &mut [u8]) -> Transfer;
        fn write(&self, &[u8]) -> Transfer;
        fn write_gathered(&self, &[&[u8]]) -> Transfer;
        fn write_last(&self, &[&[u8]]) -> Transfer;
        fn shutdown_write(&self);
        fn reset_on_close(&self);
        fn forget_on_close(&self) -> io::Result<()>;
        fn acknowledge_now(&self);
        fn has_input(&self) -> bool;
        fn is_drained(&self) -> bool;
        fn unacknowledged(&self) -> u64;
        fn bytes_received(&self) -> io::Result<u64>;
        fn timestamp(&self) -> io::Result<u32>;
        fn connect_error(&self) -> io::Result<()>;
        fn local_address(&self) -> io::Result<SocketAddr>;
        fn set_keepalive(&self, Option<Keepalive>) -> io::Result<()>;
    }
}

impl Gate for Nothing {
    type Slot = Nothing;

    const ACKS_AT_ONCE: usize = 1;

    fn emit_acks<'a>(&mut self, _: impl IntoIterator<Item = &'a Nothing>) -> io::Result<()> {
        match *self {}
    }

    never! {
        fn now_ns(&self) -> u64;
        fn bucket(&self, &Flow) -> Bucket;
        fn ports(&self, Bucket) -> Option<RangeInclusive<u16>>;
        fn wake_at(&self, &Nothing, u32) -> bool;
        fn set_pending(&self, Bucket, bool);
        fn restore(&self, &Restored) -> io::Result<Nothing>;
        fn restore_unless_begun(&self, &Restored, u64) -> io::Result<Option<Nothing>>;
        fn restore_again(&self, Nothing, &Restored) -> Nothing;
        fn peer_position(&self, &Flow) -> Option<PeerPosition>;
        fn forget_peer_position(&self, &Flow);
        fn has_answered_syn(&self, &Flow, Strange) -> bool;
        fn hold(&self, Bucket);
        fn close(&self, Bucket);
        fn release(&self, Bucket);
        fn open(&self, Bucket);
        fn greeted_ns(&self, Bucket) -> Option<u64>;
        fn add_neighbour(&self, u32, IpAddr, [u8; 6]);
        fn ask(&self, &TcpParams, &Probe) -> io::Result<()>;
        fn notify_loss(&self, &TcpParams, &Loss, u32) -> io::Result<bool>;
    }
    never! {
        fn slot(&mut self, &Flow) -> Option<Nothing>;
        fn finish(&mut self, Nothing, Option<u32>);
        fn sweep(&mut self);
        fn forget_finished(&mut self, Option<Bucket>);
        fn events(&mut self, &mut GateEvents) -> io::Result<()>;
    }
}

impl Slot for Nothing {
    never! {
        fn flow(&self) -> Flow;
        fn index(&self) -> u32;
        fn origin(&self) -> Origin;
        fn committed(&self) -> u32;
        fn set_committed(&self, u32);
        fn sent_ack(&self) -> u32;
        fn peer_acked(&self) -> u32;
        fn owes_ack(&self) -> bool;
        fn is_over(&self, u32) -> bool;
        fn strange(&self) -> Option<Strange>;
        fn next_hop(&self) -> [u8; 6];
        fn allow_fin(&self);
        fn allow_rst(&self);
        fn open(&self);
        fn set_asleep(&self, bool);
    }
}
