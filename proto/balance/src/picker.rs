//! Policies that go by the servers' weights and outstanding requests.

/// What a policy knows of one server. The default is a server that is never picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Share of the traffic relative to the other servers; 0 means none.
    pub weight: u32,
    /// Requests sent and not yet answered.
    pub outstanding: u32,
    /// Expected time from sending a request now to its answer, in microseconds: what is under way there, and the
    /// request itself. Only `LeastExpectedCompletion` looks at it.
    pub completion_us: u64,
    /// Up, not draining, under its limit and not excluded by a retry.
    pub eligible: bool,
}

impl ServerLoad {
    fn weight_now(&self) -> u64 {
        if self.eligible { u64::from(self.weight) } else { 0 }
    }

    /// Whether this server would have less to do per weight than the other, each with one request more.
    fn is_less_loaded_than(&self, other: &ServerLoad) -> bool {
        // (a + 1) / v < (b + 1) / w without division; both products fit in 64 bits.
        let ours = (u64::from(self.outstanding) + 1) * u64::from(other.weight);
        let theirs = (u64::from(other.outstanding) + 1) * u64::from(self.weight);
        ours < theirs
    }

    /// Whether it would answer earlier; at the same time, whether it would have less to do.
    fn is_done_before(&self, other: &ServerLoad) -> bool {
        self.completion_us < other.completion_us
            || (self.completion_us == other.completion_us && self.is_less_loaded_than(other))
    }
}

/// How a [`Picker`] chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Smooth weighted round robin: in every period each server gets its weight, spread over the period.
    RoundRobin,
    /// The least `(outstanding + 1) / weight`; ties go round.
    LeastOutstanding,
    /// The less loaded of two distinct servers drawn by weight. Nearly as even as `LeastOutstanding`, and it does
    /// not send every worker's next request to the same idle server.
    PowerOfTwo,
    /// The least `completion_us`, which says how fast a server is, so weights only exclude (0) and settle ties; what
    /// is equal in both goes round.
    LeastExpectedCompletion,
}

/// A policy with the little state it needs between picks. One per worker and pool.
#[derive(Clone, Debug)]
pub struct Picker {
    policy: Policy,
    /// Round robin's credit of each server: what it is owed, in units of weight.
    credits: Vec<i64>,
    /// Where ties start to go round.
    next: usize,
}

impl Picker {
    /// A picker for a pool of so many servers.
    pub fn new(policy: Policy, servers: usize) -> Self {
        Self { policy, credits: vec![0; servers], next: 0 }
    }

    /// The index of the server to use; nothing when none is eligible. `random` is used by `PowerOfTwo` only and
    /// must be uniform over 64 bits.
    pub fn pick(&mut self, servers: &[ServerLoad], random: u64) -> Option<usize> {
        let total: u64 = servers.iter().map(ServerLoad::weight_now).sum();
        if total == 0 {
            return None;
        }
        match self.policy {
            Policy::RoundRobin => self.round_robin(servers, total),
            Policy::LeastOutstanding => self.least(servers, ServerLoad::is_less_loaded_than),
            Policy::LeastExpectedCompletion => self.least(servers, ServerLoad::is_done_before),
            Policy::PowerOfTwo => self.power_of_two(servers, total, random),
        }
    }

    fn round_robin(&mut self, servers: &[ServerLoad], total: u64) -> Option<usize> {
        // The caller may have reloaded the pool with another number of servers.
        self.credits.resize(servers.len(), 0);
        let period = i64::try_from(total).unwrap_or(i64::MAX);
        let most_owed = period.saturating_mul(i64::try_from(servers.len()).unwrap_or(i64::MAX));
        let mut best: Option<(usize, i64)> = None;
        for (index, (server, credit)) in servers.iter().zip(&mut self.credits).enumerate() {
            let weight = server.weight_now();
            if weight == 0 {
                continue;
            }
            // While the same servers are eligible no clamp applies: only a positive credit is picked, so none falls
            // below -period, and as they sum up to one period, none rises above one period per server. It matters
            // after a change: a server that returns is not owed a burst for a time when weights were larger.
            *credit = credit.saturating_add(weight as i64).clamp(-period, most_owed);
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((index, *credit));
            }
        }
        let (index, _) = best?;
        if let Some(credit) = self.credits.get_mut(index) {
            *credit -= period;
        }
        Some(index)
    }

    fn least(
        &mut self,
        servers: &[ServerLoad],
        is_less: impl Fn(&ServerLoad, &ServerLoad) -> bool,
    ) -> Option<usize> {
        let start = if self.next < servers.len() { self.next } else { 0 };
        let (before, after) = servers.split_at(start);
        let from_start = after.iter().chain(before).enumerate();
        let (offset, _) = from_start
            .filter(|(_, server)| server.weight_now() > 0)
            .reduce(|best, other| if is_less(other.1, best.1) { other } else { best })?;
        let index = (start + offset) % servers.len();
        self.next = index + 1;
        Some(index)
    }

    fn power_of_two(&mut self, servers: &[ServerLoad], total: u64, random: u64) -> Option<usize> {
        let a = draw(servers, total, random >> 32, None)?;
        let rest = total - servers.get(a)?.weight_now();
        if rest == 0 {
            return Some(a);
        }
        let b = draw(servers, rest, random & 0xffff_ffff, Some(a))?;
        let (first, second) = (servers.get(a)?, servers.get(b)?);
        let index = if first.is_less_loaded_than(second) {
            a
        } else if second.is_less_loaded_than(first) {
            b
        } else {
            // The one that comes first when going round from the last winner of a tie.
            let index = if (a < self.next) == (b < self.next) { a.min(b) } else { a.max(b) };
            self.next = index + 1;
            index
        };
        Some(index)
    }
}

/// The server at which a 32-bit fraction of the total weight falls, leaving one out.
fn draw(servers: &[ServerLoad], total: u64, fraction: u64, without: Option<usize>) -> Option<usize> {
    let mut point = ((u128::from(fraction) * u128::from(total)) >> 32) as u64;
    for (index, server) in servers.iter().enumerate() {
        if Some(index) == without {
            continue;
        }
        let weight = server.weight_now();
        if point < weight {
            return Some(index);
        }
        point -= weight;
    }
    None
}
