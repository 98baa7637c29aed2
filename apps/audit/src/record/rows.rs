//! Rows for the index, held until the statement that covers them is durable.

use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::statement::Statement;
use evergate_recorder::stream::PacketPlace;

/// Rows of the open batch.
#[derive(Debug, Default)]
pub(crate) struct Rows {}

impl Rows {
    pub(crate) fn on_connection(&mut self, _record: &ConnectionRecord) {}

    pub(crate) fn on_packet(&mut self, _place: &PacketPlace) {}

    pub(crate) fn on_batch(&mut self, _statement: &Statement) {}
}
