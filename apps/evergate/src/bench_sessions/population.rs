//! Simulated clients on a few threads: Table III's arrivals and think times, L5's reuse of sessions.
//!
//! A client that is due is served by the next free thread. Among several, one is chosen at random: the order of arrival
//! would repeat, and a round robin of the switch would then meet each client at the same server again.

use super::client::{Client, Served, Steps, Tls};
use anyhow::{Result, anyhow};
use evergate_base::SplitMix64;
use evergate_sslsard::{Visitor, Workload};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Newcomers per second before scaling: the middle of Table III's 40 to 80.
const NEWCOMERS_PER_S: f64 = 60.0;
/// Wait of a thread while no client is due.
const IDLE: Duration = Duration::from_micros(500);

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behaviour {
    pub(super) clients: usize,
    /// Share of the connections that offer a session, 0 to 1.
    pub(super) reuse: f64,
    /// Arrivals and think times run so many times as fast as in Table III.
    pub(super) speed: f64,
    /// Whether all clients have one address.
    pub(super) shared_address: bool,
    /// Connections at a time.
    pub(super) threads: usize,
    pub(super) seed: u64,
}

/// Counts of served connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) served: u64,
    pub(super) offered: u64,
    pub(super) resumed: u64,
    pub(super) failed: u64,
    /// Sum of the handshakes' durations.
    pub(super) handshakes: Duration,
    pub(super) first_error: Option<String>,
}

impl Tally {
    fn count(&mut self, outcome: Result<Served>) {
        match outcome {
            Ok(Served { offered, resumed, steps: Steps { handshake, .. } }) => {
                self.served += 1;
                self.offered += u64::from(offered);
                self.resumed += u64::from(resumed);
                self.handshakes += handshake;
            }
            Err(error) => {
                self.failed += 1;
                self.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    fn add(&mut self, other: Tally) {
        self.served += other.served;
        self.offered += other.offered;
        self.resumed += other.resumed;
        self.failed += other.failed;
        self.handshakes += other.handshakes;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    /// The tally, unless most connections failed.
    pub(super) fn checked(self) -> Result<Tally> {
        match &self.first_error {
            Some(error) if self.failed > self.served => {
                Err(anyhow!("{} of {} connections failed: {error}", self.failed, self.failed + self.served))
            }
            _ => Ok(self),
        }
    }
}

/// One client with its times.
struct Actor {
    client: Client,
    times: Visitor,
    /// Reuse that is due; from 1 on, the next connection offers its session.
    credit: f64,
}

/// Clients that wait, by the time when they are due.
struct Queue {
    /// Times since the beginning in nanoseconds, with the client's index.
    later: BinaryHeap<Reverse<(u64, usize)>>,
    due: Vec<usize>,
    random: SplitMix64,
}

impl Queue {
    /// A client that is due.
    fn pop(&mut self, now_ns: u64) -> Option<usize> {
        while let Some(&Reverse((at_ns, index))) = self.later.peek() {
            if at_ns > now_ns {
                break;
            }
            self.later.pop();
            self.due.push(index);
        }
        if self.due.is_empty() {
            return None;
        }
        let chosen = self.random.bits() as usize % self.due.len();
        Some(self.due.swap_remove(chosen))
    }
}

/// All clients of one run.
pub(super) struct Population {
    behaviour: Behaviour,
    /// Listeners; each client has one of them.
    to: Vec<SocketAddr>,
    actors: Vec<Mutex<Actor>>,
    queue: Mutex<Queue>,
    begun: Instant,
    /// Ends every run early.
    stop: Arc<AtomicBool>,
}

impl Population {
    pub(super) fn new(
        behaviour: Behaviour,
        tls: &Tls,
        to: Vec<SocketAddr>,
        stop: Arc<AtomicBool>,
    ) -> Population {
        let workload = Workload::paper(behaviour.seed);
        let actors: Vec<Mutex<Actor>> = (0..behaviour.clients)
            .map(|index| {
                let mut times = workload.client(index as u64);
                let source = (!behaviour.shared_address).then(|| source(index));
                // A random phase: otherwise all clients would make their full handshakes at the same time.
                let credit = times.fraction();
                Mutex::new(Actor { client: Client::new(tls.clone(), source), times, credit })
            })
            .collect();
        let arrivals = workload.arrivals_ns(NEWCOMERS_PER_S * behaviour.speed, behaviour.clients);
        let later = arrivals.into_iter().enumerate().map(|(index, at_ns)| Reverse((at_ns, index))).collect();
        let random = SplitMix64(behaviour.seed);
        let queue = Mutex::new(Queue { later, due: Vec::new(), random });
        Population { behaviour, to, actors, queue, begun: Instant::now(), stop }
    }

    /// Each client arrives and makes its first connection.
    pub(super) fn arrive(&mut self) -> Result<Tally> {
        let next = Mutex::new(BinaryHeap::new());
        let tally = self.on_threads(|tally| {
            while !self.is_stopped() {
                let popped = self.queue().pop(self.now_ns());
                let Some(index) = popped else {
                    if self.queue().later.is_empty() {
                        return;
                    }
                    std::thread::sleep(IDLE);
                    continue;
                };
                let at_ns = self.serve(index, tally);
                lock(&next).push(Reverse((at_ns, index)));
            }
        });
        self.queue().later = next.into_inner().unwrap_or_else(PoisonError::into_inner);
        tally.checked()
    }

    /// The clients connect again and again for `time`; connections that have begun are awaited.
    pub(super) fn run(&mut self, time: Duration) -> Result<Tally> {
        let until = Instant::now() + time;
        let tally = self.on_threads(|tally| {
            while Instant::now() < until && !self.is_stopped() {
                let popped = self.queue().pop(self.now_ns());
                match popped {
                    Some(index) => {
                        let at_ns = self.serve(index, tally);
                        self.queue().later.push(Reverse((at_ns, index)));
                    }
                    None => std::thread::sleep(IDLE),
                }
            }
        });
        tally.checked()
    }

    fn on_threads(&self, work: impl Fn(&mut Tally) + Sync) -> Tally {
        let mut sum = Tally::default();
        std::thread::scope(|scope| {
            let work = &work;
            let run = move || {
                let mut tally = Tally::default();
                work(&mut tally);
                tally
            };
            let threads: Vec<_> = (0..self.behaviour.threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).for_each(|tally| sum.add(tally));
        });
        sum
    }

    /// Makes a client's next connection; the time when it is due again.
    fn serve(&self, index: usize, tally: &mut Tally) -> u64 {
        let to = self.to.get(index % self.to.len().max(1));
        let (Some(actor), Some(&to)) = (self.actors.get(index), to) else { return u64::MAX };
        let mut actor = lock(actor);
        actor.credit += self.behaviour.reuse;
        let reuse = actor.credit >= 1.0;
        actor.credit -= f64::from(u8::from(reuse));
        tally.count(actor.client.connect(to, reuse));
        let think_ns = (actor.times.think_ns() as f64 / self.behaviour.speed) as u64;
        self.now_ns().saturating_add(think_ns)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of source addresses: 127.64.0.0/10.
pub(super) const SOURCES_MAX: usize = 1 << 22;

/// Source address of a client, which needs no configuration on Linux.
fn source(index: usize) -> Ipv4Addr {
    const FIRST: u32 = 0x7f40_0000;
    Ipv4Addr::from_bits(FIRST + (index % SOURCES_MAX) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_different_addresses_in_loopback() {
        assert_eq!(source(0), Ipv4Addr::new(127, 64, 0, 0));
        assert_eq!(source(300), Ipv4Addr::new(127, 64, 1, 44));
        assert!(source(SOURCES_MAX - 1).is_loopback());
    }

    #[test]
    fn only_due_clients_are_served() {
        let later = [(30, 3), (10, 1), (20, 2)].map(Reverse).into();
        let mut queue = Queue { later, due: Vec::new(), random: SplitMix64(1) };
        assert_eq!(queue.pop(9), None);
        let mut popped = [queue.pop(25), queue.pop(25)];
        popped.sort_unstable();
        assert_eq!((popped, queue.pop(25)), ([Some(1), Some(2)], None));
        assert_eq!(queue.pop(30), Some(3));
    }

    #[test]
    fn tally_with_mostly_failures_is_an_error() {
        let mut tally = Tally { served: 2, ..Tally::default() };
        tally.count(Err(anyhow!("refused")));
        assert!(tally.clone().checked().is_ok());
        (0..2).for_each(|_| tally.count(Err(anyhow!("closed"))));
        let error = tally.checked().unwrap_err().to_string();
        assert_eq!(error, "3 of 5 connections failed: refused");
    }
}
