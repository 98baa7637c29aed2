//! The switch: this program's own daemon as a child, with one listener in front of the terminators.

use super::BLIND;
use super::child::{Folder, Server, free_addresses};
use super::cost_model::Costs;
use anyhow::{Context, Result};
use evergate_balance::Policy;
use evergate_base::Protocol;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Protocol of the listener: it passes TLS on without terminating it.
pub(super) const PROTOCOL: Protocol = Protocol::Passthrough;

/// Name of runs in which each client has its server.
pub(super) const PINNED: &str = "pinned";

/// How the switch chooses a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dispatch {
    /// One listener, and a pool of all servers with this policy.
    Policy(Policy),
    /// A listener for each server: clients choose, as a perfect dispatcher would.
    Pinned,
}

impl Dispatch {
    /// Name in a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Dispatch::Policy(policy) => policy.as_str(),
            Dispatch::Pinned => PINNED,
        }
    }
}

/// Running switch.
pub(super) struct Switch {
    process: Server,
    /// One address for each listener.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Switch {
    /// Starts `program` (this one) in front of servers. `costs`: of the terminators, if they are known.
    pub(super) fn start(
        program: &Path,
        folder: &Folder,
        dispatch: Dispatch,
        servers: &[SocketAddr],
        costs: Option<Costs>,
    ) -> Result<Switch> {
        let listeners = match dispatch {
            Dispatch::Policy(_) => 1,
            Dispatch::Pinned => servers.len(),
        };
        let addresses = free_addresses(listeners)?;
        let last = *addresses.last().context("no server")?;
        let text = configuration(dispatch, &addresses, servers, costs, &folder.path("admin.sock"));
        let path = folder.write("evergate.toml", &text)?;
        let mut command = Command::new(program);
        command.arg("run").arg(path);
        let process = Server::start(&mut command, folder.path("evergate.log"), last)?;
        Ok(Switch { process, addresses })
    }

    pub(super) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }
}

fn configuration(
    dispatch: Dispatch,
    listeners: &[SocketAddr],
    servers: &[SocketAddr],
    costs: Option<Costs>,
    socket: &Path,
) -> String {
    let mut text =
        format!("[logs]\naccess = \"off\"\n[admin]\nsocket = {:?}\n", socket.display().to_string());
    let chunk = servers.len() / listeners.len().max(1);
    for (index, (listener, servers)) in listeners.iter().zip(servers.chunks(chunk.max(1))).enumerate() {
        text += &format!(
            "[[listeners]]\nname = \"in{index}\"\naddress = \"{listener}\"\nprotocol = \"{}\"\n\
             pool = \"pool{index}\"\n",
            PROTOCOL.as_str()
        );
        text += &pool(index, dispatch, servers, costs);
    }
    text
}

fn pool(index: usize, dispatch: Dispatch, servers: &[SocketAddr], costs: Option<Costs>) -> String {
    let policy = match dispatch {
        Dispatch::Policy(policy) => policy,
        Dispatch::Pinned => BLIND,
    };
    let whole = |us: f64| us.clamp(1.0, 60_000_000.0) as u64;
    let mut text = format!("[[pools]]\nname = \"pool{index}\"\npolicy = \"{}\"\n", policy.as_str());
    for server in servers {
        text += &format!("[[pools.servers]]\naddress = \"{server}\"\n");
    }
    if policy.is_by_session() {
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
    fn policies_have_valid_configurations() {
        let servers = free_addresses(3).unwrap();
        let costs = Some(Costs { full_us: 2500.4, resumed_us: 0.3 });
        for policy in [Policy::RoundRobin, Policy::SessionOnly, Policy::BoundedHash, Policy::Sslsard] {
            for costs in [None, costs] {
                let dispatch = Dispatch::Policy(policy);
                let text = configuration(
                    dispatch,
                    &servers[..1],
                    &servers[1..],
                    costs,
                    Path::new("/tmp/x y/admin.sock"),
                );
                let loaded = evergate_config::parse(&text, "evergate.toml", Path::new("/tmp"));
                assert!(loaded.is_ok(), "{policy:?}: {:?}\n{text}", loaded.err());
            }
        }
    }

    #[test]
    fn pinned_clients_have_a_listener_for_each_server() {
        let addresses = free_addresses(6).unwrap();
        let text = configuration(
            Dispatch::Pinned,
            &addresses[..3],
            &addresses[3..],
            None,
            Path::new("/tmp/admin.sock"),
        );
        let loaded = evergate_config::parse(&text, "evergate.toml", Path::new("/tmp"));
        assert!(loaded.is_ok(), "{:?}\n{text}", loaded.err());
        assert_eq!(
            (text.matches("[[listeners]]").count(), text.matches("[[pools.servers]]").count()),
            (3, 3)
        );
    }
}
