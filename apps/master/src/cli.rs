//! Command line of the Master. Exit codes: 0 worked, 1 failed while running, 2 wrong input or could not run.

use crate::config::Config;
use crate::problem::Problem;
use crate::run;
use crate::sequencer::wall_ms;
use crate::status::Status;
use clap::{Parser, Subcommand};
use evergate_crypto::LogKey;
use evergate_submission::Identity;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Master of audited capture: logs the statements of Recorders and signs the log
#[derive(Parser)]
#[command(name = "evergate-master", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file
    #[arg(long, global = true, default_value = "/etc/evergate/master.toml")]
    config: PathBuf,
    /// Delay of every signature in ms, to test a slow HSM
    #[arg(long, hide = true, default_value_t = 0)]
    signer_delay: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Check the configuration, the certificate and the signing key
    Check,
    /// Write a configuration for trials with a signing key in a file
    Init {
        /// Name of the log; by default trial/YEAR
        #[arg(long)]
        origin: Option<String>,
    },
    /// Show the state of the log and of a running Master
    Status {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

/// The program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        None => start(&cli),
        Some(Command::Check) => check(&cli.config),
        Some(Command::Init { origin }) => {
            init(&cli.config, origin.as_deref()).map_err(|problem| vec![problem])
        }
        Some(Command::Status { json }) => status(&cli.config, *json),
    };
    match done {
        Ok(code) => code,
        Err(problems) => {
            for problem in problems {
                eprintln!("evergate-master: {problem}");
            }
            ExitCode::from(2)
        }
    }
}

fn start(cli: &Cli) -> Result<ExitCode, Vec<Problem>> {
    let config = Config::load(&cli.config)?;
    match run::run(&config, Duration::from_millis(cli.signer_delay)) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::from(1)),
        Err(problem) => Err(vec![problem]),
    }
}

fn check(path: &Path) -> Result<ExitCode, Vec<Problem>> {
    let config = Config::load(path)?;
    let vkey = run::check(&config).map_err(|problem| vec![problem])?;
    print(&format!("{}: good; the log's key is {}\n", path.display(), vkey.to_vkey()));
    Ok(ExitCode::SUCCESS)
}

fn status(path: &Path, json: bool) -> Result<ExitCode, Vec<Problem>> {
    let config = Config::load(path)?;
    let status = Status::read(&config.log).map_err(|problem| vec![problem])?;
    let text = match json {
        true => serde_json::to_string(&status).unwrap_or_default() + "\n",
        false => status.to_text(),
    };
    print(&text);
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output; a reader that is gone ends nothing.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Makes configuration, certificate and key beside each other. Existing files stay.
fn init(path: &Path, origin: Option<&str>) -> Result<ExitCode, Problem> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let year = &evergate_base::rfc3339(i64::try_from(wall_ms() / 1000).unwrap_or(0))[..4];
    let origin = origin.map_or_else(|| format!("trial/{year}"), str::to_owned);
    if !evergate_evidence::checkpoint::is_origin(&origin) {
        let remedy = "use a name with its year, such as example.org/audit/2026";
        return Err(Problem::new("--origin", "is empty, too long, or has spaces or plus signs", remedy));
    }
    std::fs::create_dir_all(folder)
        .map_err(|error| crate::problem::file_problem(folder, &error, "use a folder that is writable"))?;
    let failed = |error: String| Problem::new("init", error, "report this");
    let (certificate, key) =
        Identity::generate("evergate-master").map_err(|error| failed(error.to_string()))?;
    let (_, signing) = LogKey::generate().map_err(|error| failed(error.to_string()))?;
    let text = format!(
        "# Trial of evergate-master: the signing key is in a file. Use an HSM for evidence.\n\
         listen = \"0.0.0.0:7443\"\nlog = \"log\"\norigin = \"{origin}\"\n\
         certificate = \"master.pem\"\nkey = \"master.key\"\n\n\
         [signer]\nkind = \"file\"\nkey = \"log.key\"\n\n\
         # One for each Recorder; `evergate-audit identity` prints its id.\n\
         # [[recorder]]\n# name = \"edge-1\"\n# id = \"64 hexadecimal digits\"\n"
    );
    let files = [
        (path.to_owned(), text, 0o644),
        (folder.join("master.pem"), certificate, 0o644),
        (folder.join("master.key"), key, 0o600),
        (folder.join("log.key"), signing, 0o600),
    ];
    if let Some((file, ..)) = files.iter().find(|(file, ..)| file.exists()) {
        let remedy = "keep it, or give another file with --config in another folder";
        return Err(Problem::new(file.display().to_string(), "exists already", remedy));
    }
    for (file, text, mode) in &files {
        let mut options = std::fs::OpenOptions::new();
        let written = options.write(true).create_new(true).mode(*mode).open(file);
        written
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| crate::problem::file_problem(file, &error, "use a folder that is writable"))?;
    }
    print(&format!("wrote {}; start it with: evergate-master --config {0}\n", path.display()));
    Ok(ExitCode::SUCCESS)
}
