//! `evergate-audit play`: shows what was in sessions, for people or as JSON.
//!
//! Memory: `--memory`. Output is written as it becomes certain.

mod text;

use crate::cli::Failure;
use crate::output::{closed, print_json};
use crate::sessions::{
    Outcome, Playback, Redaction, Selected, SessionArgs, Sink, event_json, hex_of, session_json,
};
use evergate_player::{Event, Report};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Arguments of `play`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sessions: SessionArgs,
    /// Most sessions to play, the earliest first
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let secrets = args.sessions.secrets()?;
    let (mut catalog, sessions, has_more) = args.sessions.select(args.limit as usize)?;
    if sessions.is_empty() {
        eprintln!("play: no connection meets the conditions");
        return Ok(ExitCode::SUCCESS);
    }
    let mut failed = false;
    // One after the other: people read whole sessions.
    for number in 0..sessions.len() {
        let selected = &sessions[number..=number];
        let names = catalog.names();
        let mut playback = Playback {
            catalog: &mut catalog,
            sessions: selected,
            secrets: &secrets,
            memory: args.sessions.memory_bytes(),
            label: "play",
        };
        let redaction = args.sessions.redaction();
        if args.json {
            let mut sink = JsonSink { session: &selected[0], names, redaction, is_whole: true };
            playback.run(&mut sink)?;
            failed |= !sink.is_whole;
        } else {
            let out = BufWriter::new(std::io::stdout().lock());
            let mut sink = text::TextSink::new(&selected[0], names, redaction, out);
            sink.begin().map_err(closed)?;
            playback.run(&mut sink)?;
            failed |= !sink.is_whole;
        }
    }
    if has_more {
        eprintln!("play: there are more; narrow the conditions, or raise --limit");
    }
    std::io::stdout().flush().map_err(closed)?;
    Ok(if failed { ExitCode::from(crate::cli::FAILED) } else { ExitCode::SUCCESS })
}

struct JsonSink<'a> {
    session: &'a Selected,
    names: Vec<String>,
    redaction: Redaction,
    is_whole: bool,
}

impl Sink for JsonSink<'_> {
    fn on_event(&mut self, _: usize, mut event: Event) -> Result<bool, Failure> {
        let redacted = match &mut event {
            Event::Message(message) => self.redaction.apply(message),
            _ => false,
        };
        let mut value = event_json(&event);
        if let Some(object) = value.as_object_mut() {
            object.insert("session".into(), hex_of(self.session.client_random).into());
            if redacted {
                object.insert("redacted".into(), true.into());
            }
        }
        print_json(&value)?;
        Ok(redacted)
    }

    fn on_end(&mut self, _: usize, report: &Report, outcome: Outcome) -> Result<(), Failure> {
        self.is_whole = outcome == Outcome::Whole;
        print_json(&session_json(self.session, &self.names, report, outcome))
    }
}
