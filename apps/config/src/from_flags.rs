//! A configuration from a command line: `evergate run --listen :8443 --to 127.0.0.1:8080`.

#![expect(clippy::result_large_err, reason = "called once per start, and the caller prints the problem")]

use std::path::Path;

use crate::checks::pools::SAME_SERVER;
use crate::environment::{Machine, World};
use crate::model::Config;
use crate::problem::{Problem, Severity};

/// An https listener on `listen` with one pool named "default" of the servers in `to`, chosen by the power
/// of two choices. Without `cert` and `key` a certificate for `localhost` is generated at start.
///
/// The admin socket is off, because a user that tries evergate out may not write to `/run`. All other values are those
/// of an empty file. The first problem is returned, placed at its option.
pub fn one_line(
    listen: &str,
    to: &[String],
    cert: Option<&Path>,
    key: Option<&Path>,
) -> Result<Config, Problem> {
    one_line_with(listen, to, cert, key, &Machine)
}

pub(crate) fn one_line_with(
    listen: &str,
    to: &[String],
    cert: Option<&Path>,
    key: Option<&Path>,
    world: &dyn World,
) -> Result<Config, Problem> {
    if to.is_empty() {
        return Err(problem("--to", None, "there is no server", "add `--to 127.0.0.1:8080`"));
    }
    let certificate = match (cert, key) {
        (None, None) => Ok("self_signed = [\"localhost\"]".to_owned()),
        (Some(cert), Some(key)) => path_text("--cert", cert)
            .and_then(|c| Ok(format!("chain = {c}\nkey = {}", path_text("--key", key)?))),
        (Some(_), None) => {
            Err(problem("--key", None, "`--cert` needs `--key`", "add `--key FILE` with the private key"))
        }
        (None, Some(_)) => {
            Err(problem("--cert", None, "`--key` needs `--cert`", "add `--cert FILE` with the certificate"))
        }
    }?;
    let servers: Vec<String> =
        to.iter().map(|to| format!("[[pools.servers]]\naddress = {}\n", quoted(to))).collect();
    let text = format!(
        "[admin]\nsocket = \"off\"\n\
         [[listeners]]\nname = \"default\"\naddress = {}\nprotocol = \"https\"\npool = \"default\"\n\
         [[certificates]]\nname = \"default\"\n{certificate}\n\
         [[pools]]\nname = \"default\"\n{}",
        quoted(listen),
        servers.concat(),
    );
    match crate::parse_with(&text, "command line", Path::new(""), world) {
        Ok(loaded) => Ok(loaded.config),
        Err(problems) => {
            Err(problems.into_iter().find(|p| p.severity == Severity::Error).map(at_option).unwrap_or_else(
                || problem("", None, "the options do not fit together", "see `evergate run --help`"),
            ))
        }
    }
}

/// Moves a problem from the text made above to the option that it came from.
fn at_option(problem: Problem) -> Problem {
    let key = if problem.key.starts_with("listeners") {
        "--listen"
    } else if problem.key.starts_with("pools") {
        "--to"
    } else if problem.key.ends_with(".key") {
        "--key"
    } else {
        "--cert"
    };
    let mut problem = Problem { key: key.to_owned(), line: 0, column: 0, ..problem };
    problem.consequence = "nothing is started".to_owned();
    if problem.what.ends_with(SAME_SERVER) {
        // The check's remedies are those for a file, which has places and weights.
        problem.what = "another `--to` is the same server".to_owned();
        problem.remedy =
            "name each server once; a larger share of the load needs a configuration file".to_owned();
    }
    problem
}

fn problem(option: &str, value: Option<String>, what: &str, remedy: &str) -> Problem {
    let mut problem = Problem::of_file("command line", what, remedy);
    (problem.key, problem.value, problem.consequence) =
        (option.to_owned(), value, "nothing is started".to_owned());
    problem
}

fn path_text(option: &str, path: &Path) -> Result<String, Problem> {
    let shown = Some(path.display().to_string());
    let text =
        path.to_str().ok_or_else(|| problem(option, shown, "the path is not UTF-8", "rename the file"))?;
    Ok(quoted(text))
}

/// The text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
