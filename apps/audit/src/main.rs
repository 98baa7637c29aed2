//! `evergate-audit`: records traffic as evidence, finds it, and verifies it.

use std::process::ExitCode;

fn main() -> ExitCode {
    evergate_audit::cli::main()
}
