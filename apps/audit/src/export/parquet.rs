//! Parquet: one row for each message, in the order in which messages end.

use crate::cli::Failure;
use crate::cold::{Cell, Kind, Table, TableWriter, column};
use crate::export::{Writer, unwritten};
use crate::sessions::{Outcome, Redaction, Selected, Sink, digest_of, hex_of, holes_json};
use evergate_player::http::Head;
use evergate_player::{Event, Report};
use serde_json::json;
use std::fs::File;
use std::net::IpAddr;

const MESSAGE: Table = Table {
    name: "message",
    columns: &[
        column("session", Kind::Text),
        column("client", Kind::Text),
        column("client_port", Kind::Number),
        column("server", Kind::Text),
        column("server_port", Kind::Number),
        column("sni", Kind::Text),
        column("exchange", Kind::Number),
        column("kind", Kind::Text),
        column("first_ns", Kind::Time),
        column("last_ns", Kind::Time),
        column("method", Kind::Text),
        column("host", Kind::Text),
        column("target", Kind::Text),
        column("status", Kind::Number),
        column("headers", Kind::Text),
        column("body", Kind::Bytes),
        column("body_bytes", Kind::Number),
        column("body_sha256", Kind::Bytes),
        column("holes", Kind::Text),
        column("is_complete", Kind::Number),
        column("is_redacted", Kind::Number),
    ],
    order: "last_ns",
    bloom: &[],
};

pub(super) struct ParquetWriter<'a> {
    writer: TableWriter,
    sessions: &'a [Selected],
    redaction: Redaction,
}

impl<'a> ParquetWriter<'a> {
    pub(super) fn new(file: File, sessions: &'a [Selected], redaction: Redaction) -> Result<Self, Failure> {
        static TABLE: Table = MESSAGE;
        let writer = TableWriter::new(&TABLE, file).map_err(|error| unwritten(&error))?;
        Ok(ParquetWriter { writer, sessions, redaction })
    }
}

impl Sink for ParquetWriter<'_> {
    fn on_event(&mut self, session: usize, event: Event) -> Result<bool, Failure> {
        let Event::Message(mut message) = event else { return Ok(false) };
        let redacted = self.redaction.apply(&mut message);
        let selected = &self.sessions[session];
        let text = |text: &str| Cell::Bytes(text.as_bytes().to_vec());
        let address = |address: IpAddr| Cell::Bytes(address.to_string().into_bytes());
        let number = |number: u64| Cell::Number(i64::try_from(number).unwrap_or(i64::MAX));
        let lossy = |bytes: &[u8]| Cell::Bytes(String::from_utf8_lossy(bytes).into_owned().into_bytes());
        let (kind, method, host, target, status) = match &message.head {
            Head::Request { method, target, host } => ("request", method.as_str(), &host[..], &target[..], 0),
            Head::Response { status, .. } => ("response", "", &[][..], &[][..], *status),
        };
        let headers: Vec<_> = message
            .headers
            .iter()
            .map(|(name, value)| json!([name, String::from_utf8_lossy(value)]))
            .collect();
        let cells = vec![
            text(&hex_of(selected.client_random)),
            address(selected.ends.client.ip()),
            number(selected.ends.client.port().into()),
            address(selected.ends.server.ip()),
            number(selected.ends.server.port().into()),
            text(&selected.sni),
            number(message.exchange),
            text(kind),
            number(message.first_ns),
            number(message.last_ns),
            text(method),
            lossy(host),
            lossy(target),
            number(status.into()),
            text(&json!(headers).to_string()),
            Cell::Bytes(std::mem::take(&mut message.body)),
            number(message.body_bytes),
            Cell::Bytes(digest_of(&message).map_or(Vec::new(), |digest| digest.to_vec())),
            text(&holes_json(&message).to_string()),
            number(message.is_complete.into()),
            number(redacted.into()),
        ];
        self.writer.push_cells(cells).map_err(|error| unwritten(&error))?;
        Ok(redacted)
    }

    fn on_end(&mut self, _: usize, _: &Report, _: Outcome) -> Result<(), Failure> {
        Ok(())
    }
}

impl Writer for ParquetWriter<'_> {
    fn finish(self: Box<Self>) -> Result<File, Failure> {
        let (file, _) = self.writer.finish().map_err(|error| unwritten(&error))?;
        Ok(file)
    }
}
