//! Rules that use the servers' weights and outstanding requests.

/// Load of one server. The default is a server that is never picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Share of the traffic relative to the other servers; 0 means none.
    pub weight: u32,
    /// Requests sent and not yet answered.
    pub outstanding: u32,
    /// Expected time from sending a request now to its answer, in microseconds: pending requests, and the request
    /// itself. Only `LeastExpectedCompletion` uses it.
    pub completion_us: u64,
    /// Whether the server is up, not draining, below its limit and not excluded by a retry.
    pub eligible: bool,
}

impl ServerLoad {
    fn weight_now(&self) -> u64 {
        if self.eligible { u64::from(self.weight) } else { 0 }
    }

    /// Whether this server would have less load per weight than the other, each with one more request.
    fn is_less_loaded_than(&self, other: &ServerLoad) -> bool {
        // (a + 1) / v < (b + 1) / w without division; both products fit in 64 bits.
        let ours = (u64::from(self.outstanding) + 1) * u64::from(other.weight);
        let theirs = (u64::from(other.outstanding) + 1) * u64::from(self.weight);
        ours < theirs
    }

    /// Whether this server already has as much load per weight as the other would have with one more request.
    fn passes_its_turn_to(&self, other: &ServerLoad) -> bool {
        // a / v >= (b + 1) / w without division; both products fit in 64 bits.
        u64::from(self.outstanding) * u64::from(other.weight)
            >= (u64::from(other.outstanding) + 1) * u64::from(self.weight)
    }

    /// Whether this server would answer earlier; at equal times, whether it would have less load.
    fn is_done_before(&self, other: &ServerLoad) -> bool {
        self.completion_us < other.completion_us
            || (self.completion_us == other.completion_us && self.is_less_loaded_than(other))
    }
}

/// Rule of a [`Picker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PickRule {
    /// Smooth weighted round robin: in every period each server gets its weight, spread over the period.
    RoundRobin,
    /// The server whose turn it is by weight. If it already has as much load, the one with the least `(outstanding + 1)
    /// / weight` instead. Shares therefore follow the weights even if most requests find all servers idle.
    LeastOutstanding,
    /// Like `LeastOutstanding`, but with one other server, drawn by weight. Nearly as even as `LeastOutstanding`, and
    /// it does not send every worker's next request to the same idle server.
    PowerOfTwo,
    /// The least `completion_us`, which includes the speed of a server. Weights therefore only exclude (0) and break
    /// ties; remaining ties go round.
    LeastExpectedCompletion,
}

/// Picker: a rule with its state between picks. One per worker and pool.
#[derive(Clone, Debug)]
pub struct Picker {
    rule: PickRule,
    /// Credit of each server, in units of weight: a server with more credit is picked earlier.
    credits: Vec<i64>,
    /// First server of the next round for ties of `LeastExpectedCompletion`.
    next: usize,
}

impl Picker {
    /// A picker for a pool of `servers` servers.
    pub fn new(rule: PickRule, servers: usize) -> Self {
        Self { rule, credits: vec![0; servers], next: 0 }
    }

    /// The index of the server to use; `None` when none is eligible. Only `PowerOfTwo` uses `random`, which must be
    /// uniform over 64 bits.
    pub fn pick(&mut self, servers: &[ServerLoad], random: u64) -> Option<usize> {
        let total: u64 = servers.iter().map(ServerLoad::weight_now).sum();
        if total == 0 {
            return None;
        }
        match self.rule {
            PickRule::RoundRobin => self.by_turn(servers, total, |_, _| None),
            PickRule::LeastOutstanding => self.by_turn(servers, total, |credits, _| least(servers, credits)),
            PickRule::PowerOfTwo => self.by_turn(servers, total, |_, turn| {
                let rest = total - servers.get(turn)?.weight_now();
                if rest == 0 { None } else { draw(servers, rest, random >> 32, turn) }
            }),
            PickRule::LeastExpectedCompletion => self.least_expected(servers),
        }
    }

    /// The server whose turn it is by smooth weighted round robin. The server that `other` returns for the credits and
    /// the turn replaces it if that has less load. The chosen server pays the period.
    fn by_turn(
        &mut self,
        servers: &[ServerLoad],
        total: u64,
        other: impl FnOnce(&[i64], usize) -> Option<usize>,
    ) -> Option<usize> {
        let period = i64::try_from(total).unwrap_or(i64::MAX);
        let turn = self.turn(servers, period)?;
        let other =
            other(&self.credits, turn).filter(|other| servers[turn].passes_its_turn_to(&servers[*other]));
        let index = other.unwrap_or(turn);
        if let Some(credit) = self.credits.get_mut(index) {
            *credit -= period;
        }
        Some(index)
    }

    /// Adds each server's weight to its credit, and returns the server with the most credit.
    fn turn(&mut self, servers: &[ServerLoad], period: i64) -> Option<usize> {
        // The caller may have reloaded the pool with another number of servers.
        self.credits.resize(servers.len(), 0);
        let most_owed = period.saturating_mul(i64::try_from(servers.len()).unwrap_or(i64::MAX));
        let mut best: Option<(usize, i64)> = None;
        for (index, (server, credit)) in servers.iter().zip(&mut self.credits).enumerate() {
            let weight = server.weight_now();
            if weight == 0 {
                continue;
            }
            // While the same servers are eligible and none passes its turn on, no clamp applies. Only a positive credit
            // is picked, so none falls below -period; the credits sum up to one period, so none rises above one period
            // per server. The clamp matters after a change: a returning server gets no burst for a time when weights
            // were larger.
            *credit = credit.saturating_add(weight as i64).clamp(-period, most_owed);
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((index, *credit));
            }
        }
        best.map(|(index, _)| index)
    }

    fn least_expected(&mut self, servers: &[ServerLoad]) -> Option<usize> {
        let start = if self.next < servers.len() { self.next } else { 0 };
        let (before, after) = servers.split_at(start);
        let from_start = after.iter().chain(before).enumerate();
        let (offset, _) = from_start
            .filter(|(_, server)| server.weight_now() > 0)
            .reduce(|best, other| if other.1.is_done_before(best.1) { other } else { best })?;
        let index = (start + offset) % servers.len();
        self.next = index + 1;
        Some(index)
    }
}

/// The server with the least load per weight, with one more request; of equal ones the one with the most credit.
fn least(servers: &[ServerLoad], credits: &[i64]) -> Option<usize> {
    let all = servers.iter().zip(credits).enumerate().filter(|(_, (server, _))| server.weight_now() > 0);
    let best = all.reduce(|best, other| {
        let (server, credit) = other.1;
        let (least, most) = best.1;
        let is_better =
            server.is_less_loaded_than(least) || (!least.is_less_loaded_than(server) && credit > most);
        if is_better { other } else { best }
    });
    best.map(|(index, _)| index)
}

/// The server at a 32-bit fraction of the total weight, without the server `without`.
fn draw(servers: &[ServerLoad], total: u64, fraction: u64, without: usize) -> Option<usize> {
    let mut point = ((u128::from(fraction) * u128::from(total)) >> 32) as u64;
    for (index, server) in servers.iter().enumerate() {
        if index == without {
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
