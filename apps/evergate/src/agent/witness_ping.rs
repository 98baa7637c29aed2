//! Pings to the witnesses: a node without an answer may be on the isolated side of a partition.
//!
//! Bound: [`QUESTIONS_MAX`] pings are remembered; beyond it the oldest is forgotten, and its answer does not count.

use super::routes::Networks;
use evergate_base::Micros;
use evergate_membership::Path;
use evergate_sys::{Pinger, Pong};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

/// Bound on the remembered pings.
const QUESTIONS_MAX: usize = 512;
/// Pings to each witness within the span of a lease. The protocol needs three, and each waits for the next turn.
const QUESTIONS_PER_FENCE: u64 = 5;

struct Question {
    token: u64,
    to: IpAddr,
    asked_at: Micros,
}

/// One witness.
pub(crate) struct Witness {
    pub(crate) ip: IpAddr,
    /// The network of the route to it, once it is resolved.
    path: Arc<OnceLock<Path>>,
    pub(crate) answered_at: Option<Micros>,
    pub(crate) answers: u64,
}

impl Witness {
    pub(crate) fn path(&self) -> Option<Path> {
        self.path.get().copied()
    }
}

/// All witnesses.
pub(crate) struct Witnesses {
    pinger: Pinger,
    pub(crate) all: Vec<Witness>,
    questions: VecDeque<Question>,
    asked_at: Option<Micros>,
}

impl Witnesses {
    /// Opens the sockets. To be called in the agent's network namespace.
    pub(crate) fn new(addresses: &[IpAddr]) -> io::Result<Witnesses> {
        let witness = |ip: &IpAddr| Witness { ip: *ip, path: Arc::default(), answered_at: None, answers: 0 };
        Ok(Witnesses {
            pinger: Pinger::new()?,
            all: addresses.iter().map(witness).collect(),
            questions: VecDeque::new(),
            asked_at: None,
        })
    }

    /// The look-up of their networks, for another thread.
    pub(crate) fn routes(&self, networks: Networks) -> WitnessRoutes {
        let all = self.all.iter().map(|witness| (witness.ip, witness.path.clone()));
        WitnessRoutes { networks, witnesses: all.collect() }
    }

    /// Sockets of the address families that the witnesses have.
    pub(crate) fn fds(&self) -> Vec<RawFd> {
        self.families().map(|v6| self.pinger.fd(v6)).collect()
    }

    fn pong(&self) -> Option<Pong> {
        self.families().find_map(|v6| self.pinger.answer(v6))
    }

    fn families(&self) -> impl Iterator<Item = bool> {
        [false, true].into_iter().filter(|v6| self.all.iter().any(|witness| witness.ip.is_ipv6() == *v6))
    }

    /// Time between two pings while answers come, with leases that last for `fence`.
    pub(crate) fn steady(fence: Micros) -> Micros {
        Micros(fence.0 / QUESTIONS_PER_FENCE)
    }

    /// Pings every witness, unless the last pings are less than `gap` ago.
    pub(crate) fn ask(&mut self, now: Micros, gap: Micros) {
        if self.asked_at.is_some_and(|at| now.since(at) < gap) {
            return;
        }
        self.asked_at = Some(now);
        for witness in &self.all {
            let token = u64::from_le_bytes(evergate_crypto::random_bytes());
            if self.questions.len() >= QUESTIONS_MAX {
                self.questions.pop_front();
            }
            self.questions.push_back(Question { token, to: witness.ip, asked_at: now });
            // A ping that cannot be sent gets no answer, and only answers count.
            let _ = self.pinger.ask(witness.ip, token);
        }
    }

    /// Whether there are witnesses on a network, and none of them has answered for `span`.
    pub(crate) fn are_silent_on(&self, path: Path, now: Micros, span: Micros) -> bool {
        let there = || self.all.iter().filter(|witness| witness.path() == Some(path));
        let answers = |witness: &Witness| witness.answered_at.is_some_and(|at| now.since(at) < span);
        there().next().is_some() && !there().any(answers)
    }

    /// Whether an answer is outstanding.
    pub(crate) fn are_asked(&self) -> bool {
        !self.questions.is_empty()
    }

    /// When the ping was sent that the next answer belongs to.
    pub(crate) fn answer(&mut self, now: Micros) -> Option<Micros> {
        while let Some(pong) = self.pong() {
            let right = |question: &Question| question.token == pong.token && question.to == pong.from;
            let Some(at) = self.questions.iter().position(right) else { continue };
            let Some(question) = self.questions.remove(at) else { continue };
            // Older pings to the same witness add nothing.
            self.questions.retain(|other| other.to != question.to || other.asked_at > question.asked_at);
            if let Some(witness) = self.all.iter_mut().find(|witness| witness.ip == question.to) {
                witness.answered_at = Some(now);
                witness.answers += 1;
            }
            return Some(question.asked_at);
        }
        None
    }
}

/// Look-up of each witness's network by the kernel's routes. A resolved network stays: a route over the other network,
/// while this one is down, must not change it.
#[derive(Default)]
pub(crate) struct WitnessRoutes {
    networks: Networks,
    witnesses: Vec<(IpAddr, Arc<OnceLock<Path>>)>,
}

impl WitnessRoutes {
    /// Looks up the unresolved witnesses.
    pub(crate) fn resolve(&self) {
        for (ip, place) in self.witnesses.iter().filter(|(_, place)| place.get().is_none()) {
            if let Ok(Some(path)) = self.networks.to(*ip) {
                let _ = place.set(path); // only this thread sets it
            }
        }
    }
}
