//! Results of relayed handshakes: they settle the choice of a server, and nodes share what they show.

use crate::host::Host;
use crate::slab::Key;
use crate::worker::Worker;
use evergate_base::Unix;
use evergate_tls::Observation;

impl<H: Host> Worker<H> {
    /// The handshake that this leg relays is over. A connection that came from another node or process has no choice to
    /// settle, and shows nothing.
    pub(super) fn handle_session_observed(&mut self, key: Key, leg: u32, observation: &Observation) {
        let Some(upstream) = self.clients.get(key).and_then(|client| client.upstream) else { return };
        let Some(upstream) = self.upstreams.get_mut(upstream) else { return };
        if upstream.owner != Some((key, leg)) {
            return;
        }
        let Some(handed) = upstream.handed.take() else { return };
        let news = handed.on_observed(observation, Unix(self.host.wall_clock_s()));
        self.replicate_learned(news);
    }
}
