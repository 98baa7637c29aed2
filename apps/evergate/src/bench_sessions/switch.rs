//! The switch: this program's own daemon as a child, with one listener in front of the terminators.

use super::child::{Folder, Server, free_addresses};
use super::cost_model::Costs;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Protocol of the listener: it passes TLS on without terminating it.
pub(super) const PROTOCOL: &str = "tcp";

/// Policies that distribute by session; other policies have no `[pools.sessions]`.
const BY_SESSION: [&str; 5] = ["session_only", "sticky_least_outstanding", "lard", "bounded_hash", "sslsard"];

/// Policies that a pool may have here. Blind ones are first.
pub(super) const POLICIES: [&str; 9] = [
    "round_robin",
    "least_outstanding",
    "power_of_two",
    "least_expected_completion",
    "session_only",
    "sticky_least_outstanding",
    "lard",
    "bounded_hash",
    "sslsard",
];

/// Running switch.
pub(super) struct Switch(Server);

impl Switch {
    /// Starts `program` (this one) with a policy in front of servers. `costs`: of the terminators, if they are known.
    pub(super) fn start(
        program: &Path,
        folder: &Folder,
        policy: &str,
        servers: &[SocketAddr],
        costs: Option<Costs>,
    ) -> Result<Switch> {
        let address = free_addresses(1)?.into_iter().next().context("no free port")?;
        let socket = folder.path("admin.sock");
        let text = configuration(policy, address, servers, costs, &socket);
        let path = folder.write("evergate.toml", &text)?;
        let mut command = Command::new(program);
        command.arg("run").arg(path);
        Ok(Switch(Server::start(&mut command, folder.path("evergate.log"), address)?))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub(super) fn cpu(&self) -> Result<Duration> {
        self.0.cpu()
    }
}

fn configuration(
    policy: &str,
    address: SocketAddr,
    servers: &[SocketAddr],
    costs: Option<Costs>,
    socket: &Path,
) -> String {
    let whole = |us: f64| us.clamp(1.0, 60_000_000.0) as u64;
    let mut text = format!(
        "[logs]\naccess = \"off\"\n[admin]\nsocket = {:?}\n[[listeners]]\nname = \"in\"\naddress = \"{address}\"\n\
         protocol = \"{PROTOCOL}\"\npool = \"terminators\"\n[[pools]]\nname = \"terminators\"\npolicy = \"{policy}\"\n",
        socket.display().to_string()
    );
    for server in servers {
        text += &format!("[[pools.servers]]\naddress = \"{server}\"\n");
    }
    if BY_SESSION.contains(&policy) {
        text += "[pools.sessions]\nlifetime_s = 86400\n";
        if let Some(Costs { full_us, resumed_us }) = costs {
            text += &format!("full_us = {}\nresumed_us = {}\n", whole(full_us), whole(resumed_us));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_valid_configuration() {
        let servers = free_addresses(3).unwrap();
        let costs = Some(Costs { full_us: 2500.4, resumed_us: 0.3 });
        for policy in POLICIES {
            for costs in [None, costs] {
                let text =
                    configuration(policy, servers[0], &servers[1..], costs, Path::new("/tmp/x y/admin.sock"));
                let loaded = evergate_config::parse(&text, "evergate.toml", Path::new("/tmp"));
                assert!(loaded.is_ok(), "{policy}: {:?}\n{text}", loaded.err());
            }
        }
    }
}
