//! `reveal serve`: requests on a Unix socket, one after the other, and the keys of coming epochs.
//!
//! A client sends a length of 32 bits and the note. The answer is a byte (0 grant, 1 refusal), a length, and the grant
//! or a text. The socket's folder decides which users may ask; the policy decides what they get.

use super::args::RevealerArgs;
use super::revealer::Revealer;
use super::{failed, wrong};
use crate::cli::Failure;
use crate::when;
use clap::Args;
use evergate_evidence::disclosure::request::REQUEST_BYTES_MAX;
use evergate_evidence::envelope::epoch_of_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time for a client to send its request or to take the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for a client in nanoseconds, before a look at signals and at the time.
const WAIT_NS: i64 = 100_000_000;
/// Time between two announcements.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(600);
/// Hours ahead for which keys are announced: a day, and the hour that ends it.
const HOURS_AHEAD: u64 = 26;

/// Options of `reveal serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    revealer: RevealerArgs,
    /// Stores that have connections and envelopes
    #[arg(long, value_name = "DIR", required = true)]
    store: Vec<PathBuf>,
    /// The server's end differs between switch and record: an address is translated between both
    #[arg(long)]
    nat: bool,
    /// Unix socket for requests
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

/// Serves until SIGTERM or SIGINT.
pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let is_stopping = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, is_stopping.clone()).map_err(failed)?;
    }
    let mut revealer = Revealer::open(&args.revealer, &args.store, args.nat)?;
    let listener = listen(args)?;
    eprintln!("evergate-audit: reveal: serving on {}", args.socket.display());
    let mut announced: Option<Instant> = None;
    while !is_stopping.load(Ordering::Relaxed) {
        if announced.is_none_or(|time| time.elapsed() > ANNOUNCE_PERIOD) {
            announced = Some(Instant::now());
            if let Err(error) = announce(&mut revealer, epoch_of_ns(when::now_ns()), HOURS_AHEAD) {
                eprintln!("evergate-audit: {}; keys are announced again in 10 minutes", error.message);
            }
        }
        match listener.accept() {
            Ok((socket, _)) => {
                if let Err(error) = answer(&mut revealer, &socket) {
                    eprintln!("evergate-audit: reveal: a client's connection ended: {error}");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&listener),
            Err(error) => return Err(failed(format!("{}: {error}", args.socket.display()))),
        }
    }
    let _ = std::fs::remove_file(&args.socket);
    Ok(ExitCode::SUCCESS)
}

/// Makes and announces the keys of epochs, from `first` on.
pub(super) fn announce(revealer: &mut Revealer, first: u64, hours: u64) -> Result<(), Failure> {
    let mut master = revealer.connect()?;
    for epoch in first..first.saturating_add(hours) {
        let public = revealer.keys().create(epoch).map_err(failed)?;
        let announced = master.client.announce(epoch, &public, &master.log);
        announced.map_err(|error| failed(format!("epoch {epoch}: {error}")))?;
    }
    Ok(())
}

fn listen(args: &ServeArgs) -> Result<UnixListener, Failure> {
    let path = &args.socket;
    // The lock of the state shows that no other Revealer has it.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(wrong(format!("cannot replace {}: {error}", path.display())));
        }
        _ => {}
    }
    let listen = || {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|error: std::io::Error| wrong(format!("cannot listen on {}: {error}", path.display())))
}

/// Waits for a client. A signal ends the wait early.
fn wait(listener: &UnixListener) {
    let limit = Timespec { tv_sec: 0, tv_nsec: WAIT_NS };
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit));
}

fn answer(revealer: &mut Revealer, mut socket: &UnixStream) -> std::io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(CLIENT_LIMIT))?;
    socket.set_write_timeout(Some(CLIENT_LIMIT))?;
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > REQUEST_BYTES_MAX {
        return send(socket, 1, b"the request is too long");
    }
    let mut note = vec![0; len];
    socket.read_exact(&mut note)?;
    match revealer.reveal(&note) {
        Ok(granted) => {
            send(socket, 0, &granted.bytes)?;
            if let Err(error) = revealer.report(&granted) {
                eprintln!("evergate-audit: {}; the outcome is not in the log", error.message);
            }
            Ok(())
        }
        Err(failure) => send(socket, 1, failure.message.as_bytes()),
    }
}

fn send(mut socket: &UnixStream, kind: u8, bytes: &[u8]) -> std::io::Result<()> {
    let len = (bytes.len() as u32).to_be_bytes();
    socket.write_all(&[&[kind], &len[..], bytes].concat())
}
