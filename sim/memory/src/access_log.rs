//! The access log as a list of requests.

use evergate_connection::{Connection, LoggedHeaders, RequestLog};
use evergate_worker::host::AccessLog;
use std::sync::mpsc::Sender;

/// Sends each finished request to the test.
#[derive(Debug)]
pub struct MemoryLog(pub Sender<RequestLog>);

impl AccessLog for MemoryLog {
    fn push(&mut self, log: &RequestLog, _: &Connection) {
        let _ = self.0.send(log.clone()); // a test that is over takes no lines
    }

    fn flush(&mut self) -> u64 {
        0
    }

    fn logged_headers(&self) -> LoggedHeaders {
        LoggedHeaders::default()
    }
}
