//! `evergate demo`

use super::output::{self, failed};
use super::{DemoClusterArgs, DemoServersArgs};
use crate::demo::{self, cluster};

/// Ended by a signal, as shells say it.
const INTERRUPTED: u8 = 130;
const MIB: u64 = 1 << 20;

pub(super) fn servers(args: &DemoServersArgs) -> u8 {
    match demo::serve(args.count, args.port, &args.name) {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

pub(super) fn cluster(args: &DemoClusterArgs) -> u8 {
    if args.check {
        return match cluster::check() {
            Ok(()) => 0,
            Err(error) => failed(&error),
        };
    }
    let options = cluster::Options {
        once: args.once,
        json: args.json,
        transfer_bytes: u64::from(args.transfer_mib) * MIB,
    };
    match cluster::run(&options) {
        Ok(good) => u8::from(!good),
        Err(error) if error.is::<cluster::Interrupted>() => {
            output::print_error(error);
            INTERRUPTED
        }
        Err(error) => failed(&error),
    }
}
