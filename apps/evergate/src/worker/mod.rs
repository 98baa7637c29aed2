//! Workers of the daemon: the engine of `evergate_worker` over Linux, one thread each.
//!
//! - [`EventLoop`]: one worker's thread: waits for events, and lets the engine handle them;
//! - [`linux`], [`linux_gate`], [`tls_channel`]: the machine below the engine;
//! - [`upgrade`], `upgrade_frames`: connections that move between two processes of the machine.

mod event_loop;
#[cfg(test)]
#[path = "../../tests/worker/faults.rs"]
mod faults;
mod linux;
mod linux_gate;
#[cfg(test)]
#[path = "../../tests/worker/scene/mod.rs"]
mod scene;
mod tls_channel;
mod upgrade;
mod upgrade_frames;

pub use event_loop::{EventLoop, JoiningNode};
pub use linux::{Linux, LinuxListener};
pub use upgrade::{UpgradeCommand, end_stream};

/// A command to one worker.
pub type Command = evergate_worker::Command<Linux>;

/// A bound listener.
pub type ListenerSocket = evergate_worker::ListenerSocket<Linux>;
