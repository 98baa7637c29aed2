//! GateEvents that the gate sends to the driver of the connections.

use crate::frame::{ACK, RST, SYN, Segment};
use crate::packets::{DROP, accepted, client, enter, inward, leave, listener, out};
use crate::restored::restored;
use crate::world::{bench, privileged};
use evergate_bpf::{Counter, Flow, GateEvents, Leases, Mode, WorkerPortId};

#[test]
fn an_event_comes_once_and_only_when_asked_for() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (mut worker_port, slot) = accepted(gate, false, 500, 1000);
        leave(gate, &Segment { seq: 500, ack: 1000, data: vec![7; 100], ..out(false) }).unwrap();
        let mut events = GateEvents::default();
        enter(gate, &Segment { seq: 1000, ack: 510, ..inward(false) }).unwrap();
        worker_port.events(&mut events).unwrap();
        assert!(events.woken.is_empty());
        assert!(!slot.wake_at(worker_port.id(), 510), "already acknowledged");
        assert!(slot.wake_at(worker_port.id(), 540));
        for ack in [520, 540, 560, 600] {
            enter(gate, &Segment { seq: 1000, ack, ..inward(false) }).unwrap();
        }
        worker_port.events(&mut events).unwrap();
        assert_eq!(events.woken, [slot.index()]);
        assert!(events.early.is_empty());
    });
}

#[test]
fn early_segment_is_diverted_to_the_pending_worker() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let flow = Flow::new(listener(v6), client(v6));
            let bucket = gate.bucket(&flow);
            let mut worker_port = gate.worker_port(WorkerPortId::new(3).unwrap()).unwrap();
            let request = Segment { seq: 700, ack: 1, data: b"GET /".to_vec(), ..inward(v6) };
            let early = |worker_port: &mut evergate_bpf::WorkerPort, segments: &[&Segment]| {
                segments.iter().for_each(|segment| drop(enter(gate, segment)));
                let mut events = GateEvents::default();
                worker_port.events(&mut events).unwrap();
                assert!(events.woken.is_empty());
                events
                    .early
                    .into_iter()
                    .map(|diverted| (diverted.flow, diverted.position.seq, diverted.data))
                    .collect::<Vec<_>>()
            };
            assert_eq!(early(&mut worker_port, &[&request]), [], "the bucket is not pending");
            assert_ne!(enter(gate, &request), Err(DROP));
            gate.set_pending(bucket, Some(worker_port.id()));
            // The kernel may find its socket by the time, which must not have it twice.
            assert_eq!(enter(gate, &request), Err(DROP));
            assert_eq!(early(&mut worker_port, &[]).len(), 1);
            let kept = (flow, 700, request.data.clone());
            assert_eq!(early(&mut worker_port, &[&request]), std::slice::from_ref(&kept));
            let owner = gate.owners().get(bucket);
            gate.owners().set(bucket, owner.on_hold());
            assert_eq!(
                early(&mut worker_port, &[&request, &request]),
                [kept.clone(), kept.clone()],
                "on hold too"
            );
            gate.owners().set(bucket, owner);
            let empty = Segment { data: Vec::new(), ..request.clone() };
            let refused = Segment { flags: RST | ACK, ..request.clone() };
            let fresh = Segment { flags: SYN, ..request.clone() };
            assert_eq!(early(&mut worker_port, &[&empty, &refused, &fresh]), []);
            assert_ne!(enter(gate, &empty), Err(DROP));
            let longest = Segment { data: vec![7; 3400], ..request.clone() };
            assert_eq!(early(&mut worker_port, &[&longest]), [(flow, 700, longest.data.clone())]);
            let elsewhere = Segment { seq: 9, ..Segment::new(client(!v6), listener(!v6)) };
            assert_eq!(early(&mut worker_port, &[&elsewhere]), [], "another bucket");
            assert_eq!(gate.counters().unwrap().get(Counter::EarlySegment), 5);
            // Events of live flows must find room: early segments are no longer diverted when half of the ring is full.
            for _ in 0..1000 {
                drop(enter(gate, &request));
                drop(enter(gate, &longest));
            }
            assert!(gate.counters().unwrap().get(Counter::EventLost) > 0);
            assert_eq!(enter(gate, &request), Err(DROP), "dropped also without an event");
            assert!(!early(&mut worker_port, &[]).is_empty());
            assert_eq!(early(&mut worker_port, &[&request]), [kept]);
            gate.set_pending(bucket, None);
            assert_eq!(early(&mut worker_port, &[&request]), []);
        });
    }
}

#[test]
fn nothing_reaches_a_socket_that_is_being_made() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let mut worker_port = gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap();
            let request = Segment { seq: 1000, ack: from.send, data: b"GET /".to_vec(), ..inward(v6) };
            let mut early = || {
                let mut events = GateEvents::default();
                worker_port.events(&mut events).unwrap();
                events.early.len()
            };
            let since_ns = Leases::now_ns();
            assert!(!gate.is_held(&from.flow, since_ns));
            let slot = gate.restore(&from).unwrap();
            assert!(gate.is_held(&from.flow, since_ns));
            assert!(!gate.is_held(&from.flow, Leases::now_ns() + 1), "what was here before does not count");
            slot.set_asleep(true);
            assert_eq!((enter(gate, &request), early()), (Err(DROP), 0), "the bucket is not pending");
            gate.set_pending(gate.bucket(&from.flow), Some(WorkerPortId::new(0).unwrap()));
            assert_eq!((enter(gate, &request), early()), (Err(DROP), 1));
            slot.set_asleep(false);
            assert_eq!((enter(gate, &request), early()), (Ok(request), 0));
        });
    }
}
