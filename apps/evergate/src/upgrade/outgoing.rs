//! The old process's side: starting the new one.

use super::{Hello, Link, Message, Offer, OperatorState, SUCCESSOR_FLAG};
use evergate_sys::DESCRIPTORS_MAX;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Longest pause of the new process on its way to being ready: it may have host names to resolve.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process that has closed its end may take to end.
const ENDING: Duration = Duration::from_secs(2);

/// Why there is no new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: String,
    /// The remedy.
    pub remedy: String,
}

/// Start of a new process.
#[derive(Debug)]
pub struct Order {
    /// The program; by default the one that this process was started as, looked up again.
    pub binary: Option<PathBuf>,
    /// The offer that it gets.
    pub offer: Offer,
    /// The descriptors that the offer names.
    pub descriptors: Vec<OwnedFd>,
    /// Ends the process for callers that do not wait.
    pub leash: Leash,
}

/// The new process before its release, once it exists.
#[derive(Clone, Debug, Default)]
pub struct Leash(Arc<Mutex<OutgoingState>>);

#[derive(Debug, Default)]
struct OutgoingState {
    child: Option<Child>,
    is_over: bool,
}

impl Leash {
    /// Ends it. One that is not there yet will not be.
    pub fn end(&self) {
        let mut held = self.state();
        held.is_over = true;
        if let Some(child) = &mut held.child {
            let _ = child.kill(); // a process that cannot be killed has ended
        }
    }

    fn start(&self, command: &mut Command) -> io::Result<u32> {
        let mut held = self.state();
        if held.is_over {
            return Err(io::Error::other("this process ends"));
        }
        let child = held.child.insert(command.spawn()?);
        Ok(child.id())
    }

    fn wait(&self) {
        if let Some(child) = &mut self.state().child {
            let _ = child.wait();
        }
    }

    /// How it has ended, if it has.
    fn ended(&self) -> Option<ExitStatus> {
        self.state().child.as_mut()?.try_wait().ok().flatten()
    }

    fn state(&self) -> MutexGuard<'_, OutgoingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new process that is ready, and waits for the word. Ended when it is dropped before.
#[derive(Debug)]
pub struct Successor {
    leash: Leash,
    pid: u32,
    link: Link,
    version: String,
    released: bool,
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.released {
            // It serves no client yet.
            self.leash.end();
            self.leash.wait();
        }
    }
}

impl Successor {
    /// Starts the program and waits until it is ready. Blocks for as long as that takes.
    pub fn start(order: Order) -> Result<Successor, Failure> {
        let Order { binary, offer, descriptors, leash } = order;
        let mut arguments = std::env::args_os();
        let own = arguments.next().map(PathBuf::from).unwrap_or_default();
        let binary = binary.unwrap_or(own);
        let arguments: Vec<OsString> = arguments.filter(|argument| argument != SUCCESSOR_FLAG).collect();
        let unable = |what: &str, error: io::Error| Failure {
            error: format!("{what} {}: {error}", binary.display()),
            remedy: "name the new program with --binary".to_owned(),
        };
        let (ours, theirs) = UnixStream::pair().map_err(|error| unable("cannot make a socket for", error))?;
        let mut command = Command::new(&binary);
        command.args(arguments).arg(SUCCESSOR_FLAG).stdin(Stdio::from(OwnedFd::from(theirs)));
        let pid = leash.start(&mut command).map_err(|error| unable("cannot start", error))?;
        drop(command); // with this process's copy of the other end
        let mut new =
            Successor { leash, pid, link: Link::new(ours), version: String::new(), released: false };
        let prepared = match new.prepare(&offer, descriptors) {
            // The new process may have sent its reason while a message was on its way to it.
            Err(Stop::Broke(error)) if is_gone(&error) => match new.receive() {
                Err(Stop::Sent(why)) => Err(Stop::Sent(why)),
                _ => Err(Stop::Broke(error)),
            },
            prepared => prepared,
        };
        match prepared {
            Ok(()) => Ok(new),
            Err(Stop::Sent(error)) => Err(Failure { error, remedy: "correct it and try again".to_owned() }),
            Err(Stop::Unlisted(hello)) => Err(version_mismatch(&binary, &hello)),
            Err(Stop::Broke(error)) => Err(new.broke(&binary, &error)),
        }
    }

    fn prepare(&mut self, offer: &Offer, descriptors: Vec<OwnedFd>) -> Result<(), Stop> {
        self.link.set_timeout(PATIENCE)?;
        let Message::Hello(hello) = self.receive()? else { return Err(Stop::unexpected()) };
        let ours = Hello::ours();
        if (hello.upgrade, hello.upgrade_state) != (ours.upgrade, ours.upgrade_state) {
            return Err(Stop::Unlisted(hello));
        }
        self.version = hello.version;
        self.send(&Message::Offer(Box::new(offer.clone())))?;
        let mut left = descriptors.into_iter();
        loop {
            let some: Vec<_> = left.by_ref().take(DESCRIPTORS_MAX).collect();
            if some.is_empty() {
                break;
            }
            self.link.send(&[], some)?;
        }
        match self.receive()? {
            Message::Ready => Ok(()),
            _ => Err(Stop::unexpected()),
        }
    }

    fn send(&mut self, message: &Message) -> io::Result<()> {
        let text = Zeroizing::new(serde_json::to_vec(message)?);
        self.link.send(&text, Vec::new())
    }

    fn receive(&mut self) -> Result<Message, Stop> {
        let frame = self.link.receive()?;
        match serde_json::from_slice(&frame.bytes).map_err(io::Error::from)? {
            // As a line of its own it has this prefix; here it is part of another line.
            Message::Failed(why) => Err(Stop::Sent(why.strip_prefix("error: ").unwrap_or(&why).to_owned())),
            message => Ok(message),
        }
    }

    /// Sends the release: from now on the new process serves.
    pub fn go(&mut self, changes: OperatorState) -> io::Result<()> {
        self.send(&Message::Go(changes))?;
        self.released = true;
        Ok(())
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.leash.ended()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The failure, with the most exact cause of why the new process is not ready.
    fn broke(&mut self, binary: &std::path::Path, error: &io::Error) -> Failure {
        let name = binary.display();
        let until = Instant::now() + ENDING;
        let mut status = None;
        while error.kind() != io::ErrorKind::TimedOut && status.is_none() && Instant::now() < until {
            status = self.leash.ended();
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = match (status, error.kind()) {
            (Some(status), _) => format!("{name} ended before it was ready ({status})"),
            (None, io::ErrorKind::TimedOut) => {
                format!("{name} was not ready within {} s and was ended", PATIENCE.as_secs())
            }
            (None, _) => format!("{name} sends an unexpected message: {error}"),
        };
        Failure {
            error,
            remedy: "see its messages on standard error, where this process's messages go".to_owned(),
        }
    }
}

/// Whether the other end of the link is closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn version_mismatch(binary: &std::path::Path, hello: &Hello) -> Failure {
    let ours = Hello::ours();
    Failure {
        error: format!(
            "{} is evergate {} and accepts connections of version {}.{}; this process, evergate {}, passes version \
             {}.{}",
            binary.display(),
            hello.version,
            hello.upgrade,
            hello.upgrade_state,
            ours.version,
            ours.upgrade,
            ours.upgrade_state,
        ),
        remedy: "drain this node and start the new program instead".to_owned(),
    }
}

/// Why the new process does not continue.
enum Stop {
    /// In the new process's words.
    Sent(String),
    /// Other versions.
    Unlisted(Hello),
    Broke(io::Error),
}

impl Stop {
    fn unexpected() -> Stop {
        Stop::Broke(io::Error::other("another message was expected"))
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Broke(error)
    }
}
