//! The program: [`evergate::cli`], and `evergate demo` by [`evergate_demo`].

use anyhow::Result;
use evergate::cli::Demo;
use evergate_demo::cluster::{self, Interrupted};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

/// Exit code after an interrupt, as shells report it.
const INTERRUPTED: u8 = 130;
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    evergate::cli::main(demo)
}

/// Performs `evergate demo`; the exit code.
fn demo(command: Demo) -> Result<u8> {
    match command {
        Demo::Servers(args) => {
            let local = || SocketAddr::from((Ipv4Addr::LOCALHOST, args.port.unwrap_or(0)));
            evergate_demo::serve(args.count, args.listen.unwrap_or_else(local), &args.name).map(|()| 0)
        }
        Demo::Cluster(args) if args.check => cluster::check().map(|()| 0),
        Demo::Cluster(args) => {
            let transfer_bytes = u64::from(args.transfer_mib) * MIB;
            let options = cluster::Options { once: args.once, json: args.json, transfer_bytes };
            match cluster::run(&options) {
                Ok(good) => Ok(u8::from(!good)),
                Err(error) if error.is::<Interrupted>() => {
                    eprintln!("{error}");
                    Ok(INTERRUPTED)
                }
                Err(error) => Err(error),
            }
        }
    }
}
