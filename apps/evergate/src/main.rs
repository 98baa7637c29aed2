//! The program: see [`evergate::cli`].

fn main() -> std::process::ExitCode {
    evergate::cli::main()
}
