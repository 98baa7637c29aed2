//! Audited capture in the switch: seals the secrets of audited connections and feeds a Recorder.
//!
//! Workers seal ([`Sealer`]) and queue messages ([`Feed`]); two threads work for all of them. *audit-keys* reads the
//! file of epochs and makes sealing contexts ahead of their use. *audit-feed* sends the queue to the Recorder.

mod contexts;
mod feed;
mod sealer;

pub use contexts::Contexts;
pub use feed::Feed;
pub use sealer::Sealer;

use anyhow::{Context, Result};
use evergate_config::model;
use evergate_evidence::merkle::sha256;
use evergate_submission::{FeedAddress, Identity};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Audited capture of the process.
#[derive(Debug)]
pub struct Audit {
    /// Sealing contexts of the present epoch.
    pub contexts: Arc<Contexts>,
    /// Queue of the Recorder.
    pub feed: Arc<Feed>,
    on_loss: model::OnLoss,
    /// Counts for the metrics.
    pub counts: AuditCounts,
}

/// What audited capture has done since the start.
#[derive(Debug, Default)]
pub struct AuditCounts {
    /// Connections whose secrets were sealed.
    pub sealed: AtomicU64,
    /// Audited connections whose secrets could not be sealed.
    pub unsealed: AtomicU64,
}

impl Audit {
    /// Starts both threads. A file of epochs that does not exist yet may come later.
    pub fn start(config: &model::Audit) -> Result<Arc<Audit>> {
        let (address, switch) = place(&config.feed)?;
        let contexts = Contexts::start(&config.epochs, &config.log_key).context("[audit]")?;
        let feed = Feed::start(address, switch).context("[audit]: cannot start the thread of the feed")?;
        let counts = AuditCounts::default();
        Ok(Arc::new(Audit { contexts, feed, on_loss: config.on_loss, counts }))
    }

    /// Whether new connections of audited listeners must be refused: their secrets or requests could be lost.
    pub fn refuses(&self) -> bool {
        self.on_loss == model::OnLoss::Refuse && (self.feed.is_nearly_full() || !self.contexts.is_ready())
    }

    pub(crate) fn count_sealed(&self, is_sealed: bool) {
        if is_sealed { &self.counts.sealed } else { &self.counts.unsealed }.fetch_add(1, Ordering::Relaxed);
    }
}

/// Address of the Recorder, and the id of this switch.
fn place(feed: &model::Feed) -> Result<(FeedAddress, [u8; 32])> {
    match feed {
        model::Feed::Unix(path) => {
            let name = rustix::system::uname();
            let switch = sha256(&[&b"evergate switch\n"[..], name.nodename().to_bytes()].concat());
            Ok((FeedAddress::Unix(path.clone()), switch))
        }
        model::Feed::Tls { address, recorder, certificate, key } => {
            let identity = Identity::load(certificate, key).context("[audit]")?;
            let switch = identity.id();
            Ok((FeedAddress::Tls(address.clone(), identity, *recorder), switch))
        }
    }
}
