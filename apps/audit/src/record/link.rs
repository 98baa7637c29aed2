//! Link to the Master: hands statements in, and stores the receipts.
//!
//! Capture never waits for it. A statement is read from the chain on disk: a Master that was away for a week costs no
//! memory. Bound: 64 statements without an answer on a connection.

use crate::index::{IndexWriter, ProofPlace};
use crate::outbox::{self, Pending};
use crate::record::digest::Unanswered;
use crate::record::receipts::Receipts;
use crate::record::rows::{BatchRows, HeldRows};
use crate::store::Store;
use crate::test_points::{Step, reached};
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::statement::{STATEMENT_BYTES, Statement};
use evergate_evidence::submission::{Hello, RefusalCode, UNANSWERED_MAX};
use evergate_submission::{Answer, ClientError, Identity, RecorderReceiver, RecorderSender, Trust, connect};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const STEP_LIMIT: Duration = Duration::from_secs(10);
const RECEIVE_LIMIT: Duration = Duration::from_millis(200);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Time for which the Master may take this Recorder for a second one at the first contact: it may not know yet that the
/// connection of a killed Recorder ended.
const OCCUPIED_LIMIT: Duration = Duration::from_secs(10);
/// Time after the Recorder's stop in which the last statements are handed in.
const LAST_LIMIT: Duration = Duration::from_secs(10);

const OUTBOX_PERIOD: Duration = Duration::from_secs(1);
/// Most entries of the outbox without an answer.
const EVENTS_MAX: usize = 16;

/// Where the Master is, and how the Recorder knows it.
#[derive(Clone, Debug)]
pub(crate) struct Master {
    /// `HOST:PORT`.
    pub(crate) address: String,
    pub(crate) trust: Trust,
}

/// Shared state of the link.
#[derive(Debug)]
pub(crate) struct Link {
    store: Store,
    master: Option<Master>,
    unanswered: Unanswered,
    state: Mutex<State>,
    rows: Mutex<HeldRows>,
    changed: Condvar,
    is_connected: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// Last batch whose statement is on disk.
    durable: u64,
    /// Last batch with a receipt.
    acknowledged: u64,
    /// Last batch sent on this connection.
    sent: u64,
    /// First records of segments.
    segments: BTreeMap<u64, u64>,
    /// Entries of the outbox that were sent on this connection, by the number of their request.
    events: BTreeMap<u64, SentEvent>,
    phase: Phase,
}

impl State {
    /// Whether the Recorder has stopped, and every statement has its receipt or the time is over.
    fn is_finished(&self) -> bool {
        match self.phase {
            Phase::Recording => false,
            Phase::Last(until) => self.acknowledged == self.durable || Instant::now() >= until,
        }
    }
}

/// An entry of the outbox without an answer.
#[derive(Clone, Debug)]
struct SentEvent {
    name: String,
    event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Recording,
    /// The Recorder has stopped; the last statements are handed in until this time.
    Last(Instant),
}

impl Link {
    /// A link whose store has these batches, and these first records of segments.
    pub(crate) fn new(
        store: Store,
        master: Option<Master>,
        unanswered: Unanswered,
        durable: u64,
        acknowledged: u64,
        segments: BTreeMap<u64, u64>,
        index: IndexWriter,
    ) -> Link {
        if master.is_some() {
            unanswered.store(durable.saturating_sub(acknowledged), Ordering::Relaxed);
        }
        let state = State {
            durable,
            acknowledged,
            sent: acknowledged,
            segments,
            events: BTreeMap::new(),
            phase: Phase::Recording,
        };
        let rows = Mutex::new(HeldRows::new(index, master.is_some()));
        let (state, changed, is_connected) = (Mutex::new(state), Condvar::new(), AtomicBool::new(false));
        Link { store, master, unanswered, state, rows, changed, is_connected }
    }

    /// Whether the Recorder has a Master.
    pub(crate) fn has_master(&self) -> bool {
        self.master.is_some()
    }

    /// Whether the Master has accepted this Recorder and the connection stands.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Rows that the index lacks until it catches up.
    pub(crate) fn index_rows_lost(&self) -> u64 {
        self.rows().lost()
    }

    /// Takes a statement that is on disk.
    pub(crate) fn on_durable(&self, statement: &Statement, segment: u64, rows: BatchRows) {
        self.rows().on_durable(statement, rows);
        let mut state = self.state();
        state.durable = statement.batch;
        if state.segments.last_key_value().is_none_or(|(_, last)| *last < segment) {
            state.segments.insert(statement.span.first_seq, segment);
        }
        if self.master.is_none() {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        self.changed.notify_all();
    }

    /// Lets [`Link::run`] end as soon as every statement has a receipt, or after [`LAST_LIMIT`].
    pub(crate) fn stop(&self) {
        self.state().phase = Phase::Last(Instant::now() + LAST_LIMIT);
        self.changed.notify_all();
    }

    /// Last batch on disk, and last batch with a receipt.
    pub(crate) fn batches(&self) -> (u64, u64) {
        let state = self.state();
        (state.durable, state.acknowledged)
    }

    fn rows(&self) -> MutexGuard<'_, HeldRows> {
        self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Connects and hands in until the Recorder stops. An error ends the Recorder: its store or its identity is wrong,
    /// and the records could never be handed in. What the Master's operator can correct ends nothing.
    pub(crate) fn run(&self, identity: &Identity) -> Result<(), String> {
        let Some(master) = &self.master else { return Ok(()) };
        let (mut delay, mut warned, mut was_connected) = (RETRY_FIRST, false, false);
        let mut occupied_since: Option<Instant> = None;
        while !self.is_finished() {
            match self.connect(master, identity) {
                Ok(session) => {
                    if warned {
                        eprintln!("evergate-audit: master: connected to {} again", master.address);
                    }
                    (delay, warned, was_connected) = (RETRY_FIRST, false, true);
                    self.is_connected.store(true, Ordering::Relaxed);
                    let served = self.serve(session);
                    self.is_connected.store(false, Ordering::Relaxed);
                    if let Err(error) = served {
                        eprintln!(
                            "evergate-audit: master: lost the connection to {}: {error}; trying again",
                            master.address
                        );
                        warned = true;
                    }
                }
                Err(LinkError::Foreign(error)) if !was_connected => return Err(error),
                Err(LinkError::SecondConnection(error))
                    if !was_connected
                        && occupied_since.get_or_insert_with(Instant::now).elapsed() >= OCCUPIED_LIMIT =>
                {
                    return Err(error);
                }
                Err(
                    LinkError::Foreign(error) | LinkError::Away(error) | LinkError::SecondConnection(error),
                ) => {
                    if !std::mem::replace(&mut warned, true) {
                        eprintln!(
                            "evergate-audit: master: {error}{}; capture continues, statements wait on disk, trying \
                             again",
                            remedy(&error)
                        );
                    }
                }
            }
            self.pause(delay);
            delay = (delay * 2).min(RETRY_MAX);
        }
        Ok(())
    }

    fn pause(&self, delay: Duration) {
        let state = self.state();
        if matches!(state.phase, Phase::Recording) {
            let _ = self
                .changed
                .wait_timeout_while(state, delay, |state| matches!(state.phase, Phase::Recording));
        } else {
            drop(state);
            std::thread::sleep(delay.min(RETRY_FIRST));
        }
    }

    fn is_finished(&self) -> bool {
        self.state().is_finished()
    }

    fn connect(&self, master: &Master, identity: &Identity) -> Result<Session, LinkError> {
        let info = self.store.info().ok().flatten();
        let origin = info.as_ref().map_or(String::new(), |info| info.installation.clone());
        let (last_batch, acknowledged) = self.batches();
        let hello = Hello { last_batch, acknowledged, origin: origin.clone() };
        let connected = connect(&master.address, identity, &master.trust, hello, STEP_LIMIT);
        let connected = connected.map_err(|error| LinkError::of(&error, &master.address))?;
        let welcome = &connected.welcome;
        if !origin.is_empty() && origin != welcome.origin {
            return Err(LinkError::Foreign(format!(
                "master: {} keeps the log {:?}, and this store belongs to {origin:?}; give the right --master, or \
                 record into a new folder",
                master.address, welcome.origin
            )));
        }
        if welcome.last_batch > last_batch {
            return Err(LinkError::Foreign(format!(
                "master: {} has batch {} of this Recorder, and the store ends at batch {last_batch}: the store is an \
                 older copy; restore the newest one, or record into a new folder with a new identity",
                master.address, welcome.last_batch
            )));
        }
        let key = VerifyingKey::parse(&welcome.vkey)
            .map_err(|error| LinkError::Away(format!("{} has no valid key: {error}", master.address)))?;
        self.pin(&welcome.vkey)?;
        if let Some(info) = info.filter(|info| info.installation.is_empty()) {
            let info = crate::store::StoreInfo { installation: welcome.origin.clone(), ..info };
            self.store
                .set_info(&info)
                .map_err(|error| LinkError::Away(format!("cannot write store.json: {error}")))?;
        }
        let mut state = self.state();
        state.sent = acknowledged;
        state.events.clear();
        drop(state);
        Ok(Session { sender: connected.sender, receiver: connected.receiver, key })
    }

    /// Keeps the key of the first contact; another key is an error.
    fn pin(&self, vkey: &str) -> Result<(), LinkError> {
        let path = self.store.root().join("recorder.vkey");
        match std::fs::read_to_string(&path) {
            Ok(kept) if kept.trim_end() == vkey => Ok(()),
            Ok(_) => Err(LinkError::Away(format!(
                "its log has another key than the one in {}; if the operator changed it, move that file away",
                path.display()
            ))),
            Err(_) => self
                .store
                .replace("recorder.vkey", format!("{vkey}\n").as_bytes())
                .map_err(|error| LinkError::Away(format!("cannot write {}: {error}", path.display()))),
        }
    }

    /// Sends and receives until the connection ends or the Recorder has stopped.
    fn serve(&self, session: Session) -> Result<(), String> {
        let Session { sender, receiver, key } = session;
        std::thread::scope(|scope| {
            let closer = sender.clone();
            let receiving = scope.spawn(move || {
                let result = self.receive(receiver, &key);
                closer.close();
                self.changed.notify_all();
                result
            });
            let sending = self.send(&sender, || receiving.is_finished());
            sender.close();
            let received =
                receiving.join().unwrap_or_else(|_| Err("the receiver's thread panicked".to_owned()));
            if self.is_finished() { Ok(()) } else { received.and(sending) }
        })
    }

    fn send(&self, sender: &RecorderSender, is_over: impl Fn() -> bool) -> Result<(), String> {
        let chain = File::open(self.store.statements()).map_err(|error| error.to_string())?;
        let mut looked: Option<Instant> = None;
        loop {
            if looked.is_none_or(|looked| looked.elapsed() >= OUTBOX_PERIOD) {
                looked = Some(Instant::now());
                self.send_outbox(sender)?;
            }
            let mut state = self.state();
            let next = loop {
                if is_over() || state.is_finished() {
                    return Ok(());
                }
                if state.sent < state.durable
                    && state.sent - state.acknowledged < (UNANSWERED_MAX - EVENTS_MAX) as u64
                {
                    break Some(state.sent + 1);
                }
                if looked.is_some_and(|looked| looked.elapsed() >= OUTBOX_PERIOD) {
                    break None;
                }
                let waited = self.changed.wait_timeout(state, RECEIVE_LIMIT);
                state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            };
            let Some(next) = next else { continue };
            state.sent = next;
            drop(state);
            let statement = read_statement(&chain, next).map_err(|error| error.to_string())?;
            sender.send_statement(&statement).map_err(|error| error.to_string())?;
        }
    }

    /// Sends the deletions and holds that other commands left.
    fn send_outbox(&self, sender: &RecorderSender) -> Result<(), String> {
        let pending =
            outbox::pending(&self.store).map_err(|error| format!("cannot read the outbox: {error}"))?;
        for Pending { name, entry } in pending.into_iter().take(EVENTS_MAX) {
            let Ok(Entry::Event(_, event)) = Entry::decode(&entry) else {
                eprintln!("evergate-audit: outbox: {name} is no entry of a log; move it away");
                continue;
            };
            let mut state = self.state();
            if state.events.len() >= EVENTS_MAX || state.events.values().any(|sent| sent.name == name) {
                continue;
            }
            let request = state.events.last_key_value().map_or(1, |(last, _)| last + 1);
            state.events.insert(request, SentEvent { name, event: event.clone() });
            drop(state);
            sender.send_event(request, &event).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn on_event_answer(&self, answer: &Answer, key: &VerifyingKey) -> Result<(), String> {
        let sent = self.state().events.remove(&answer.number);
        let SentEvent { name, event } =
            sent.ok_or_else(|| format!("answer to event {}, which was not sent", answer.number))?;
        let (entry, _) = answer.check_event(&event, key).map_err(|error| error.to_string())?;
        outbox::acknowledge(&self.store, &name, &entry.encode(), &answer.proof)
            .map_err(|error| format!("cannot store the receipt of {name}: {error}"))
    }

    fn receive(&self, mut receiver: RecorderReceiver, key: &VerifyingKey) -> Result<(), String> {
        let chain = File::open(self.store.statements()).map_err(|error| error.to_string())?;
        let mut receipts = Receipts::default();
        let mut checkpoint = NewestCheckpoint::default();
        loop {
            let answer = receiver.receive(RECEIVE_LIMIT).map_err(|error| error.to_string())?;
            let Some(answer) = answer else {
                if self.is_finished() {
                    return Ok(());
                }
                continue;
            };
            self.on_answer(&answer, &chain, key, &mut receipts, &mut checkpoint)?;
        }
    }

    fn on_answer(
        &self,
        answer: &Answer,
        chain: &File,
        key: &VerifyingKey,
        receipts: &mut Receipts,
        checkpoint: &mut NewestCheckpoint,
    ) -> Result<(), String> {
        if answer.is_event {
            return self.on_event_answer(answer, key);
        }
        let batch = answer.number;
        if batch != self.state().acknowledged + 1 {
            return Err(format!("answer to batch {batch}, which was not the next"));
        }
        let sent = read_statement(chain, batch).map_err(|error| error.to_string())?;
        let (logged, receipt) = answer.check_statement(&sent, key).map_err(|error| error.to_string())?;
        let segment = self
            .state()
            .segments
            .range(..=sent.span.first_seq)
            .next_back()
            .map_or(1, |(_, segment)| *segment);
        let written = checkpoint.write(&self.store, &receipt.checkpoint);
        written.map_err(|error| format!("cannot write {}: {error}", self.store.checkpoint().display()))?;
        reached(Step::CheckpointStored);
        let stored = receipts.append(&self.store, segment, &logged, &answer.proof);
        let place = stored.map_err(|error| format!("cannot store the receipt of batch {batch}: {error}"))?;
        let (offset, end) = (place.start, place.end);
        reached(Step::ReceiptStored);
        self.rows().on_receipt(batch, ProofPlace { log_index: receipt.index, segment, offset, end });
        self.state().acknowledged = batch;
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        self.changed.notify_all();
        Ok(())
    }
}

/// A connection after WELCOME.
struct Session {
    sender: RecorderSender,
    receiver: RecorderReceiver,
    key: VerifyingKey,
}

enum LinkError {
    /// The Master does not answer, or refuses for now.
    Away(String),
    /// The store belongs to another Master or is an older copy: what it records cannot be handed in.
    Foreign(String),
    /// Another Recorder has this identity, or the Master has not noticed yet that the last connection ended.
    SecondConnection(String),
}

impl LinkError {
    fn of(error: &ClientError, address: &str) -> LinkError {
        use RefusalCode::{Differs, OtherLog, SecondConnection, Sequence};
        match error {
            ClientError::Refused(refusal) => match refusal.code {
                OtherLog => LinkError::Foreign(format!(
                    "master: {address}: {refusal}; give the right --master, or record into a new folder"
                )),
                Sequence | Differs => LinkError::Foreign(format!(
                    "master: {address}: {refusal}; restore the newest copy of the store, or record into a new folder \
                     with a new identity"
                )),
                SecondConnection => LinkError::SecondConnection(format!(
                    "master: {address}: {refusal}; stop the other Recorder, or record into a new folder with a new \
                     identity"
                )),
                // The Master's operator can remove these: a statement that waits is not lost.
                _ => LinkError::Away(format!("{address}: {refusal}")),
            },
            _ => LinkError::Away(error.to_string()),
        }
    }
}

/// What to do about errors of TLS, whose texts do not name our options.
fn remedy(error: &str) -> &'static str {
    if error.contains("UnknownIssuer") || error.contains("BadEncoding") {
        ": the Master has another certificate than --master-id or --master-ca names; correct the option"
    } else {
        ""
    }
}

/// Newest checkpoint of the log. It is on disk before the first receipt that has it, so the store never has a receipt
/// beyond its checkpoint.
#[derive(Default)]
struct NewestCheckpoint {
    size: u64,
}

impl NewestCheckpoint {
    fn write(&mut self, store: &Store, checkpoint: &SignedCheckpoint) -> io::Result<()> {
        let size = checkpoint.checkpoint().size;
        if size == self.size {
            return Ok(());
        }
        // Without a wait for the disk: after a power failure the Master gives the receipts again.
        let temporary = store.root().join("checkpoint.new");
        std::fs::write(&temporary, checkpoint.to_bytes())?;
        std::fs::rename(&temporary, store.checkpoint())?;
        self.size = size;
        Ok(())
    }
}

fn read_statement(chain: &File, batch: u64) -> io::Result<Statement> {
    let mut bytes = [0; STATEMENT_BYTES];
    chain.read_exact_at(&mut bytes, (batch - 1) * STATEMENT_BYTES as u64)?;
    Statement::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
