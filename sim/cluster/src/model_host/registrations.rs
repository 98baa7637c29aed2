//! Descriptors of one process, and their registrations for events: edge-triggered or level-triggered, as by epoll.

use super::channel_table::ChannelId;
use crate::segment::Flow;
use std::collections::{BTreeMap, VecDeque};

/// An open object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Socket(Flow),
    Listener,
    ChannelListener,
    Channel(ChannelId),
    GateEvents,
}

/// Readiness of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// Input, or a connection to accept.
    pub(crate) input: bool,
    /// Space for output.
    pub(crate) output: bool,
    /// The peer's end.
    pub(crate) end: bool,
    /// Both directions ended.
    pub(crate) hangup: bool,
    /// An error that was not reported.
    pub(crate) error: bool,
}

impl Readiness {
    /// The part that a registration with or without reads reports.
    pub(crate) fn masked(self, reads: bool) -> Readiness {
        Readiness { input: self.input && reads, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Registration {
    token: u64,
    edge: bool,
    reads: bool,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    opened: i32,
    objects: BTreeMap<i32, Object>,
    registered: BTreeMap<i32, Registration>,
    /// Of `registered`, those for levels, with their tokens.
    levels: Vec<(i32, u64)>,
    ready: VecDeque<i32>,
}

impl Registrations {
    /// A descriptor for a new object. No number is used twice.
    pub(crate) fn open(&mut self, object: Object) -> i32 {
        self.opened += 1;
        self.objects.insert(self.opened, object);
        self.opened
    }

    /// Closes a descriptor.
    pub(crate) fn close(&mut self, descriptor: i32) {
        self.objects.remove(&descriptor);
        self.remove(descriptor);
    }

    pub(crate) fn object(&self, descriptor: i32) -> Option<Object> {
        self.objects.get(&descriptor).copied()
    }

    /// Token of a descriptor that is registered for edges, and whether input is reported.
    pub(crate) fn of(&self, descriptor: i32) -> Option<(u64, bool)> {
        let registration = self.registered.get(&descriptor).filter(|registration| registration.edge)?;
        Some((registration.token, registration.reads))
    }

    /// The descriptor that is registered for levels at this place, and its token.
    pub(crate) fn level(&self, place: usize) -> Option<(i32, u64)> {
        self.levels.get(place).copied()
    }

    /// Registers an open descriptor, or registers it otherwise; its readiness is reported.
    pub(crate) fn register(&mut self, descriptor: i32, token: u64, edge: bool, reads: bool) {
        self.registered.insert(descriptor, Registration { token, edge, reads });
        match edge {
            true => self.wake(descriptor),
            false => self.levels.push((descriptor, token)),
        }
    }

    pub(crate) fn is_registered(&self, descriptor: i32) -> bool {
        self.registered.contains_key(&descriptor)
    }

    pub(crate) fn remove(&mut self, descriptor: i32) {
        self.registered.remove(&descriptor);
        self.levels.retain(|(level, _)| *level != descriptor);
        self.ready.retain(|ready| *ready != descriptor);
    }

    /// The object of a descriptor has changed.
    pub(crate) fn wake(&mut self, descriptor: i32) {
        if self.of(descriptor).is_some() && !self.ready.contains(&descriptor) {
            self.ready.push_back(descriptor);
        }
    }

    pub(crate) fn take_ready(&mut self) -> VecDeque<i32> {
        std::mem::take(&mut self.ready)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}
