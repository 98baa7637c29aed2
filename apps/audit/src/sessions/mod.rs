//! Sessions of stores, bundles and captures: which connections they are, their packets in order, and their plaintext.
//!
//! A session is one connection by both ends and the random of its ClientHello. Its packets may lie in several stores:
//! of Recorders that share the traffic, of nodes that served it in turn, or twice. They are merged by their time.

mod binding;
mod catalog;
mod json;
mod packets;
mod playback;
mod redact;
mod secrets;

pub use binding::RecordedSessions;
pub(crate) use catalog::{Catalog, Selected};
pub(crate) use json::{digest_of, event_json, hex_of, holes_json, session_json};
pub(crate) use playback::{Outcome, Playback, Sink};
pub(crate) use redact::Redaction;
pub(crate) use secrets::{GrantArgs, SecretFile};

use crate::cli::Failure;
use crate::find::{Query, QueryArgs};
use crate::when;
use std::path::PathBuf;

/// Options that `play` and `export` share.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// Stores, bundles, or pcap and pcapng files
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// TLS key log (RFC 9850) with the secrets; the secrets in a pcapng file are used as well
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    #[command(flatten)]
    grants: GrantArgs,
    /// Show Authorization, Cookie, Set-Cookie and passwords of forms as they are
    #[arg(long)]
    pub(crate) with_credentials: bool,
    /// Bound of memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..))]
    memory: u32,
    #[command(flatten)]
    query: QueryArgs,
}

impl SessionArgs {
    /// Sources and the sessions in them that meet the conditions, at most `limit`, and whether there are more.
    pub(crate) fn select(&self, limit: usize) -> Result<(Catalog, Vec<Selected>, bool), Failure> {
        let wrong = |error: String| Failure::wrong(format!("sessions: {error}"));
        let selection = self.query.selection(when::now_ns()).map_err(wrong)?;
        let query = Query::of(&selection).map_err(wrong)?;
        let mut catalog = Catalog::open(&self.sources)?;
        let query = self.narrowed(query)?;
        let mut sessions = catalog.select(&query, limit.saturating_add(1))?;
        let has_more = sessions.len() > limit;
        sessions.truncate(limit);
        Ok((catalog, sessions, has_more))
    }

    /// Secrets of the file and of the grants, and those in the sources.
    pub(crate) fn secrets(&self) -> Result<SecretFile, Failure> {
        let grants = self.grants.open()?;
        if let Some(path) = grants.without_credentials.filter(|_| self.with_credentials) {
            return Err(Failure::wrong(format!(
                "secrets: the request of {} does not permit credentials; leave --with-credentials out",
                path.display()
            )));
        }
        SecretFile::load(self.secrets.as_deref(), grants.log, &self.sources)
    }

    /// The query, for the session of the only grant unless it names another.
    fn narrowed(&self, query: Query) -> Result<Query, Failure> {
        match &self.grants.open()?.log.client_randoms()[..] {
            [random] if query.client_random.is_none() => {
                Ok(Query { client_random: Some(random.to_vec()), ..query })
            }
            _ => Ok(query),
        }
    }

    /// Bound of memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        (self.memory as usize) << 20
    }

    /// What is left out of messages.
    pub(crate) fn redaction(&self) -> Redaction {
        Redaction { is_on: !self.with_credentials }
    }
}
