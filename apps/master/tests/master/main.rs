//! The program `evergate-master` end to end: Recorders, crashes, HSMs, witnesses, time stamps, and its messages.

mod crash;
mod disclosure;
mod dist;
mod events;
mod hsm;
mod peers;
mod problems;
mod recorders;
mod support;
