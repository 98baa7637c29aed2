//! Laws of replication that a worker keeps, and that a host can make it break.

/// A law (`docs/internals/failover.md`) inside the worker. Other laws are broken by hosts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Frames follow a gap in a replica only after the full state.
    NoGaps,
    /// A backup counts as caught up only when nothing was released without it meanwhile.
    CaughtUpLate,
    /// The old owner keeps a frozen bucket for the case that the next owner fails.
    KeepsFrozen,
    /// A channel whose other end does not answer ends.
    EndsSilentChannels,
    /// A server connection serves another client only when the backups have the end of the previous use.
    SettlesFirst,
    /// A recovered connection resumes only when all required backups have its state.
    ProtectsFirst,
}
