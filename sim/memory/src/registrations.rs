//! Descriptors of one process, and their registrations for events: edge-triggered or level-triggered, as by epoll.

use evergate_base::net::Event;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Readiness of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Input, or a connection to accept.
    pub input: bool,
    /// Space for output.
    pub output: bool,
    /// The peer's end.
    pub end: bool,
    /// Both directions ended.
    pub hangup: bool,
    /// An error that was not reported.
    pub error: bool,
}

impl Readiness {
    /// Readiness of an object that only has input, or none.
    pub fn of_input(input: bool) -> Readiness {
        Readiness { input, ..Readiness::default() }
    }

    /// The part that a registration with or without reads reports.
    fn masked(self, reads: bool) -> Readiness {
        Readiness { input: self.input && reads, ..self }
    }

    /// The event that reports it.
    pub fn event(self, token: u64) -> Event {
        let Readiness { input, output, end, hangup, error } = self;
        let over = hangup || error;
        Event {
            token,
            readable: over || input || end,
            writable: over || output,
            ended: over || end,
            broken: error,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Registration {
    token: u64,
    edge: bool,
    reads: bool,
}

/// Descriptors of one process: see the module's description. `O` is an open object.
#[derive(Debug)]
pub struct Registrations<O> {
    opened: i32,
    objects: BTreeMap<i32, O>,
    registered: BTreeMap<i32, Registration>,
    /// Of `registered`, those for levels, with their tokens.
    levels: Vec<(i32, u64)>,
    ready: VecDeque<i32>,
}

impl<O> Default for Registrations<O> {
    fn default() -> Registrations<O> {
        Registrations {
            opened: 0,
            objects: BTreeMap::new(),
            registered: BTreeMap::new(),
            levels: Vec::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<O: Copy> Registrations<O> {
    /// A descriptor for a new object. No number is used twice.
    pub fn open(&mut self, object: O) -> i32 {
        self.opened += 1;
        self.objects.insert(self.opened, object);
        self.opened
    }

    /// Number of the next descriptor.
    pub fn next_descriptor(&self) -> i32 {
        self.opened + 1
    }

    /// Closes a descriptor.
    pub fn close(&mut self, descriptor: i32) {
        self.objects.remove(&descriptor);
        self.remove(descriptor);
    }

    /// Registers an open descriptor for edges or levels; its readiness is reported.
    pub fn insert(&mut self, descriptor: i32, token: u64, edge: bool) -> io::Result<()> {
        if self.registered.contains_key(&descriptor) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.registered.insert(descriptor, Registration { token, edge, reads: true });
        match edge {
            true => self.wake(descriptor),
            false => self.levels.push((descriptor, token)),
        }
        Ok(())
    }

    /// Changes whether input of a descriptor registered for edges is reported; its readiness is reported.
    pub fn change(&mut self, descriptor: i32, token: u64, reads: bool) -> io::Result<()> {
        let known = self.registered.get_mut(&descriptor).ok_or(io::ErrorKind::NotFound)?;
        *known = Registration { token, edge: true, reads };
        self.wake(descriptor);
        Ok(())
    }

    /// Ends the registration of a descriptor.
    pub fn remove(&mut self, descriptor: i32) {
        self.registered.remove(&descriptor);
        self.levels.retain(|(level, _)| *level != descriptor);
        self.ready.retain(|ready| *ready != descriptor);
    }

    /// Whether input of a descriptor is reported; `None` unless it is registered for edges.
    pub fn reads(&self, descriptor: i32) -> Option<bool> {
        self.edge(descriptor).map(|registration| registration.reads)
    }

    fn edge(&self, descriptor: i32) -> Option<Registration> {
        self.registered.get(&descriptor).copied().filter(|registration| registration.edge)
    }

    /// The object of a descriptor has changed.
    pub fn wake(&mut self, descriptor: i32) {
        if self.edge(descriptor).is_some() && !self.ready.contains(&descriptor) {
            self.ready.push_back(descriptor);
        }
    }

    /// Events since the last call, by the readiness of the objects.
    pub fn take_events(&mut self, mut readiness: impl FnMut(O) -> Readiness) -> Vec<Event> {
        let mut events = Vec::new();
        for descriptor in std::mem::take(&mut self.ready) {
            let Some(Registration { token, reads, .. }) = self.edge(descriptor) else { continue };
            let now = self.objects.get(&descriptor).map_or_else(Readiness::default, |of| readiness(*of));
            if now.masked(reads) != Readiness::default() {
                events.push(now.masked(reads).event(token));
            }
        }
        for (descriptor, token) in &self.levels {
            let now = self.objects.get(descriptor).map_or_else(Readiness::default, |of| readiness(*of));
            if now.input {
                events.push(now.event(*token));
            }
        }
        events
    }

    /// Whether there are events.
    pub fn has_events(&mut self, mut readiness: impl FnMut(O) -> Readiness) -> bool {
        let objects = &self.objects;
        let mut now =
            |descriptor: &i32| objects.get(descriptor).map_or_else(Readiness::default, |of| readiness(*of));
        let registered = &self.registered;
        self.ready.retain(|descriptor| {
            let reads = registered.get(descriptor).is_some_and(|registration| registration.reads);
            now(descriptor).masked(reads) != Readiness::default()
        });
        !self.ready.is_empty() || self.levels.iter().any(|(descriptor, _)| now(descriptor).input)
    }
}
