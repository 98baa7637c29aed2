//! The nodes: processes of this very program, each in its namespace.

use super::admin::{ClusterStatus, Status, get};
use super::network::{ADDRESS, SERVERS, SOURCE, WITNESS, inside, outside};
use anyhow::{Context, Result};
use evergate_netns::Namespace;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Port of the cluster.
pub(super) const PORT: u16 = 443;
/// Port of the servers.
pub(super) const SERVER_PORT: u16 = 8080;
/// Host name of the certificate.
pub(super) const SITE: &str = "shop.test";

/// The configuration file of the nodes, the same for all.
const CONFIG: &str = "cluster.toml";

/// Writes the files that all nodes share into the folder; returns the certificate, for the clients to trust.
pub(super) fn prepare(folder: &Path, nodes: usize) -> Result<String> {
    let (certificate, key) = evergate_crypto::self_signed(&[SITE.to_owned(), ADDRESS.to_string()])?;
    let files = [
        ("cluster.key", fresh_key()),
        ("site.pem", certificate.clone()),
        ("site.key", key),
        (CONFIG, config(nodes)),
    ];
    for (name, text) in files {
        write(&folder.join(name), &text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(certificate)
}

/// A random cluster key as its file holds it: 64 hexadecimal digits and a line end.
fn fresh_key() -> String {
    let bytes: [u8; 32] = evergate_crypto::random_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect()
}

/// Writes a new file that only root may read.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn config(nodes: usize) -> String {
    let entry = |number: usize| {
        let host = number as u8; // a handful
        format!(
            "\n[[cluster.nodes]]\nnumber = {number}\ninside = \"{}\"\noutside = \"{}\"\n",
            inside(host),
            outside(host)
        )
    };
    let server = |(name, address): &(&str, _)| {
        format!("\n[[pools.servers]]\nname = \"{name}\"\naddress = \"{address}:{SERVER_PORT}\"\n")
    };
    let nodes: String = (1..=nodes).map(entry).collect();
    let servers: String = SERVERS.iter().map(server).collect();
    format!(
        r#"# The nodes of `evergate demo cluster`; each starts with its own --node N.
[node]
workers = 1

[logs]
access = "off"

[cluster]
name = "demo"
key_file = "cluster.key"
addresses = ["{ADDRESS}"]
server_source = ["{SOURCE}"]
inside_interface = "in"
outside_interface = "out"
witness = ["{WITNESS}"]
timing = "virtual_machine"
flows_max = 4096
{nodes}
[[listeners]]
name = "shop"
address = "{ADDRESS}:{PORT}"
protocol = "https"
certificates = ["site"]
pool = "web"

[[certificates]]
name = "site"
chain = "site.pem"
key = "site.key"

[[pools]]
name = "web"
policy = "round_robin"
{servers}"#
    )
}

/// One node.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) number: u8,
    /// Its admin socket.
    pub(super) socket: PathBuf,
    log: PathBuf,
    process: Option<Child>,
}

impl Node {
    /// A node that does not run yet.
    pub(super) fn new(name: &str, number: u8, folder: &Path) -> Node {
        let (socket, log) = (folder.join(format!("{name}.sock")), folder.join(format!("{name}.log")));
        Node { name: name.to_owned(), number, socket, log, process: None }
    }

    /// Starts it in its namespace.
    pub(super) fn start(&mut self, namespace: &Namespace) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(program);
        command.arg("run").arg(self.log.with_file_name(CONFIG));
        command.args(["--node", &self.number.to_string(), "--socket"]).arg(&self.socket);
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // Ctrl-C is for the show, which then ends the nodes.
        command.process_group(0);
        evergate_sys::end_with_parent(&mut command);
        let child = namespace.run(move || command.spawn()).context("cannot start a node")?;
        self.process = Some(child);
        Ok(())
    }

    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Fails if the process has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        let ended = self.process.as_mut().map(Child::try_wait).transpose()?.flatten();
        match ended {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended by itself: {status}", self.name),
        }
    }

    /// Kills the process, without a chance to send LEAVE.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(super) fn cluster(&self) -> Result<ClusterStatus> {
        get(&self.socket, "/v1/cluster")
    }

    /// Client connections that it has open.
    pub(super) fn open(&self) -> Result<u64> {
        Ok(get::<Status>(&self.socket, "/v1/status")?.connections.open)
    }

    /// The last lines of its log.
    pub(super) fn last_lines(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
