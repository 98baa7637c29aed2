//! Sessions for people. Text of peers is escaped; bodies that are no text are described.

use crate::cli::Failure;
use crate::find::hex;
use crate::output::{closed, shown_bytes};
use crate::sessions::{Outcome, Redaction, Selected, Sink, digest_of, hex_of};
use crate::when;
use evergate_base::terminal::{push_shown, shown};
use evergate_player::http::{Head, Message};
use evergate_player::{Event, Note, Report, Side};
use std::io::{self, Write};

/// Most bytes of a body that are shown.
const BODY_SHOWN_MAX: usize = 4096;

/// Writer of one session.
pub(super) struct TextSink<'a, W: Write> {
    session: &'a Selected,
    names: Vec<String>,
    redaction: Redaction,
    out: W,
    pub(super) is_whole: bool,
}

impl<'a, W: Write> TextSink<'a, W> {
    pub(super) fn new(session: &'a Selected, names: Vec<String>, redaction: Redaction, out: W) -> Self {
        TextSink { session, names, redaction, out, is_whole: true }
    }

    /// Writes the head of the session.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let Selected { ends, sni, first_ns, .. } = self.session;
        let name = if sni.is_empty() { String::new() } else { format!(" for {}", shown(sni)) };
        writeln!(self.out, "session  {} to {}{name}", ends.client, ends.server)?;
        writeln!(self.out, "begin    {} (UTC)", when::shown_short(*first_ns))?;
        if self.session.client_random.is_some() {
            writeln!(self.out, "random   {}", hex_of(self.session.client_random))?;
        }
        for part in &self.session.parts {
            let (name, number) =
                (self.names.get(part.source).map_or("", String::as_str), part.connection.number);
            writeln!(
                self.out,
                "source   {name}, connection {number}, {} packets",
                part.connection.counts.packets
            )?;
        }
        writeln!(self.out)
    }

    fn message(&mut self, message: &Message, redacted: bool) -> io::Result<()> {
        let arrow = arrow(message.side);
        let time = when::shown_short(message.first_ns);
        match &message.head {
            Head::Request { method, target, .. } => {
                let target = escaped(target, false);
                writeln!(self.out, "{arrow} {time}  {method} {target} HTTP/1.{}", message.minor)?;
            }
            Head::Response { status, reason } => {
                writeln!(self.out, "{arrow} {time}  HTTP/1.{} {status} {}", message.minor, shown(reason))?;
            }
        }
        for (name, value) in &message.headers {
            writeln!(self.out, "{arrow}   {name}: {}", escaped(value, false))?;
        }
        if message.body_bytes > 0 {
            self.body(message)?;
        }
        for hole in &message.holes {
            let length = hole.length.map_or("an unknown number of".into(), |length| length.to_string());
            let cause = hole.cause.name();
            writeln!(
                self.out,
                "{arrow}   [{length} bytes of the body are missing at byte {}: {cause}]",
                hole.offset
            )?;
        }
        if !message.is_complete {
            writeln!(self.out, "{arrow}   [the message is not complete]")?;
        }
        if redacted {
            writeln!(self.out, "{arrow}   [credentials left out: --with-credentials shows them]")?;
        }
        writeln!(self.out)
    }

    fn body(&mut self, message: &Message) -> io::Result<()> {
        let arrow = arrow(message.side);
        let begin = &message.body[..message.body.len().min(BODY_SHOWN_MAX)];
        let is_text = match std::str::from_utf8(begin) {
            Ok(text) => !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')),
            Err(error) => error.error_len().is_none() && error.valid_up_to() + 4 > begin.len(),
        };
        let bytes = shown_bytes(message.body_bytes);
        let digest = digest_of(message).map_or(String::new(), |digest| format!(", SHA-256 {}", hex(digest)));
        writeln!(self.out, "{arrow}   [body of {bytes}{digest}]")?;
        if !is_text {
            return Ok(());
        }
        for line in escaped(begin, true).lines() {
            writeln!(self.out, "{arrow}   | {line}")?;
        }
        if message.body_bytes > begin.len() as u64 {
            writeln!(self.out, "{arrow}   | … ({} more bytes)", message.body_bytes - begin.len() as u64)?;
        }
        Ok(())
    }

    fn report(&mut self, report: &Report, outcome: Outcome) -> io::Result<()> {
        let tls = &report.tls;
        let number = |number: Option<u16>| number.map_or("-".into(), |number| format!("{number:#06x}"));
        let resumed = match tls.is_resumed {
            Some(true) => ", resumed",
            _ => "",
        };
        writeln!(self.out, "tls      version {}, suite {}{resumed}", number(tls.version), number(tls.suite))?;
        writeln!(
            self.out,
            "packets  {}; {} retransmissions, {} captured twice, {} fragments",
            report.packets, report.repeats, report.captured_twice, report.fragments.fragments
        )?;
        let broken = report.fragments.incomplete + report.fragments.contradicting;
        if broken > 0 {
            writeln!(self.out, "         {broken} fragmented packets could not be put together")?;
        }
        for side in Side::ALL {
            let part = &report.sides[side as usize];
            let counts = part.counts;
            writeln!(
                self.out,
                "{:<8} {} in {} records, key generation {}",
                side.name(),
                shown_bytes(counts.bytes),
                part.records,
                part.generation
            )?;
            for hole in &part.holes {
                let had = if hole.is_acknowledged { "; the receiver had them" } else { "" };
                writeln!(
                    self.out,
                    "         hole: {} bytes at byte {}, {} to {}: {}{had}",
                    hole.length,
                    hole.offset,
                    when::shown_short(hole.from_ns),
                    when::shown_short(hole.to_ns),
                    hole.cause.name()
                )?;
            }
            for place in &part.ambiguous {
                let had =
                    if place.is_acknowledged { "; the receiver had acknowledged the first" } else { "" };
                writeln!(
                    self.out,
                    "         ambiguous: {} bytes at byte {}: kept {}, other {}{had}",
                    place.length,
                    place.offset,
                    hex(&place.kept),
                    hex(&place.other)
                )?;
            }
            let omitted = part.holes_omitted + counts.ambiguous_omitted;
            if omitted > 0 {
                writeln!(self.out, "         {omitted} more holes and ambiguous places")?;
            }
        }
        if outcome == Outcome::Memory {
            writeln!(self.out, "memory   full: the rest of the session is left out; raise --memory")?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }
}

impl<W: Write> Sink for TextSink<'_, W> {
    fn on_event(&mut self, _: usize, event: Event) -> Result<bool, Failure> {
        let result = match event {
            Event::Message(mut message) => {
                let redacted = self.redaction.apply(&mut message);
                self.message(&message, redacted)
            }
            Event::Data { side, time_ns, bytes } => {
                let (arrow, time) = (arrow(side), when::shown_short(time_ns));
                writeln!(self.out, "{arrow} {time}  {} of data\n", shown_bytes(bytes.len() as u64))
            }
            Event::Hole { side, length, cause } => {
                let length = length.map_or("an unknown number of".into(), |length| length.to_string());
                writeln!(self.out, "{} [{length} bytes are missing: {}]\n", arrow(side), cause.name())
            }
            Event::Note { side, time_ns, note } => {
                let (arrow, time) = (arrow(side), when::shown_short(time_ns));
                writeln!(self.out, "{arrow} {time}  [{}]\n", note_text(&note))
            }
        };
        result.map(|()| false).map_err(closed)
    }

    fn on_end(&mut self, _: usize, report: &Report, outcome: Outcome) -> Result<(), Failure> {
        self.is_whole = outcome == Outcome::Whole;
        self.report(report, outcome).map_err(closed)
    }
}

fn arrow(side: Side) -> char {
    match side {
        Side::Client => '>',
        Side::Server => '<',
    }
}

fn note_text(note: &Note) -> String {
    match note {
        Note::HelloRetry => "the server asked for another ClientHello".into(),
        Note::KeyUpdate(generation) => format!("KeyUpdate to generation {generation}"),
        Note::Alert(level, description) => format!("alert {description}, level {level}"),
        Note::Closed => "close_notify".into(),
        Note::Renegotiation => "a renegotiation begins; it is not followed".into(),
        Note::EarlyData(records) => {
            format!("{records} records of early data, which no disclosed secret opens")
        }
        Note::DecryptionEnds(reason) => format!("decryption ends: {reason}"),
        Note::OtherCopyUsed { offset, length } => {
            format!("the other copy of {length} ambiguous bytes at byte {offset} is authentic")
        }
        Note::NotHttp(reason) => format!("no HTTP/1.1 from here on: {reason}"),
        Note::MessagesLost(reason) => format!("the place within messages is lost: {reason}"),
    }
}

/// Bytes as text on which a terminal does not act.
fn escaped(bytes: &[u8], has_lines: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '\n' if has_lines => out.push('\n'),
            '\t' => out.push('\t'),
            '\r' if has_lines => {}
            c => push_shown(&mut out, c),
        }
    }
    out
}
