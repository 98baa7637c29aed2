//! The access log's line in a state: pools, servers and rules by name.

use crate::{RequestLog, Snapshot};
use evergate_base::Micros;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The access log's line as far as it is known.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Log {
    id: String,
    request: u32,
    given_id: Option<String>,
    method: String,
    host: String,
    target: String,
    pub(super) status: u16,
    rule: Option<u64>,
    pool: Option<String>,
    server: Option<String>,
    retries: u32,
    pub(super) started: u64,
    pub(super) first_byte: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    audit: bool,
    class: Option<String>,
    user_agent: Option<String>,
    referer: Option<String>,
}

impl Log {
    /// The line for another process.
    pub(super) fn of(log: &RequestLog) -> Log {
        let snapshot = log.snapshot.as_deref();
        let pool = log.pool.and_then(|pool| snapshot?.pools.get(pool as usize));
        let server = log.server.and_then(|server| pool?.servers.get(server as usize));
        Log {
            id: log.id.clone(),
            request: log.request,
            given_id: log.given_id.clone(),
            method: log.method.clone(),
            host: log.host.clone(),
            target: log.target.clone(),
            status: log.status,
            rule: log.rule.and_then(|rule| Some(snapshot?.rules.mark(rule))),
            pool: pool.map(|pool| pool.name.clone()),
            server: server.map(|server| server.name.clone()),
            retries: log.retries,
            started: log.started.0,
            first_byte: log.first_byte.0,
            bytes_in: log.bytes_in,
            bytes_out: log.bytes_out,
            audit: log.audit,
            class: log.class.clone(),
            user_agent: log.user_agent.clone(),
            referer: log.referer.clone(),
        }
    }

    /// The line, of what the configuration still has.
    pub(super) fn into_line(self, snapshot: &Arc<Snapshot>) -> RequestLog {
        let pool = self.pool.and_then(|name| snapshot.pools.iter().position(|pool| pool.name == name));
        let server = self.server.and_then(|name| {
            let servers = &snapshot.pools.get(pool?)?.servers;
            servers.iter().position(|server| server.name == name)
        });
        RequestLog {
            id: self.id,
            request: self.request,
            given_id: self.given_id,
            client: None, // of the exchange, which has it
            method: self.method,
            host: self.host,
            target: self.target,
            status: self.status,
            reason: "",
            detail: String::new(),
            rule: self.rule.and_then(|mark| snapshot.rules.marked(mark)),
            snapshot: Some(snapshot.clone()),
            pool: pool.map(|pool| pool as u32),
            server: server.map(|server| server as u32),
            retries: self.retries,
            started: Micros(self.started),
            first_byte: Micros(self.first_byte),
            total: Micros(0),
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            audit: self.audit,
            class: self.class,
            user_agent: self.user_agent,
            referer: self.referer,
            continued: false, // connections of clusters travel otherwise
        }
    }
}
