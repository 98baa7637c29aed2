//! `evergate run`

use super::{FAILED, RunArgs, WRONG, output};
use crate::control::{self, Options, Origin, Source};

pub(super) fn run(args: RunArgs) -> u8 {
    let options = Options::from(&args);
    let origin = match (args.file.or(args.config), args.listen) {
        (Some(file), _) => Origin::File(file),
        (None, Some(listen)) => Origin::Line { listen, to: args.to, cert: args.cert, key: args.key },
        (None, None) => {
            output::tell("error: there is no configuration: name a file, or use --listen and --to");
            return WRONG;
        }
    };
    let source = Source { origin, socket: args.socket, node: args.node };
    let (config, warnings) = match source.read() {
        Ok(read) => read,
        Err(problems) => {
            for problem in problems {
                output::tell(problem);
            }
            return WRONG;
        }
    };
    match control::run(source, config, &warnings, &options) {
        Ok(()) => 0,
        Err(error) => {
            output::tell(format_args!("error: {error:#}"));
            FAILED
        }
    }
}
