//! Disclosure end to end: people, Revealer, Master, recipient, with keys in files and in SoftHSM2.

mod disclosure;
mod kills;
mod rig;
mod server_key;
mod speed;
#[path = "../support/mod.rs"]
mod support;

use rig::MASTER_CONFIG;
use std::path::Path;
use std::time::Duration;

/// Runs as a Master when the environment asks for it; as a test it does nothing.
#[test]
fn master_process() {
    let Some(config) = std::env::var_os(MASTER_CONFIG) else { return };
    let config = evergate_master::config::Config::load(Path::new(&config))
        .unwrap_or_else(|problems| panic!("{problems:?}"));
    let ended = evergate_master::run::run(&config, Duration::ZERO);
    std::process::exit(i32::from(ended.is_err()));
}
