//! Entries in the order of exchanges: an entry that names an exchange which cannot exist is refused.
//!
//! HTTP/1.1 has one live exchange: that of the newest server checkpoint. Its number rises by one, and only after a
//! route or an answer of our own for the exchange. The request to receive is at most one ahead of that number.
//!
//! Only order is checked here: `validate` checks the ranges of values.

use crate::{ClientCheckpoint, ConnectionState, Entry};

/// Most client input behind the acknowledged position, in bytes: the largest window of TCP (RFC 7323 section 2.3).
const UNACKNOWLEDGED_MAX: u64 = 1 << 30;

/// An entry that no connection in this state queues.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum EntryError {
    /// The exchange is not live: it is over, or one before it is not.
    #[error("{entry} of exchange {exchange}, but exchange {live} is live")]
    Exchange {
        /// Kind of the entry.
        entry: &'static str,
        /// Exchange that the entry names.
        exchange: u32,
        /// Number of the live exchange.
        live: u32,
    },
    /// The live exchange has neither a route nor an answer of our own.
    #[error("{entry} behind exchange {live}, which has no route and no answer")]
    Undecided {
        /// Kind of the entry.
        entry: &'static str,
        /// Number of the live exchange.
        live: u32,
    },
    /// A decision for input that the last decision was behind, or that no client can have sent.
    #[error("{entry} for input up to {answered}, which is not between {least} and {most}")]
    Answered {
        /// Kind of the entry.
        entry: &'static str,
        /// Client input that the decision answers.
        answered: u64,
        /// What the last decision answered.
        least: u64,
        /// What the client can have sent.
        most: u64,
    },
    /// A checkpoint inside the next request, at input before the head of the live exchange's request.
    #[error("client checkpoint at input {input}, before the answered {answered}")]
    Input {
        /// Input position of the checkpoint.
        input: u64,
        /// Client input that the newest decision answers.
        answered: u64,
    },
    /// The exchange has no route to the leg.
    #[error("{entry} of leg {leg}, to which exchange {exchange} has no route")]
    Leg {
        /// Kind of the entry.
        entry: &'static str,
        /// Exchange that the entry names.
        exchange: u32,
        /// Leg that the entry names.
        leg: u32,
    },
}

impl ConnectionState {
    /// Applies one entry of another node. On an error the state is as before.
    pub fn admit(&mut self, entry: Entry) -> Result<(), EntryError> {
        self.check_exchange(&entry)?;
        self.apply(entry);
        Ok(())
    }

    /// Whether the request to receive is one that entries in order lead to: at most one behind the live exchange, which
    /// then has a decision. A whole state of another node is read without such checks.
    pub fn is_in_order(&self) -> bool {
        self.check_next("client checkpoint", self.client.exchange, 0).is_ok()
    }

    /// Number of the live exchange.
    fn live(&self) -> u32 {
        self.server.exchange
    }

    fn check_exchange(&self, entry: &Entry) -> Result<(), EntryError> {
        match entry {
            Entry::Route(route) => {
                self.check_live("route", route.exchange)?;
                self.check_answered("route", route.answered)
            }
            Entry::Generated { exchange, answered, .. } => {
                self.check_live("answer", *exchange)?;
                self.check_answered("answer", *answered)
            }
            Entry::Reserve { exchange, .. } => self.check_live("reservation", *exchange),
            Entry::Server(point) => self.check_next("server checkpoint", point.exchange, self.live()),
            Entry::Client(point) => {
                self.check_next("client checkpoint", point.exchange, self.client.exchange)?;
                self.check_behind_answered(point)
            }
            Entry::LegBoundary { exchange, leg, .. } => self.check_leg("records", *exchange, *leg),
            Entry::LegStash { exchange, leg, .. } => self.check_leg("stash", *exchange, *leg),
            Entry::ServerEnd { exchange, leg, .. } => self.check_leg("end", *exchange, *leg),
            Entry::Open(_) | Entry::Hello(_) | Entry::Input(_) | Entry::Established(_) | Entry::Flight(_) => {
                Ok(())
            }
            Entry::Stash { .. } | Entry::Boundary(_) | Entry::Keys { .. } | Entry::Bound(_) => Ok(()),
            Entry::Close { .. } => Ok(()),
        }
    }

    fn check_live(&self, entry: &'static str, exchange: u32) -> Result<(), EntryError> {
        let live = self.live();
        if exchange == live { Ok(()) } else { Err(EntryError::Exchange { entry, exchange, live }) }
    }

    /// Checks a checkpoint: `exchange` is not before `oldest`, and at most one behind the live exchange, which then has
    /// a decision.
    fn check_next(&self, entry: &'static str, exchange: u32, oldest: u32) -> Result<(), EntryError> {
        let live = self.live();
        if exchange < oldest || exchange > live.saturating_add(1) {
            return Err(EntryError::Exchange { entry, exchange, live });
        }
        let decided = self.routes.contains_key(&live) || self.generated.contains_key(&live);
        if exchange > live && !decided { Err(EntryError::Undecided { entry, live }) } else { Ok(()) }
    }

    /// Checks the input that a decision answers: it is never before what the last decision answered, and the client
    /// cannot have sent it long before it is acknowledged.
    fn check_answered(&self, entry: &'static str, answered: u64) -> Result<(), EntryError> {
        let (least, most) = (self.answered, self.client_frontier().saturating_add(UNACKNOWLEDGED_MAX));
        let possible = (least..=most.max(least)).contains(&answered);
        if possible { Ok(()) } else { Err(EntryError::Answered { entry, answered, least, most }) }
    }

    /// Checks a client checkpoint of a request behind the live exchange: its input is behind the head of that exchange.
    fn check_behind_answered(&self, point: &ClientCheckpoint) -> Result<(), EntryError> {
        let least = if point.exchange > self.live() { self.answered } else { 0 };
        match point.input >= least {
            true => Ok(()),
            false => Err(EntryError::Input { input: point.input, answered: least }),
        }
    }

    /// Checks an entry of a server leg: the exchange has been routed to it.
    fn check_leg(&self, entry: &'static str, exchange: u32, leg: u32) -> Result<(), EntryError> {
        match self.routes.get(&exchange) {
            Some(route) if route.leg == leg => Ok(()),
            _ => Err(EntryError::Leg { entry, exchange, leg }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, RecordKind, RecordLayout, RecordPosition, Route, RouteFlags, ServerCheckpoint};

    fn route(exchange: u32) -> Entry {
        Entry::Route(Route {
            exchange,
            answered: 10 * u64::from(exchange),
            leg: exchange + 1,
            generation: 7,
            pool: 0,
            server: 0,
            place: 9,
            rules: Vec::new(),
            shape: 0,
            flags: RouteFlags::default(),
            offer: Vec::new(),
            looked_at: 0,
            hash: 0,
            tls: None,
        })
    }

    fn answer(exchange: u32) -> Entry {
        Entry::Generated { exchange, answered: 10 * u64::from(exchange), bytes: vec![1], close: false }
    }

    fn client(exchange: u32) -> Entry {
        Entry::Client(ClientCheckpoint {
            exchange,
            input: 10 * u64::from(exchange),
            ..ClientCheckpoint::default()
        })
    }

    fn server(exchange: u32) -> Entry {
        Entry::Server(ServerCheckpoint { exchange, ..ServerCheckpoint::default() })
    }

    fn reserve(exchange: u32) -> Entry {
        Entry::Reserve { exchange, until: RecordPosition::default() }
    }

    /// State after the first exchange, in which exchange 1 is live.
    fn second() -> ConnectionState {
        let mut state = ConnectionState::default();
        for entry in [route(0), client(0), reserve(0), client(1), server(0), server(1)] {
            state.admit(entry).unwrap();
        }
        state
    }

    #[track_caller]
    fn refused(state: &ConnectionState, entry: Entry) -> EntryError {
        let mut after = state.clone();
        let error = after.admit(entry.clone()).expect_err("an exchange that cannot exist");
        assert_eq!(&after, state, "{entry:?} changes the state");
        error
    }

    #[test]
    fn exchanges_in_order_are_admitted() {
        let mut state = second();
        let early = ClientCheckpoint { exchange: 1, phase: Phase::Body(vec![1]), ..Default::default() };
        for entry in [answer(1), Entry::Client(early), server(2), client(2), route(2), route(2), client(3)] {
            state.admit(entry).unwrap();
        }
        assert_eq!((state.server.exchange, state.client.exchange), (2, 3));
    }

    #[test]
    fn entry_of_another_exchange_is_refused() {
        let state = second();
        for exchange in [0, 2, u32::MAX] {
            for (entry, made) in
                [("route", route as fn(u32) -> Entry), ("answer", answer), ("reservation", reserve)]
            {
                if exchange == u32::MAX && entry == "route" {
                    continue; // its leg would have no number
                }
                let expected = EntryError::Exchange { entry, exchange, live: 1 };
                assert_eq!(refused(&state, made(exchange)), expected);
            }
        }
    }

    #[test]
    fn checkpoint_behind_an_undecided_exchange_is_refused() {
        let state = second();
        assert_eq!(refused(&state, server(2)), EntryError::Undecided { entry: "server checkpoint", live: 1 });
        assert_eq!(refused(&state, client(2)), EntryError::Undecided { entry: "client checkpoint", live: 1 });
    }

    #[test]
    fn checkpoint_far_from_the_live_exchange_is_refused() {
        let mut state = second();
        state.admit(route(1)).unwrap();
        for (entry, made, oldest) in
            [("server checkpoint", server as fn(u32) -> Entry, 0), ("client checkpoint", client, 0)]
        {
            for exchange in [oldest, 3] {
                assert_eq!(
                    refused(&state, made(exchange)),
                    EntryError::Exchange { entry, exchange, live: 1 }
                );
            }
        }
    }

    #[test]
    fn decision_answers_no_input_before_the_last_one() {
        let mut state = second();
        let decision = |answered| Entry::Generated { exchange: 1, answered, bytes: vec![1], close: false };
        state.admit(decision(50)).unwrap();
        for answered in [49, (1 << 30) + 11] {
            let (entry, most) = ("answer", (1 << 30) + 10);
            let expected = EntryError::Answered { entry, answered, least: 50, most };
            assert_eq!(refused(&state, decision(answered)), expected);
        }
        state.admit(decision(50)).unwrap();
    }

    #[test]
    fn next_request_begins_behind_the_answered_input() {
        let mut state = second();
        let decision = Entry::Generated { exchange: 1, answered: 50, bytes: vec![1], close: false };
        state.admit(decision).unwrap();
        let at = |exchange, input| Entry::Client(ClientCheckpoint { exchange, input, ..Default::default() });
        assert_eq!(refused(&state, at(2, 49)), EntryError::Input { input: 49, answered: 50 });
        for entry in [at(1, 49), at(2, 50)] {
            state.admit(entry).unwrap();
        }
    }

    #[test]
    fn entry_of_a_leg_without_its_route_is_refused() {
        let mut state = second();
        state.admit(route(1)).unwrap();
        let layout = || RecordLayout {
            first: RecordPosition::default(),
            kind: RecordKind::Data,
            lengths: vec![(1, 1)],
            digest: 1,
        };
        let records = |exchange, leg| Entry::LegBoundary { exchange, leg, boundary: layout() };
        let stash = |exchange, leg| Entry::LegStash { exchange, leg, position: 0, bytes: vec![1] };
        let end = |exchange, leg| Entry::ServerEnd { exchange, leg, position: 1 };
        for (exchange, leg) in [(1, 1), (0, 2), (2, 3)] {
            for (entry, made) in [
                ("records", records(exchange, leg)),
                ("stash", stash(exchange, leg)),
                ("end", end(exchange, leg)),
            ] {
                assert_eq!(refused(&state, made), EntryError::Leg { entry, exchange, leg });
            }
        }
        for entry in [records(1, 2), stash(1, 2), end(1, 2)] {
            state.admit(entry).unwrap();
        }
    }
}
