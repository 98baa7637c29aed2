//! The model host behaves as Linux does where workers depend on it.

use super::*;
use crate::host::Clock;
use crate::kernel::{Closing, Kernel};
use crate::ports::ports_of;
use crate::segment::{FIRST, Segment};
use evergate_base::Bucket;
use evergate_base::net::{Event, Transfer};
use evergate_worker::host::{Gate, Poll, Slot, Socket};

const EDGE: u64 = 65_537;
const TOKEN: u64 = 77;

/// A machine with a connected, registered socket to a server.
struct Rig {
    host: ModelHost,
    socket: Option<ModelSocket>,
    flow: Flow,
}

impl Rig {
    fn new() -> Rig {
        let clock = Clock { skew: 5, drift_ppm: 0 };
        let kernel = Kernel::new(4_000, 1, Mutation::None);
        let machine = Rc::new(RefCell::new(Machine::new(clock, kernel, Mutation::None)));
        machine.borrow_mut().kernel.words.set_open(Bucket(0), true);
        let host = ModelHost(machine);
        let (local, server) = ([10, 0, 1, 100].into(), ([10, 0, 10, 1], 80).into());
        let socket = host.connect_from(local, ports_of(Bucket(0)), server).unwrap();
        let flow = Flow { ours: socket.local_address().unwrap(), theirs: server };
        ModelPoll(host.0.clone()).add(socket.descriptor(), TOKEN).unwrap();
        let mut rig = Rig { host, socket: Some(socket), flow };
        assert!(rig.events().is_empty(), "it is not connected yet");
        assert!(rig.sent().iter().all(|segment| segment.syn));
        rig.receive(Segment { syn: true, ..Segment::bare(flow, 0, Some(FIRST), EDGE) });
        rig
    }

    fn socket(&self) -> &ModelSocket {
        self.socket.as_ref().unwrap()
    }

    fn receive(&mut self, segment: Segment) {
        self.host.0.borrow_mut().kernel.handle(0, segment);
    }

    fn receive_data(&mut self, seq: u64, data: &[u8]) {
        self.receive(Segment { data: data.to_vec(), ..Segment::bare(self.flow, seq, Some(FIRST), EDGE) });
    }

    fn receive_end(&mut self, seq: u64, reset: bool) {
        let bare = Segment::bare(self.flow, seq, Some(FIRST), EDGE);
        self.receive(Segment { fin: !reset, rst: reset, ..bare });
    }

    fn events(&mut self) -> Vec<Event> {
        self.host.0.borrow_mut().take_events()
    }

    fn sent(&mut self) -> Vec<Segment> {
        self.host.0.borrow_mut().kernel.poll(0)
    }

    fn read(&self) -> Transfer {
        self.socket().read(&mut [0; 100])
    }
}

#[test]
fn edge_is_reported_once_per_change() {
    let mut rig = Rig::new();
    let [event] = rig.events()[..] else { panic!("one event of the connection") };
    assert!(event.token == TOKEN && event.writable && !event.readable && !event.broken);
    assert!(rig.events().is_empty());
    rig.receive_data(FIRST, b"ab");
    assert!(rig.events()[0].readable);
    assert!(rig.events().is_empty(), "the bytes are unread, and nothing has changed");
    rig.receive_data(FIRST + 2, b"c");
    assert!(rig.events()[0].readable);
    assert!(matches!(rig.read(), Transfer::Moved(3)));
}

#[test]
fn registration_without_reads_reports_no_input() {
    let mut rig = Rig::new();
    rig.events();
    let (poll, descriptor) = (ModelPoll(rig.host.0.clone()), rig.socket().descriptor());
    poll.add_without_reads(descriptor, TOKEN).unwrap();
    assert!(rig.events().iter().all(|event| !event.readable));
    rig.receive_data(FIRST, b"ab");
    assert!(rig.events().is_empty());
    rig.receive_end(FIRST + 2, false);
    assert!(rig.events()[0].ended, "the end is reported");
    poll.report_again(descriptor, TOKEN).unwrap();
    assert!(rig.events()[0].readable);
}

#[test]
fn full_socket_becomes_writable_with_a_third_free() {
    let mut rig = Rig::new();
    rig.events();
    assert!(matches!(rig.socket().write(&[7; 5_000]), Transfer::Moved(4_000)));
    assert!(matches!(rig.socket().write(b"x"), Transfer::Blocked));
    let acked = |acked: u64| FIRST + acked;
    rig.receive(Segment::bare(rig.flow, FIRST, Some(acked(1_000)), EDGE));
    assert!(rig.events().is_empty());
    rig.receive(Segment::bare(rig.flow, FIRST, Some(acked(2_000)), EDGE));
    assert!(rig.events()[0].writable);
}

#[test]
fn reset_is_one_error_unless_an_end_came_first() {
    let mut rig = Rig::new();
    rig.receive_end(FIRST, true);
    assert!(rig.events()[0].broken);
    assert!(matches!(rig.read(), Transfer::Broken(_)));
    assert!(matches!(rig.read(), Transfer::End), "an error is reported once");
    let mut rig = Rig::new();
    rig.receive_end(FIRST, false);
    rig.receive_end(FIRST + 1, true);
    assert!(matches!(rig.read(), Transfer::End));
}

#[test]
fn closed_socket_sends_what_the_gate_allows() {
    for (closes, allowed) in [(Closing::Orderly, 1), (Closing::Reset, 1), (Closing::Forgotten, 0)] {
        for opens in [true, false] {
            let mut rig = Rig::new();
            let mut gate = ModelGate::new(&rig.host.0);
            let slot = gate.slot(&rig.flow.into()).unwrap();
            assert!(gate.slot(&rig.flow.into()).is_none(), "it has a handle");
            rig.sent();
            match closes {
                Closing::Orderly => {}
                Closing::Reset => rig.socket().reset_on_close(),
                Closing::Forgotten => rig.socket().forget_on_close().unwrap(),
            }
            if opens {
                slot.open();
            }
            rig.socket = None;
            let ends = rig.sent().iter().filter(|segment| segment.fin || segment.rst).count();
            assert_eq!(ends, if opens { allowed } else { 0 }, "{closes:?} {opens}");
        }
    }
}

#[test]
fn finished_flow_is_forgotten_with_its_bucket() {
    let rig = Rig::new();
    let mut gate = ModelGate::new(&rig.host.0);
    let slot = gate.slot(&rig.flow.into()).unwrap();
    gate.finish(slot, Some(crate::segment::sequence(FIRST + 1)));
    gate.forget_finished(Some(Bucket(1)));
    gate.sweep();
    assert!(
        rig.host.0.borrow().kernel.slots.number(rig.flow).is_some(),
        "its peer has not acknowledged the end"
    );
    gate.forget_finished(Some(Bucket(0)));
    assert!(rig.host.0.borrow().kernel.slots.number(rig.flow).is_none());
}
