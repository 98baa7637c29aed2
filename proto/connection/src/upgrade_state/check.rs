//! Ranges of the fields of a received state. Within them the imported connection adds without overflow, reads into
//! large enough buffers, and terminates. Whether the state is the one that was exported cannot be checked.

use super::{Leg, Stage, Tls, UpgradeState, UpgradeStateError};
use crate::INPUT_BYTES;
use crate::timers::Timer;
use evergate_replication::{NUMBER_MAX, POSITION_MAX};
use evergate_tls::PAYLOAD_MAX;

type Checked = Result<(), UpgradeStateError>;

fn wrong(what: &'static str) -> Checked {
    Err(UpgradeStateError::Inconsistent(what))
}

impl UpgradeState {
    /// Buffered bytes must fit the buffers, counters must have space to grow, and each wait must have a deadline.
    pub(super) fn check(&self) -> Checked {
        if self.raw.len() >= INPUT_BYTES {
            return wrong("length of the client's input");
        }
        if self.request > NUMBER_MAX || self.response > NUMBER_MAX || self.next_leg > NUMBER_MAX + 1 {
            return wrong("number of a request or leg");
        }
        if self.request.abs_diff(self.response) > 1 {
            return wrong("request and response");
        }
        if matches!(self.tls, Tls::Hello { .. }) && !self.closing && !self.is_untouched() {
            return wrong("what came before the handshake");
        }
        if [self.in_pos, self.out_pos, self.plain_pos, self.moved].iter().any(|count| *count > POSITION_MAX) {
            return wrong("position in the client's stream");
        }
        if !is_status(self.status) || self.log.as_ref().is_some_and(|log| !is_status(log.status)) {
            return wrong("status");
        }
        if self.timer == Timer::None || self.deadline > POSITION_MAX {
            return wrong("deadline");
        }
        if let Some(log) = &self.log
            && [log.started, log.first_byte, log.bytes_in, log.bytes_out]
                .iter()
                .any(|count| *count > POSITION_MAX)
        {
            return wrong("count of the access log");
        }
        let waits = self.leg.as_ref().is_some_and(|leg| leg.server.is_none());
        if waits && !matches!(self.answering, Stage::Head | Stage::Tunnel) {
            return wrong("response before the server");
        }
        if self.bound.as_ref().is_some_and(|idle| self.leg.is_some() || idle.leg >= self.next_leg) {
            return wrong("bound leg");
        }
        self.leg.as_ref().map_or(Ok(()), |leg| leg.check(self.next_leg))
    }

    /// Nothing was received or sent but the beginning of a hello.
    fn is_untouched(&self) -> bool {
        let silent = self.tickets.is_empty() && self.down.is_empty() && self.up.is_empty();
        let begins = matches!(self.receiving, Stage::Head | Stage::Tunnel)
            && matches!(self.answering, Stage::Head | Stage::Tunnel);
        let first = (self.request, self.response) == (0, 0) && self.leg.is_none() && self.bound.is_none();
        self.plain.is_empty() && self.log.is_none() && silent && begins && first
    }
}

/// Of a response, or 0 before there is one.
fn is_status(status: u16) -> bool {
    status == 0 || (100..600).contains(&status)
}

impl Leg {
    fn check(&self, next_leg: u32) -> Checked {
        if self.raw.len() >= INPUT_BYTES || self.held.len() > PAYLOAD_MAX {
            return wrong("length of the server's input");
        }
        if self.route.leg >= next_leg || self.route.exchange > NUMBER_MAX {
            return wrong("number of the leg");
        }
        if [self.in_pos, self.out_pos, self.body_bytes].iter().any(|count| *count > POSITION_MAX) {
            return wrong("position in the server's stream");
        }
        let untouched = (self.in_pos, self.out_pos) == (0, 0)
            && self.raw.is_empty()
            && self.held.is_empty()
            && self.records.is_none()
            && !(self.answered || self.written || self.ended || self.up_ended);
        if self.server.is_none() && !(untouched && self.queued_until <= POSITION_MAX) {
            return wrong("what came before the server");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_replication::ConnectionId;

    fn upgrade_state(tls: Tls) -> UpgradeState {
        UpgradeState {
            id: ConnectionId(1),
            listener: "l".to_owned(),
            client: ([192, 0, 2, 1], 40_000).into(),
            local: ([192, 0, 2, 2], 443).into(),
            proxy: None,
            tls,
            facts: None,
            raw: vec![22, 3, 1],
            plain: Vec::new(),
            scanned: 0,
            receiving: Stage::Head,
            answering: Stage::Head,
            request: 0,
            response: 0,
            leg: None,
            bound: None,
            next_leg: 1,
            tickets: Vec::new(),
            down: Vec::new(),
            up: Vec::new(),
            in_pos: 0,
            out_pos: 0,
            plain_pos: 0,
            answered: 0,
            client_ended: false,
            last_response: false,
            closing: false,
            deaf: false,
            down_ended: false,
            continued: false,
            request_client: None,
            timer: Timer::Handshake,
            deadline: 10_000_000,
            moved: 0,
            status: 0,
            log: None,
        }
    }

    #[test]
    fn state_of_no_possible_connection_is_refused() {
        type Spoil = fn(&mut UpgradeState);
        let spoils: [(&str, Spoil); 8] = [
            ("status", |upgrade_state| upgrade_state.status = 13),
            ("deadline", |upgrade_state| upgrade_state.timer = Timer::None),
            ("deadline", |upgrade_state| upgrade_state.deadline = u64::MAX),
            ("request and response", |upgrade_state| upgrade_state.request = 5),
            ("number of a request or leg", |upgrade_state| upgrade_state.next_leg = u32::MAX),
            ("position in the client's stream", |upgrade_state| upgrade_state.out_pos = u64::MAX),
            ("what came before the handshake", |upgrade_state| upgrade_state.receiving = Stage::Ended),
            ("length of the client's input", |upgrade_state| upgrade_state.raw = vec![0; INPUT_BYTES]),
        ];
        let hello = || Tls::Hello { secret: [7; 32], accepted_unix_s: 1 };
        assert_eq!(upgrade_state(hello()).check(), Ok(()));
        for (what, spoil) in spoils {
            let mut upgrade_state = upgrade_state(hello());
            spoil(&mut upgrade_state);
            assert_eq!(upgrade_state.check(), Err(UpgradeStateError::Inconsistent(what)));
        }
        // After the handshake a connection has a past.
        assert_eq!(UpgradeState { receiving: Stage::Ended, ..upgrade_state(Tls::Plain) }.check(), Ok(()));
    }
}
