//! The new process's side of an upgrade.

use super::{Hello, Link, Message, Offer, Offered, OperatorState};
use crate::worker::{LinuxListener, ListenerSocket};
use anyhow::{Context, Result, bail};
use evergate_config::Config;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest pause of the old process.
const PATIENCE: Duration = Duration::from_secs(60);

/// The old process.
#[derive(Debug)]
pub struct Predecessor {
    link: Link,
}

/// Everything that came before the connections.
#[derive(Debug)]
pub struct Inheritance {
    predecessor: Predecessor,
    /// The old process's offer.
    pub offer: Offer,
    /// Listening sockets, by worker.
    pub listeners: Vec<Vec<ListenerSocket>>,
    /// Where listeners are bound, by name.
    pub bound: Vec<(String, SocketAddr)>,
    /// The socket of the admin API.
    pub admin: Option<(PathBuf, UnixListener)>,
    /// The socket of the metrics.
    pub metrics: Option<(SocketAddr, TcpListener)>,
    /// Streams of connections, by worker.
    pub streams: Vec<UnixStream>,
}

impl Predecessor {
    /// Sends `Hello` on standard input.
    pub fn connect() -> Result<Predecessor> {
        let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        stream.local_addr().context(
            "standard input is no socket of an evergate: --successor is for `evergate upgrade`, leave it out",
        )?;
        let mut predecessor = Predecessor { link: Link::new(stream) };
        predecessor.link.set_timeout(PATIENCE)?;
        predecessor.send(&Message::Hello(Hello::ours()))?;
        Ok(predecessor)
    }

    /// Reports why this process ends.
    pub fn fail(&mut self, why: &str) {
        let _ = self.send(&Message::Failed(why.to_owned())); // if the old process has ended, the log has it too
    }

    /// Accepts the offer, if this process runs under the same configuration.
    pub fn inherit(mut self, config: &Config) -> Result<Inheritance> {
        let outcome = self.take(config);
        match outcome {
            Ok((offer, descriptors)) => Inheritance::sort(self, offer, descriptors),
            Err(error) => {
                self.fail(&format!("{error:#}"));
                Err(error)
            }
        }
    }

    fn take(&mut self, config: &Config) -> Result<(Offer, Vec<OwnedFd>)> {
        let Message::Offer(offer) = self.receive()? else { bail!("the old process offers nothing") };
        let mut descriptors = Vec::new();
        while descriptors.len() < offer.sockets.len() {
            let frame = self.link.receive().context("the sockets of the old process do not arrive")?;
            if frame.lost > 0 {
                bail!(
                    "this process may not open as many files as the old one: raise the limit (LimitNOFILE=, ulimit -n)"
                );
            }
            if frame.descriptors.is_empty() {
                bail!("the old process does not send all of its sockets");
            }
            descriptors.extend(frame.descriptors);
        }
        let workers = config.node.worker_count().get();
        if offer.workers != workers {
            bail!(
                "this process would have {workers} workers, the running one has {has}, and each passes its \
                 connections to the one of its number: `workers = {has}` under `[node]` to upgrade, a restart to \
                 change it",
                has = offer.workers
            );
        }
        if offer.configuration != config.digest {
            bail!(
                "the configuration has changed since the running process read it, and requests under way keep to the \
                 one they began with: `evergate reload` first (a restart for what a reload refuses)"
            );
        }
        Ok((*offer, descriptors))
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let text = Zeroizing::new(serde_json::to_vec(message)?);
        self.link.send(&text, Vec::new()).context("the old process does not listen")
    }

    fn receive(&mut self) -> Result<Message> {
        let frame = self.link.receive().context("the old process sends nothing")?;
        serde_json::from_slice(&frame.bytes).context("the old process sends an unexpected message")
    }
}

impl Inheritance {
    fn sort(predecessor: Predecessor, offer: Offer, descriptors: Vec<OwnedFd>) -> Result<Inheritance> {
        let mut all = Inheritance {
            predecessor,
            listeners: (0..offer.workers).map(|_| Vec::new()).collect(),
            bound: Vec::new(),
            admin: None,
            metrics: None,
            streams: Vec::new(),
            offer,
        };
        for (what, socket) in all.offer.sockets.iter().zip(descriptors) {
            match what {
                Offered::Listener { name, worker, address } => {
                    let local = (!address.ip().is_unspecified()).then_some(*address);
                    let Some(of_worker) = all.listeners.get_mut(*worker) else { continue };
                    of_worker.push(ListenerSocket {
                        name: name.clone(),
                        socket: LinuxListener(socket),
                        local,
                    });
                    if !all.bound.iter().any(|(known, _)| known == name) {
                        all.bound.push((name.clone(), *address));
                    }
                }
                Offered::Admin(path) => all.admin = Some((path.clone(), UnixListener::from(socket))),
                Offered::Metrics(address) => all.metrics = Some((*address, TcpListener::from(socket))),
                Offered::Worker(_) => all.streams.push(UnixStream::from(socket)),
            }
        }
        if all.streams.len() != all.offer.workers {
            bail!("{} streams came for {} workers", all.streams.len(), all.offer.workers);
        }
        Ok(all)
    }

    /// Reports why this process ends.
    pub fn fail(&mut self, why: &str) {
        self.predecessor.fail(why);
    }

    /// Everything is set up: waits for the word. Afterwards this process serves.
    pub fn start_serving(mut self) -> Result<OperatorState> {
        self.predecessor.send(&Message::Ready)?;
        match self.predecessor.receive()? {
            Message::Go(changes) => Ok(changes),
            _ => bail!("the old process does not let this one serve"),
        }
    }
}
