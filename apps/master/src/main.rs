//! The program `evergate-master`.

use std::process::ExitCode;

fn main() -> ExitCode {
    evergate_master::cli::main()
}
