//! Test case of a bad configuration: a text, and the one problem that it must have.
//!
//! In the texts, `@@` marks the place of the expected problem; `{L}`, `{C}` and `{P}` stand for a good listener,
//! certificate and pool.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use evergate_config::{Config, Problem, Severity, World, parse_with};
use evergate_sys::Access;

const LISTENER: &str =
    "[[listeners]]\nname = \"public\"\naddress = \":9443\"\nprotocol = \"https\"\npool = \"web\"\n";
const CERTIFICATE: &str = "[[certificates]]\nname = \"local\"\nself_signed = [\"localhost\"]\n";
const POOL: &str = "[[pools]]\nname = \"web\"\n[[pools.servers]]\naddress = \"127.0.0.1:8080\"\n";

/// Machine with a few files and one host name.
struct Small;

impl World for Small {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let pem = |label: &str| {
            io::Result::Ok(format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n").into_bytes())
        };
        match path.to_str() {
            Some("/base/c.pem") => pem("CERTIFICATE"),
            Some("/base/cut.pem") => {
                let whole = pem("CERTIFICATE")?;
                Ok([&whole[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n"].concat())
            }
            Some("/base/k.pem" | "/base/open.pem") => pem("PRIVATE KEY"),
            Some("/base/encrypted.pem") => pem("ENCRYPTED PRIVATE KEY"),
            Some("/base/empty") => Ok(Vec::new()),
            Some("/base/half.keys") => Ok(vec![0xa5; 32]),
            Some("/base/cluster.key") => Ok(b"0123456789abcdef".repeat(4)),
            Some("/base/short.key") => Ok(b"0123456789abcdef".repeat(3)),
            Some("/base/pipe") => Err(io::ErrorKind::InvalidInput.into()),
            Some("/base/denied.pem") => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn is_readable_by_all(&self, path: &Path) -> bool {
        path.ends_with("open.pem")
    }

    fn lacks_client_source(&self) -> Option<String> {
        Some("a right is missing".to_owned())
    }

    fn has_account(&self, user: &str, _group: Option<&str>) -> bool {
        user != "unknown"
    }

    fn may(&self, _user: &str, _group: Option<&str>, _access: Access, path: &Path) -> bool {
        !path.ends_with("k.pem") && !path.ends_with("closed")
    }

    fn is_file(&self, path: &Path) -> bool {
        path.ends_with("c.pem")
    }

    fn is_folder(&self, path: &Path) -> bool {
        path.ends_with("closed")
    }

    fn lacks_folder(&self, path: &Path) -> bool {
        path.ends_with("none")
    }

    fn is_pipe(&self, path: &Path) -> bool {
        path.ends_with("pipe")
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "app.internal" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
            "empty.internal" => Ok(Vec::new()),
            _ => Err(io::Error::other("unknown host")),
        }
    }
}

/// Text without its marker, and line and column of the marker, or (0, 0).
pub(crate) fn unmark(text: &str) -> (String, (usize, usize)) {
    let text = text.replace("{L}", LISTENER).replace("{C}", CERTIFICATE).replace("{P}", POOL);
    let Some(at) = text.find("@@") else { return (text, (0, 0)) };
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (text.replacen("@@", "", 1), (line, column))
}

pub(crate) fn problems_of(text: &str) -> Vec<Problem> {
    match parse_with(text, "test.toml", Path::new("/base"), &Small) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => {
            assert!(problems.iter().any(|p| p.severity == Severity::Error), "refused without an error");
            problems
        }
    }
}

/// Configuration of a good text.
pub(crate) fn config_of(text: &str) -> Config {
    parse_with(text, "test.toml", Path::new("/base"), &Small).expect("a good configuration").config
}

/// Text, key of its only problem, and a part of the problem's message.
pub(crate) type Case<'a> = (&'a str, &'a str, &'a str);

/// Checks that each text has exactly one problem, with this severity, key, place and advice.
pub(crate) fn expect(severity: Severity, cases: &[Case<'_>]) {
    let failures: Vec<String> = cases.iter().filter_map(|case| failure(severity, case)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n----\n"));
}

fn failure(severity: Severity, (text, key, advice): &Case<'_>) -> Option<String> {
    let (text, place) = unmark(text);
    let problems = problems_of(&text);
    let found: Vec<&Problem> = problems.iter().filter(|p| p.severity == severity).collect();
    let reported = |p: &Problem| format!("{} {} {}", p.what, p.consequence, p.remedy);
    let complaint = match found[..] {
        [p] if p.key != *key => format!("the key is {:?}, not {key:?}", p.key),
        [p] if (p.line, p.column) != place => format!("the place is {}:{}, not {place:?}", p.line, p.column),
        [p] if !reported(p).contains(advice) => format!("{advice:?} is missing"),
        [p] if p.remedy.is_empty() || p.consequence.is_empty() => "consequence or remedy is empty".to_owned(),
        [_] if severity == Severity::Warning && problems.len() > 1 => "there are errors".to_owned(),
        [_] => return None,
        _ => format!("{} problems of {severity:?} for {key}", found.len()),
    };
    let shown: String = problems.iter().map(|p| format!("{p}\n")).collect();
    Some(format!("{complaint}\n{text}\n{shown}"))
}
