//! Client of the nodes' admin API, and the fields that the demonstration reads.
//!
//! The demonstration knows a node as any other program does: by its documented API, and by no type of the daemon.

use anyhow::{Context, Result, bail};
use evergate_http::{HeaderSlots, Limits, Parsed, parse_response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Limit of time for a node's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit of an answer's length.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// `GET /v1/status`
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    pub(super) connections: Connections,
}

/// Client connections of a node.
#[derive(Debug, Deserialize)]
pub(super) struct Connections {
    pub(super) open: u64,
}

/// `GET /v1/cluster`
#[derive(Debug, Deserialize)]
pub(super) struct ClusterStatus {
    pub(super) node: u8,
    pub(super) phase: String,
    pub(super) view: Option<View>,
    pub(super) buckets: Buckets,
    pub(super) failovers: Vec<Failover>,
    pub(super) counts: Counts,
}

/// The view in force at a node.
#[derive(Debug, Deserialize)]
pub(super) struct View {
    pub(super) members: Vec<u8>,
}

/// Numbers of buckets by their state at a node.
#[derive(Debug, Deserialize)]
pub(super) struct Buckets {
    pub(super) owned: u64,
    pub(super) syncing: u64,
    pub(super) without_backup: u64,
    pub(super) recovering: u64,
    pub(super) unowned: u64,
}

/// A failover at a node.
#[derive(Debug, Deserialize)]
pub(super) struct Failover {
    pub(super) running: bool,
}

/// Counters of a node.
#[derive(Debug, Deserialize)]
pub(super) struct Counts {
    pub(super) connections_continued: u64,
}

/// Answer of the node with this socket to `GET path`. Fails if it does not answer with status 200 in time.
pub(super) fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T> {
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("cannot reach a node at {}", socket.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: evergate\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).context("a node does not answer in time")?;
    let mut slots = HeaderSlots::new();
    match parse_response(&answer, &Limits::default(), &mut slots, false) {
        Ok(Parsed::Complete(head)) if head.status == 200 => {
            let body = answer.get(head.head_len..).unwrap_or_default();
            serde_json::from_slice(body).with_context(|| format!("cannot read a node's answer to {path}"))
        }
        Ok(Parsed::Complete(head)) => bail!("a node answers {path} with status {}", head.status),
        Ok(Parsed::Partial) => bail!("a node closed the connection without an answer"),
        Err(refusal) => bail!("a node's answer is not HTTP: {}", refusal.reason),
    }
}
