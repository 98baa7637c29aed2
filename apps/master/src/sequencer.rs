//! The thread that owns the log: it takes what waits, checks it, appends it, makes it durable with one sync, and passes
//! the new head to the publisher.
//!
//! While the publisher waits for a signature, the sequencer continues. So the number of signatures does not limit the
//! number of statements.

mod revealers;

use crate::escrow::{Asked, Job};
use crate::log::Log;
use crate::metrics::{Metrics, count};
use crate::publisher::{Awaited, Pending, Publisher};
use crate::recorders::Outcome;
use crate::reply::Reply;
use evergate_evidence::disclosure::{Outcome as Disclosed, Refusal as Denial};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::Point;
use evergate_evidence::epochs::{EpochDestroyed, EpochKeys};
use evergate_evidence::merkle::Hash;
use evergate_evidence::statement::Statement;
use evergate_evidence::submission::{Hello, Refusal, RefusalCode, ToRecorder, Welcome};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Inputs that wait for the sequencer.
pub const INPUTS_MAX: usize = 4096;

/// Input of the sequencer.
pub enum Input {
    /// A Recorder begins.
    Hello {
        /// Its id.
        recorder: Hash,
        /// What it has.
        hello: Hello,
        /// Way back.
        reply: Reply,
    },
    /// A statement; its Recorder is the TLS peer.
    Statement {
        /// The statement.
        statement: Box<Statement>,
        /// Way back.
        reply: Reply,
        /// Time of arrival.
        arrived: Instant,
    },
    /// An event of a Recorder.
    Event {
        /// Number that the answer repeats.
        request: u64,
        /// The event.
        event: Event,
        /// Way back.
        reply: Reply,
        /// Time of arrival.
        arrived: Instant,
    },
    /// A request to open an outer layer.
    Disclose {
        /// Size of the last checkpoint that the Revealer has.
        seen: u64,
        /// The request's note.
        note: Vec<u8>,
        /// The envelope.
        envelope: Vec<u8>,
        /// Way back.
        asked: Asked,
    },
    /// Outcome that a Revealer reports.
    Report {
        /// The outcome.
        outcome: Disclosed,
        /// Way back.
        asked: Asked,
    },
    /// Outcome of a request that was logged and led to nothing.
    Failed {
        /// The outcome.
        outcome: Disclosed,
        /// The reason.
        refusal: Denial,
        /// Way back.
        asked: Asked,
    },
    /// A Revealer announces its key of an epoch.
    Announce {
        /// The epoch.
        epoch: u64,
        /// The Revealer's key.
        inner: Point,
        /// Way back.
        asked: Asked,
    },
    /// Keys of an epoch: both private ones exist.
    EpochKeys {
        /// The keys.
        keys: EpochKeys,
        /// Way back.
        asked: Asked,
    },
    /// A Revealer asks for the destruction of an epoch's keys.
    Destroy {
        /// The epoch.
        epoch: u64,
        /// Order of the approvers; empty without one.
        order: Vec<u8>,
        /// Way back.
        asked: Asked,
    },
    /// Both private keys of an epoch are destroyed.
    EpochDestroyed {
        /// The keys.
        keys: EpochDestroyed,
        /// Way back.
        asked: Asked,
    },
    /// An event of the Master itself.
    Internal(Event),
    /// End of the program.
    Stop,
}

/// The sequencer.
pub struct Sequencer {
    log: Log,
    origin: String,
    vkey: String,
    publisher: Arc<Publisher>,
    metrics: Arc<Metrics>,
    /// Answers that wait until the entries before them are durable.
    answers: Vec<(Reply, ToRecorder)>,
    pending: Vec<Pending>,
    now_ms: u64,
    escrow: Option<SyncSender<Job>>,
    /// Shortest time between two requests of Revealers in ms.
    pause_ms: u64,
    /// Time of the last request of a Revealer in ms since 1970.
    asked_ms: u64,
    /// Whether the keys of epochs changed since they were published.
    has_new_epochs: bool,
}

/// Wall clock in ms since 1970.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

impl Sequencer {
    /// Sequencer of a log.
    pub fn new(
        log: Log,
        vkey: &evergate_evidence::note::VerifyingKey,
        publisher: Arc<Publisher>,
        metrics: Arc<Metrics>,
        escrow: Option<SyncSender<Job>>,
        pause_ms: u64,
    ) -> Sequencer {
        Sequencer {
            log,
            origin: vkey.name().into(),
            vkey: vkey.to_vkey(),
            publisher,
            metrics,
            answers: Vec::new(),
            pending: Vec::new(),
            now_ms: 0,
            escrow,
            pause_ms,
            asked_ms: 0,
            has_new_epochs: true,
        }
    }

    /// Runs until [`Input::Stop`]. An error means that the log cannot be written: the program must end.
    pub fn run(mut self, inputs: &Receiver<Input>) -> std::io::Result<()> {
        while let Ok(first) = inputs.recv() {
            self.read_clock();
            let size = self.log.size();
            let mut is_last = self.handle(first);
            while !is_last && self.log.room() > 0 && self.pending.len() < INPUTS_MAX {
                match inputs.try_recv() {
                    Ok(input) => is_last = self.handle(input),
                    Err(_) => break,
                }
            }
            let head = if self.log.size() > size { Some(self.log.flush()?) } else { None };
            self.metrics.entries.fetch_add(self.log.size() - size, std::sync::atomic::Ordering::Relaxed);
            if head.is_some() && std::mem::take(&mut self.has_new_epochs) && self.escrow.is_some() {
                self.publisher.push_epochs(self.log.disclosures().epoch_file(self.now_ms));
            }
            self.publisher.push(head, std::mem::take(&mut self.pending));
            for (reply, answer) in self.answers.drain(..) {
                // A Recorder that is gone needs no answer.
                reply.send(answer);
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn read_clock(&mut self) {
        let now = wall_ms();
        self.now_ms = self.log.stamp(now);
        if self.now_ms > now + 1000 {
            if self.metrics.clock_steps.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                eprintln!(
                    "evergate-master: the clock went back by {} ms: entries keep the last time; set the clock",
                    self.now_ms - now
                );
            }
            count(&self.metrics.clock_steps);
        }
    }

    /// Handles one input; answers whether it is the last.
    fn handle(&mut self, input: Input) -> bool {
        match input {
            Input::Hello { recorder, hello, reply } => {
                let answer = match self.welcome(&recorder, &hello) {
                    Ok(welcome) => ToRecorder::Welcome(welcome),
                    Err(refusal) => ToRecorder::Refused(refusal),
                };
                self.answers.push((reply, answer));
            }
            Input::Statement { statement, reply, arrived } => {
                self.handle_statement(*statement, reply, arrived)
            }
            Input::Event { request, event, reply, arrived } => {
                let received_ms = self.now_ms;
                let index = self.log.append(&Entry::Event(received_ms, event));
                self.pending.push(Pending {
                    index,
                    received_ms,
                    number: request,
                    answer: Awaited::Event,
                    arrived,
                    reply,
                });
            }
            Input::Internal(event) => {
                self.log.append(&Entry::Event(self.now_ms, event));
            }
            Input::Stop => return true,
            other => self.handle_revealer(other),
        }
        false
    }

    fn handle_statement(&mut self, statement: Statement, reply: Reply, arrived: Instant) {
        let number = statement.batch;
        let (index, received_ms) = match self.log.recorders().check(&statement) {
            Ok(Outcome::Next) => {
                let logged = Statement { received_ms: self.now_ms, ..statement };
                (self.log.append(&Entry::Statement(logged)), self.now_ms)
            }
            Ok(Outcome::Logged(logged)) => (logged.index, logged.received_ms),
            Err(refusal) => {
                self.answers.push((reply, ToRecorder::Refused(refusal)));
                return;
            }
        };
        self.pending.push(Pending { index, received_ms, number, answer: Awaited::Batch, arrived, reply });
    }

    fn welcome(&self, recorder: &Hash, hello: &Hello) -> Result<Welcome, Refusal> {
        let refuse = |code, text| Err(Refusal { code, text });
        if !hello.origin.is_empty() && hello.origin != self.origin {
            let text =
                format!("this is log '{}', the Recorder's store belongs to '{}'", self.origin, hello.origin);
            return refuse(RefusalCode::OtherLog, text);
        }
        let chain = self.log.recorders().chain(recorder);
        let last_batch = chain.map_or(0, |chain| chain.end.batch);
        if hello.acknowledged > last_batch {
            let text = format!(
                "the log has {last_batch} batches of this Recorder, its receipts reach {}: an older copy of the log",
                hello.acknowledged
            );
            return refuse(RefusalCode::LogIsOlder, text);
        }
        Ok(Welcome {
            origin: self.origin.clone(),
            vkey: self.vkey.clone(),
            last_batch,
            last_hash: chain.map_or([0; 32], |chain| chain.end.link),
            last_log_index: chain.map_or(0, |chain| chain.last_index),
        })
    }
}
