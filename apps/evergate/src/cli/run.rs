//! `evergate run`

use super::{FAILED, RUN_USAGE, RunArgs, WRONG, output, refused};
use crate::aead::install_from_environment;
use crate::control::console::{self, Queued};
use crate::control::{self, EarlySignals, Options, Origin, Source};
use crate::upgrade::Predecessor;
use anyhow::Context;

/// The environment variable that allows a core file, or a debugger without root.
const DUMPABLE: &str = "EVERGATE_DUMPABLE";

pub(super) fn run(args: RunArgs) -> u8 {
    // Before any key is read.
    if std::env::var_os(DUMPABLE).is_none_or(|value| value != "1")
        && let Err(error) = evergate_sys::hide_memory()
    {
        return output::failed(&anyhow::anyhow!("cannot keep keys out of core files: {error}"));
    }
    // Early: a configuration may take long to read.
    let early = match EarlySignals::new().context("cannot handle signals") {
        Ok(early) => early,
        Err(error) => return output::failed(&error),
    };
    match Queued::start().context("cannot start the thread that writes messages") {
        Ok(_queued) => serve(args, &early),
        Err(error) => output::failed(&error),
    }
}

fn serve(args: RunArgs, early: &EarlySignals) -> u8 {
    let options = Options::from(&args);
    let (socket, node, successor) = (args.socket.clone(), args.node, args.successor);
    let origin = match origin(args) {
        Ok(origin) => origin,
        Err(what) => {
            console::print(format!(
                "error: {what}\n\nUsage: {RUN_USAGE}\n\nFor more information, try '--help'."
            ));
            return WRONG;
        }
    };
    if let Err(error) = install_from_environment() {
        console::print(format!("error: {error:#}"));
        return WRONG;
    }
    let source = Source { origin, socket, node };
    let mut before = match successor.then(Predecessor::connect).transpose() {
        Ok(before) => before,
        Err(error) => return failed(&error),
    };
    let (config, warnings) = match source.read() {
        Ok(read) => read,
        Err(mut problems) => {
            let code = refused(&problems);
            problems.iter().for_each(|problem| console::print(problem.to_string()));
            if let Some(before) = &mut before {
                // The reader of the upgrade's error sees first what refuses it.
                problems.sort_by_key(|problem| problem.severity);
                let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                before.fail(&problems.join("\n"));
            }
            return code;
        }
    };
    let inherited = match before.map(|before| before.inherit(&config)).transpose() {
        Ok(inherited) => inherited,
        Err(error) => return failed(&error),
    };
    match control::run(source, config, &warnings, &options, inherited, early) {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

/// Source of the configuration: one of the two forms, or an error about the missing part of one.
fn origin(args: RunArgs) -> Result<Origin, &'static str> {
    let RunArgs { file, config, listen, to, cert, key, .. } = args;
    match (file.or(config), listen) {
        (Some(file), _) => Ok(Origin::File(file)),
        (None, Some(_)) if to.is_empty() => {
            Err("--listen needs a server: add --to, such as --to 127.0.0.1:8080")
        }
        (None, Some(listen)) => Ok(Origin::Line { listen, to, cert, key }),
        (None, None) if to.is_empty() && cert.is_none() && key.is_none() => {
            Err("there is no configuration: name a file, or use --listen and --to")
        }
        (None, None) => {
            Err("without a file, --listen sets where clients connect: add it, such as --listen :8443")
        }
    }
}

fn failed(error: &anyhow::Error) -> u8 {
    console::print(format!("error: {error:#}"));
    FAILED
}
