//! `evergate run`

use super::{FAILED, RunArgs, WRONG, output};
use crate::control::message::{self, Queued};
use crate::control::{self, Options, Origin, Source};
use crate::handover::Predecessor;
use anyhow::Context;

pub(super) fn run(args: RunArgs) -> u8 {
    match Queued::start().context("cannot start the thread that writes messages") {
        Ok(_queued) => serve(args),
        Err(error) => output::failed(&error),
    }
}

fn serve(args: RunArgs) -> u8 {
    let options = Options::from(&args);
    let origin = match (args.file.or(args.config), args.listen) {
        (Some(file), _) => Origin::File(file),
        (None, Some(listen)) => Origin::Line { listen, to: args.to, cert: args.cert, key: args.key },
        (None, None) => {
            message::tell(
                "error: there is no configuration: name a file, or use --listen and --to".to_owned(),
            );
            return WRONG;
        }
    };
    let source = Source { origin, socket: args.socket, node: args.node };
    let mut before = match args.successor.then(Predecessor::connect).transpose() {
        Ok(before) => before,
        Err(error) => return failed(&error),
    };
    let (config, warnings) = match source.read() {
        Ok(read) => read,
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            if let Some(before) = &mut before {
                before.fail(&problems.join("\n"));
            }
            problems.into_iter().for_each(message::tell);
            return WRONG;
        }
    };
    let inherited = match before.map(|before| before.inherit(&config)).transpose() {
        Ok(inherited) => inherited,
        Err(error) => return failed(&error),
    };
    match control::run(source, config, &warnings, &options, inherited) {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> u8 {
    message::tell(format!("error: {error:#}"));
    FAILED
}
