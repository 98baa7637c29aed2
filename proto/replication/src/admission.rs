//! Entries in the order of exchanges: an entry that names an exchange which cannot exist is refused.
//!
//! HTTP/1.1 has one live exchange: that of the newest server checkpoint. Its number rises by one, and only after a
//! route or an answer of our own for the exchange. The request to receive is at most one ahead of that number.
//!
//! Only order is checked here: `validate` checks the ranges of values.

use crate::{ConnectionState, Entry};

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
}

impl ConnectionState {
    /// Applies one entry of another node. On an error the state is as before.
    pub fn admit(&mut self, entry: Entry) -> Result<(), EntryError> {
        self.check_exchange(&entry)?;
        self.apply(entry);
        Ok(())
    }

    /// Number of the live exchange.
    fn live(&self) -> u32 {
        self.server.request
    }

    fn check_exchange(&self, entry: &Entry) -> Result<(), EntryError> {
        match entry {
            Entry::Route(route) => self.check_live("route", route.request),
            Entry::Generated { request, .. } => self.check_live("answer", *request),
            Entry::Reserve { request, .. } => self.check_live("reservation", *request),
            Entry::Server(point) => self.check_next("server checkpoint", point.request, self.live()),
            Entry::Client(point) => self.check_next("client checkpoint", point.request, self.client.request),
            _ => Ok(()),
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientCheckpoint, Phase, RecordPosition, Route, RouteFlags, ServerCheckpoint};

    fn route(request: u32) -> Entry {
        Entry::Route(Route {
            request,
            leg: request + 1,
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

    fn answer(request: u32) -> Entry {
        Entry::Generated { request, bytes: vec![1], close: false }
    }

    fn client(request: u32) -> Entry {
        Entry::Client(ClientCheckpoint { request, ..ClientCheckpoint::default() })
    }

    fn server(request: u32) -> Entry {
        Entry::Server(ServerCheckpoint { request, ..ServerCheckpoint::default() })
    }

    fn reserve(request: u32) -> Entry {
        Entry::Reserve { request, until: RecordPosition::default() }
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
        let early = ClientCheckpoint { request: 1, phase: Phase::Body(vec![1]), ..Default::default() };
        for entry in [answer(1), Entry::Client(early), server(2), client(2), route(2), route(2), client(3)] {
            state.admit(entry).unwrap();
        }
        assert_eq!((state.server.request, state.client.request), (2, 3));
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
}
