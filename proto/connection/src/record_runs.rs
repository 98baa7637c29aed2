//! Layouts of sealed records that are not queued yet.
//!
//! A layout is queued before its record leaves. Records of one call make one entry: a run, which backups repeat as a
//! whole.

use crate::framing::extend;
use evergate_replication::{Entry, Log, RUN_BYTES_MAX, RecordKind, RecordLayout, RecordPosition};

/// Records of one direction, sealed in one call, whose boundaries are not queued yet.
#[derive(Debug, Default)]
struct Run {
    boundary: Option<RecordLayout>,
    /// Plaintext of the run.
    bytes: usize,
}

impl Run {
    /// Adds a record; the run before, when it begins another.
    fn note(
        &mut self,
        first: RecordPosition,
        kind: RecordKind,
        length: usize,
        tag: u64,
    ) -> Option<RecordLayout> {
        let data = |run: &RecordLayout| run.kind == RecordKind::Data && run.end() == first;
        let joins = kind == RecordKind::Data && self.boundary.as_ref().is_some_and(data);
        let fits = self.bytes + length <= RUN_BYTES_MAX; // a node that repeats the run buffers all of it
        let before = if joins && fits { None } else { self.take() };
        self.bytes += length;
        let fresh = || RecordLayout { first, kind, lengths: Vec::new(), digest: 0 };
        extend(self.boundary.get_or_insert_with(fresh), length, tag);
        before
    }

    fn take(&mut self) -> Option<RecordLayout> {
        self.bytes = 0;
        self.boundary.take()
    }
}

/// The runs under way of both directions.
#[derive(Debug, Default)]
pub(crate) struct RecordRuns {
    /// Records to the client.
    client: Run,
    /// Number of a server leg, and the records to it.
    server: (u32, Run),
    /// Exchange of the newest route: entries of its leg name it.
    pub(crate) routed: u32,
}

impl RecordRuns {
    /// A record to the client was sealed: it belongs to the run that is queued before the call ends.
    pub(crate) fn note_client(
        &mut self,
        log: &mut Log,
        first: RecordPosition,
        kind: RecordKind,
        length: usize,
        tag: u64,
    ) {
        if let Some(run) = self.client.note(first, kind, length, tag) {
            log.push(Entry::Boundary(run));
        }
    }

    /// A record to a server was sealed.
    pub(crate) fn note_server(
        &mut self,
        log: &mut Log,
        leg: u32,
        first: RecordPosition,
        kind: RecordKind,
        length: usize,
        tag: u64,
    ) {
        if self.server.0 != leg {
            self.flush(log);
            self.server.0 = leg;
        }
        let exchange = self.routed;
        if let Some(boundary) = self.server.1.note(first, kind, length, tag) {
            log.push(Entry::LegBoundary { exchange, leg, boundary });
        }
    }

    /// Queues the runs.
    pub(crate) fn flush(&mut self, log: &mut Log) {
        if let Some(run) = self.client.take() {
            log.push(Entry::Boundary(run));
        }
        let (leg, run) = &mut self.server;
        if let Some(boundary) = run.take() {
            log.push(Entry::LegBoundary { exchange: self.routed, leg: *leg, boundary });
        }
    }

    /// Queues the run to the client, whose records need no entry.
    pub(crate) fn flush_deterministic(&mut self, log: &mut Log) {
        if let Some(run) = self.client.take() {
            log.push_deterministic(Entry::Boundary(run)); // a backup with the end also has its records
        }
    }
}
