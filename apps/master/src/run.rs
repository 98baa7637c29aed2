//! The running Master: opens everything, starts the threads, waits for the end.

use crate::checkpoint_file::CheckpointFile;
use crate::config::{Config, EscrowConfig, SignerConfig};
use crate::escrow::{Escrow, JOBS_MAX};
use crate::log::{Log, Opened};
use crate::metrics::Metrics;
use crate::problem::{Problem, file_problem};
use crate::publisher::{Publisher, Publishing};
use crate::sequencer::{INPUTS_MAX, Input, Sequencer, wall_ms};
use crate::server::{self, Peer, Server};
use crate::signer::Signer;
use crate::status::Running;
use crate::timestamping::Timestamping;
use crate::witness::Witness;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::disclosure::Policy;
use evergate_evidence::entry::{Enrolment, Event, MasterEvent};
use evergate_evidence::note::VerifyingKey;
use evergate_seal::{HsmPlace, KeyStore};
use evergate_submission::{Identity, Trust, server_config};
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that the end waits for signatures.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Runs the Master until SIGTERM or SIGINT. A problem means exit code 2, `Ok(false)` a failure while running.
pub fn run(config: &Config, signer_delay: Duration) -> Result<bool, Problem> {
    let is_stopping = stop_flag()?;
    let tls = tls(config)?;
    let signer = Signer::open(&config.signer, &config.origin, signer_delay)?;
    let vkey = signer.vkey().clone();
    let Opened { log, checkpoint, removed } = Log::open(&config.log, &vkey, wall_ms())?;
    if removed > 0 {
        eprintln!(
            "evergate-master: removed {removed} bytes of an entry that a crash cut; no receipt covers them"
        );
    }
    let first = first_events(config, &log, &vkey)?;
    let file = Arc::new(CheckpointFile::new(&config.log, checkpoint));
    let metrics = Arc::new(Metrics::default());
    let witnesses = witnesses(config, &log, &file)?;
    let listener = bind(config.listen, "listen")?;
    let metrics_listener = config.metrics.map(|address| bind(address, "metrics")).transpose()?;
    let mut running = Running { listen: address_text(&listener), vkey: vkey.to_vkey(), ..Running::default() };
    running.is_trial = signer.is_trial();
    announce(config, &log, &running);

    let tiles = log.tiles();
    let escrow_keys = config.escrow.as_ref().map(escrow_keys).transpose()?;
    let (jobs, asked) = mpsc::sync_channel(JOBS_MAX);
    let escrow = escrow_keys.is_some().then_some(jobs);
    let publisher = Arc::new(Publisher::default());
    let publishing = Publishing {
        signer,
        tiles: tiles.clone(),
        file: file.clone(),
        metrics: metrics.clone(),
        gather: Duration::ZERO,
        escrow: escrow.clone(),
        epochs: config.log.join("epochs"),
    };
    let (inputs, received) = mpsc::sync_channel(INPUTS_MAX);
    let pause_ms = config.limits.disclosure_ms;
    let sequencer = Sequencer::new(log, &vkey, publisher.clone(), metrics.clone(), escrow.clone(), pause_ms);
    if let Some(keys) = escrow_keys {
        let (file, inputs) = (file.clone(), inputs.clone());
        let escrow = Escrow { keys, file, tiles, is_witnessed: !config.witnesses.is_empty(), inputs };
        spawn("escrow", move || escrow.run(&asked));
    }
    let has_failed = Arc::new(AtomicBool::new(false));
    let sequencing = guarded("sequencer", &has_failed, move || {
        sequencer.run(&received).map_err(|error| format!("the log cannot be written: {error}"))
    });
    let publish = publisher.clone();
    let publishing = guarded("publisher", &has_failed, move || publish.run(publishing));
    for event in first {
        let _ = inputs.send(Input::Internal(event));
    }
    for witness in witnesses {
        let (file, metrics) = (file.clone(), metrics.clone());
        spawn("witness", move || witness.run(&file, &metrics));
    }
    start_timestamping(config, &inputs, &file, &metrics);
    if let Some(listener) = metrics_listener {
        let metrics = metrics.clone();
        spawn("metrics", move || evergate_metrics::serve(&listener, || metrics.page()));
    }
    let server = Arc::new(server(config, tls, inputs.clone(), metrics.clone()));
    spawn("accept", move || server::accept(&listener, &server));
    wait(&is_stopping, &has_failed, &mut running, &metrics, config);
    let _ = inputs.try_send(Input::Stop);
    finish(sequencing);
    publisher.stop();
    finish(publishing);
    Ok(!has_failed.load(Ordering::Relaxed))
}

/// Checks everything that a start checks but the log, which a running Master may have open.
pub fn check(config: &Config) -> Result<VerifyingKey, Problem> {
    tls(config)?;
    config.escrow.as_ref().map(escrow_keys).transpose()?;
    Ok(Signer::open(&config.signer, &config.origin, Duration::ZERO)?.vkey().clone())
}

fn stop_flag() -> Result<Arc<AtomicBool>, Problem> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|error| Problem::new("signals", error.to_string(), "report this"))?;
    }
    Ok(flag)
}

fn tls(config: &Config) -> Result<Arc<ServerConfig>, Problem> {
    let remedy = "give a certificate and its own key in PEM; `evergate-master init` makes a pair for trials";
    let identity = Identity::load(&config.certificate, &config.key)
        .map_err(|error| Problem::new("certificate", error.to_string(), remedy))?;
    server_config(&identity, &Trust::AnyKey)
        .map_err(|error| Problem::new("certificate", error.to_string(), remedy))
}

fn bind(address: SocketAddr, key: &str) -> Result<TcpListener, Problem> {
    TcpListener::bind(address).map_err(|error| {
        Problem::new(
            key,
            format!("cannot listen on {address}: {error}"),
            "use a free address of this machine",
        )
    })
}

fn address_text(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
}

/// Entries that every start appends: the Master's own, and what changed among the Recorders.
fn first_events(config: &Config, log: &Log, vkey: &VerifyingKey) -> Result<Vec<Event>, Problem> {
    let mut events = Vec::new();
    let mut previous = String::new();
    if let (0, Some(path)) = (log.size(), &config.continues) {
        let remedy = "give the file `checkpoint` of the log before";
        let bytes = std::fs::read(path).map_err(|error| file_problem(path, &error, remedy))?;
        let problem = |what: String| Problem::new(path.display().to_string(), what, remedy);
        let signed = SignedCheckpoint::parse(&bytes).map_err(|error| problem(error.to_string()))?;
        if signed.checkpoint().origin == config.origin {
            return Err(problem("the log before has the same origin: a new key needs a new origin".into()));
        }
        previous = String::from_utf8_lossy(&bytes).into_owned();
    }
    let is_key_change = !previous.is_empty();
    events.push(Event::Master(MasterEvent { is_key_change, vkey: vkey.to_vkey(), previous }));
    let known = log.recorders().enrolled();
    let enrolment = |is_enrolled, recorder, name| Event::Enrolment(Enrolment { is_enrolled, recorder, name });
    for recorder in config.recorders.iter().filter(|recorder| known.get(&recorder.id) != Some(&recorder.name))
    {
        events.push(enrolment(true, recorder.id, recorder.name.clone()));
    }
    for (id, name) in
        known.iter().filter(|(id, _)| config.recorders.iter().all(|recorder| recorder.id != **id))
    {
        events.push(enrolment(false, *id, name.clone()));
    }
    events.extend(new_policy(config, log)?.map(Event::Policy));
    Ok(events)
}

/// Note of the policy, if the log has another one. It must follow the one in force.
fn new_policy(config: &Config, log: &Log) -> Result<Option<String>, Problem> {
    let Some(path) = &config.policy else { return Ok(None) };
    let remedy = "give the note that `evergate-audit reveal policy` made and the approvers signed";
    let bytes = std::fs::read(path).map_err(|error| file_problem(path, &error, remedy))?;
    let known = log.disclosures().policy();
    if known.is_some_and(|(_, note)| note.as_bytes() == bytes) {
        return Ok(None);
    }
    let opened = Policy::open(&bytes, known.map(|(policy, _)| policy), &EvidenceVerifier);
    opened.map_err(|error| Problem::new(path.display().to_string(), error.to_string(), remedy))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn escrow_keys(config: &EscrowConfig) -> Result<KeyStore, Problem> {
    let opened = match config {
        EscrowConfig::File { keys } => {
            eprintln!(
                "evergate-master: the escrow keys are in the file {}: a trial, a copy opens as well; use an HSM",
                keys.display()
            );
            KeyStore::open_file(keys)
        }
        EscrowConfig::Pkcs11 { module, token, pin_file } => KeyStore::open_hsm(HsmPlace {
            module: module.clone(),
            token: token.clone(),
            pin_file: pin_file.clone(),
            purpose: "escrow".into(),
        }),
    };
    opened.map_err(|error| Problem::new("escrow", error.to_string(), "correct [escrow]"))
}

fn witnesses(config: &Config, log: &Log, file: &CheckpointFile) -> Result<Vec<Witness>, Problem> {
    let limit = Duration::from_secs(config.limits.http_s);
    let mut witnesses = Vec::new();
    for witness in &config.witnesses {
        let Some(mut witness) = Witness::new(witness, &log.tiles(), limit) else { continue };
        witness.check_start(file)?;
        witnesses.push(witness);
    }
    Ok(witnesses)
}

fn announce(config: &Config, log: &Log, running: &Running) {
    if let SignerConfig::File { key } = &config.signer {
        eprintln!(
            "evergate-master: the signing key is in the file {}: a trial, and `verify` reports it; use an HSM",
            key.display()
        );
    }
    if config.recorders.is_empty() {
        eprintln!(
            "evergate-master: no Recorder is enrolled: all are refused; add [[recorder]] with name and id"
        );
    }
    let Running { listen, vkey, .. } = running;
    eprintln!(
        "evergate-master: listening on {listen}: log {} with {} entries, key {vkey}",
        config.origin,
        log.size()
    );
}

fn server(
    config: &Config,
    tls: Arc<ServerConfig>,
    inputs: SyncSender<Input>,
    metrics: Arc<Metrics>,
) -> Server {
    let mut enrolled = BTreeMap::new();
    for (peers, is_revealer) in [(&config.recorders, false), (&config.revealers, true)] {
        enrolled.extend(peers.iter().map(|peer| (peer.id, Peer { name: peer.name.clone(), is_revealer })));
    }
    Server {
        tls,
        enrolled,
        inputs,
        metrics,
        recorders_max: config.limits.recorders,
        peer_limit: Duration::from_secs(config.limits.peer_s),
        live: Mutex::new(Vec::new()),
        threads: AtomicUsize::new(0),
        logged_s: AtomicU64::new(0),
    }
}

fn start_timestamping(
    config: &Config,
    inputs: &SyncSender<Input>,
    file: &Arc<CheckpointFile>,
    metrics: &Arc<Metrics>,
) {
    let Some(tsa) = &config.tsa else { return };
    let timestamping = Timestamping {
        config: tsa.clone(),
        folder: config.log.clone(),
        file: file.clone(),
        inputs: inputs.clone(),
        metrics: metrics.clone(),
        limit: Duration::from_secs(config.limits.http_s),
    };
    spawn("timestamps", move || timestamping.run());
}

/// Thread that ends with the process.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        eprintln!("evergate-master: cannot start the thread {name}: {error}; continuing without it");
    }
}

/// Thread whose failure ends the process.
fn guarded(
    name: &'static str,
    has_failed: &Arc<AtomicBool>,
    body: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> JoinHandle<()> {
    let has_failed = has_failed.clone();
    std::thread::spawn(move || {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        if let Err(error) = ended.unwrap_or_else(|_| Err("internal error".into())) {
            eprintln!("evergate-master: {name}: {error}; stopping, Recorders keep their batches");
            has_failed.store(true, Ordering::Relaxed);
        }
    })
}

fn wait(
    is_stopping: &AtomicBool,
    has_failed: &AtomicBool,
    running: &mut Running,
    metrics: &Metrics,
    config: &Config,
) {
    for round in 0_u64.. {
        if is_stopping.load(Ordering::Relaxed) || has_failed.load(Ordering::Relaxed) {
            return;
        }
        if round % 10 == 0 {
            running.update(metrics, wall_ms());
            // The status is no evidence: a full disk shows itself elsewhere.
            let _ = running.write(&config.log);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn finish(thread: JoinHandle<()>) {
    let begin = std::time::Instant::now();
    while !thread.is_finished() && begin.elapsed() < STOP_LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
}
