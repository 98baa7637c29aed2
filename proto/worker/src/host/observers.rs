//! Receivers of what a worker did: the access log, audited capture, and the agent.

use crate::report::Report;
use evergate_base::Micros;
use evergate_connection::{Birth, Connection, LoggedHeaders, RequestLog};
use evergate_evidence::feed::Continuation;
use evergate_evidence::record::RequestRecord;

/// The access log of one worker.
pub trait AccessLog: Send {
    /// Adds a finished request.
    fn push(&mut self, log: &RequestLog, connection: &Connection);

    /// Passes the lines on; once a turn. Returns the number of lines that were lost.
    fn flush(&mut self) -> u64;

    /// Headers that the lines contain.
    fn logged_headers(&self) -> LoggedHeaders;
}

/// Audited capture of one worker.
pub trait AuditedCapture: Send {
    /// Whether new connections of audited listeners are refused: their secrets or requests could be lost.
    fn refuses(&self) -> bool;

    /// The envelope of a connection's secrets; `None` when they cannot be sealed, which is counted and declared.
    fn seal(&mut self, birth: &Birth<'_>, now: Micros) -> Option<Vec<u8>>;

    /// Queues an envelope for the Recorder.
    fn push_envelope(&self, envelope: &[u8]);

    /// Queues a request for the Recorder.
    fn push_request(&self, request: RequestRecord<'_>);

    /// Queues that this node continues a connection of another one.
    fn push_continued(&self, continued: Continuation);
}

/// The way of a worker's reports to the agent.
pub trait Reports: Send {
    /// Sends a report. The agent ends after its workers, so no later report matters.
    fn send(&self, report: Report);
}
