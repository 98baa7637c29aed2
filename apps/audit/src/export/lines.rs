//! JSON: one object a line for each message, and one for each session at its end.

use crate::cli::Failure;
use crate::export::{Writer, unwritten};
use crate::sessions::{Outcome, Redaction, Selected, Sink, event_json, hex_of, session_json};
use evergate_player::{Event, Report};
use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Write};

pub(super) struct LineWriter<'a> {
    out: BufWriter<File>,
    sessions: &'a [Selected],
    names: Vec<String>,
    redaction: Redaction,
}

impl<'a> LineWriter<'a> {
    pub(super) fn new(
        out: BufWriter<File>,
        sessions: &'a [Selected],
        names: Vec<String>,
        redaction: Redaction,
    ) -> Self {
        LineWriter { out, sessions, names, redaction }
    }

    fn write(&mut self, value: &Value) -> Result<(), Failure> {
        writeln!(self.out, "{value}").map_err(|error| unwritten(&error))
    }
}

impl Sink for LineWriter<'_> {
    fn on_event(&mut self, session: usize, mut event: Event) -> Result<bool, Failure> {
        let redacted = match &mut event {
            Event::Message(message) => self.redaction.apply(message),
            _ => false,
        };
        let mut value = event_json(&event);
        let selected = &self.sessions[session];
        if let Some(object) = value.as_object_mut() {
            object.insert("session".into(), hex_of(selected.client_random).into());
            object.insert("client".into(), selected.ends.client.to_string().into());
            object.insert("server".into(), selected.ends.server.to_string().into());
            object.insert("sni".into(), selected.sni.as_str().into());
            object.insert("redacted".into(), redacted.into());
        }
        self.write(&value)?;
        Ok(redacted)
    }

    fn on_end(&mut self, session: usize, report: &Report, outcome: Outcome) -> Result<(), Failure> {
        let value = session_json(&self.sessions[session], &self.names, report, outcome);
        self.write(&value)
    }
}

impl Writer for LineWriter<'_> {
    fn finish(self: Box<Self>) -> Result<File, Failure> {
        self.out.into_inner().map_err(|error| unwritten(&error))
    }
}
