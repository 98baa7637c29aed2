//! The Recorder on real interfaces, with a real Master: losses, crashes, full disks, and wrong input. Needs root.

mod accounting;
mod clock;
mod crashes;
mod feed;
mod files;
mod metrics;
mod refusals;
mod rig;
mod steps;
