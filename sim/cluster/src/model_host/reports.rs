//! The queue of a worker's reports.

use evergate_worker::Report;
use evergate_worker::host::Reports;
use std::sync::mpsc::Sender;

/// The end of the queue into which the worker puts its reports.
pub(crate) struct ModelReports(pub(crate) Sender<Report>);

impl Reports for ModelReports {
    fn send(&self, report: Report) {
        let _ = self.0.send(report); // the world takes them after each turn, and not after the process
    }
}
