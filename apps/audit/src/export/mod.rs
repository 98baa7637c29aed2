//! `evergate-audit export`: sessions as a file of another format.
//!
//! All sessions are read in one pass; memory: `--memory`, and exchanges whose response has not ended. The file appears
//! under its name when it is whole, and only its owner may read it.

mod har;
mod lines;
#[cfg(feature = "cold")]
mod parquet;
mod pcapng;

use crate::cli::Failure;
use crate::output::print_json;
use crate::sessions::{Outcome, Playback, SessionArgs, Sink};
use evergate_player::{Event, Report};
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sessions: SessionArgs,
    /// Format of the file
    #[arg(long, value_enum)]
    format: Format,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Most sessions to export, the earliest first
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=200_000))]
    limit: u64,
    /// The summary as JSON
    #[arg(long)]
    json: bool,
}

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Packets and their secrets, for Wireshark and tshark
    Pcapng,
    /// HTTP Archive 1.2
    Har,
    /// One message or session a line
    Json,
    /// One message a row (feature `cold`)
    Parquet,
}

/// Counts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
struct Summary {
    sessions: u64,
    messages: u64,
    holes: u64,
    ambiguous: u64,
    redacted: u64,
    /// Sessions without secrets.
    closed: u64,
    /// Sessions that memory cut.
    cut: u64,
}

/// Writer of a format.
trait Writer: Sink {
    /// Ends the file, which is not durable yet.
    fn finish(self: Box<Self>) -> Result<File, Failure>;
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.format == Format::Pcapng && !args.sessions.with_credentials {
        return Err(Failure::wrong(
            "export: pcapng has packets and their secrets, so no credential can be left out; add --with-credentials, \
             or choose another format",
        ));
    }
    let secrets = args.sessions.secrets()?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let (mut catalog, sessions, has_more) = args.sessions.select(limit)?;
    let temporary = temporary(&args.output);
    let file = create(&temporary)?;
    let names = catalog.names();
    let redaction = args.sessions.redaction();
    let mut writer: Box<dyn Writer> = match args.format {
        Format::Pcapng => {
            Box::new(pcapng::PcapngWriter::new(BufWriter::new(file), &sessions, &names, &secrets)?)
        }
        Format::Har => Box::new(har::HarWriter::new(BufWriter::new(file), &sessions, redaction)?),
        Format::Json => Box::new(lines::LineWriter::new(BufWriter::new(file), &sessions, names, redaction)),
        #[cfg(feature = "cold")]
        Format::Parquet => Box::new(parquet::ParquetWriter::new(file, &sessions, redaction)?),
        #[cfg(not(feature = "cold"))]
        Format::Parquet => {
            let _ = std::fs::remove_file(&temporary);
            return Err(Failure::wrong(
                "export: this program is built without the feature `cold`; use the package",
            ));
        }
    };
    let mut counter = Counter { inner: &mut *writer, summary: Summary::default() };
    let mut playback = Playback {
        catalog: &mut catalog,
        sessions: &sessions,
        secrets: &secrets,
        memory: args.sessions.memory_bytes(),
        label: "export",
    };
    let played = playback.run(&mut counter);
    let mut summary = counter.summary;
    let written = played.and_then(|()| writer.finish()).and_then(|file| put(&file, &temporary, &args.output));
    if let Err(failure) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(failure);
    }
    summary.sessions = sessions.len() as u64;
    report(args, &summary)?;
    if has_more {
        eprintln!("export: there are more; narrow the conditions, or raise --limit");
    }
    Ok(if summary.cut > 0 { ExitCode::from(crate::cli::FAILED) } else { ExitCode::SUCCESS })
}

fn report(args: &Args, summary: &Summary) -> Result<(), Failure> {
    let Summary { sessions, messages, holes, ambiguous, redacted, closed, cut } = *summary;
    if args.json {
        return print_json(summary);
    }
    eprintln!(
        "export: {sessions} sessions with {messages} messages in {}; {holes} holes, {ambiguous} ambiguous places, \
         {redacted} messages with credentials left out",
        args.output.display()
    );
    if closed > 0 {
        eprintln!("export: {closed} sessions have no secrets; give a key log with --secrets");
    }
    if cut > 0 {
        eprintln!("export: {cut} sessions were cut, as the memory was full; raise --memory");
    }
    Ok(())
}

/// Path of the file while it is written.
fn temporary(output: &Path) -> PathBuf {
    let mut path = output.as_os_str().to_owned();
    path.push(".new");
    path.into()
}

fn create(path: &Path) -> Result<File, Failure> {
    let _ = std::fs::remove_file(path); // the rest of an interrupted export
    let file = File::options().create_new(true).write(true).mode(0o600).open(path);
    file.map_err(|error| Failure::wrong(format!("export: cannot create {}: {error}", path.display())))
}

fn put(file: &File, from: &Path, to: &Path) -> Result<(), Failure> {
    let result = file.sync_all().and_then(|()| std::fs::rename(from, to));
    result.map_err(|error| unwritten(&error))
}

/// Failure of the file.
fn unwritten(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("export: cannot write the file: {error}"))
}

/// Counts what passes to a writer.
struct Counter<'a> {
    inner: &'a mut dyn Writer,
    summary: Summary,
}

impl Sink for Counter<'_> {
    fn on_packet(
        &mut self,
        session: usize,
        source: usize,
        time_ns: u64,
        wire_bytes: u32,
        frame: &[u8],
    ) -> Result<(), Failure> {
        self.inner.on_packet(session, source, time_ns, wire_bytes, frame)
    }

    fn on_event(&mut self, session: usize, event: Event) -> Result<bool, Failure> {
        self.summary.messages += u64::from(matches!(event, Event::Message(_)));
        let redacted = self.inner.on_event(session, event)?;
        self.summary.redacted += u64::from(redacted);
        Ok(redacted)
    }

    fn on_end(&mut self, session: usize, report: &Report, outcome: Outcome) -> Result<(), Failure> {
        let ambiguous =
            |side: &evergate_player::SideReport| side.ambiguous.len() as u64 + side.counts.ambiguous_omitted;
        self.summary.holes += report.holes();
        self.summary.ambiguous += report.sides.iter().map(ambiguous).sum::<u64>();
        self.summary.closed += u64::from(report.tls.client_random.is_some() && !report.tls.has_secrets);
        self.summary.cut += u64::from(outcome == Outcome::Memory);
        self.inner.on_end(session, report, outcome)
    }
}
