//! The configuration of evergate: TOML text in, a checked [`Config`] out, or problems that teach.
//!
//! The steps of a file: `span` records the place of every value. `structure` compares the tree with
//! the [`schema`], removes what does not fit and fills in the defaults. serde reads the remainder into
//! `raw` structs. The checks (one module per part of the file) turn these into the [`model`]. Each step
//! reports its findings and continues, so that one run shows all problems. Only a syntax error ends the
//! pass early, because nothing after it can be trusted.
//!
//! A configuration is used whole or not at all: any error refuses it. Reading it has no side effects;
//! host names are resolved and files are read through [`World`].
//!
//! Not done here: binding addresses, looking users up, building TLS settings.

mod address;
mod checks;
mod environment;
mod from_flags;
pub mod model;
mod problem;
mod raw;
mod reload_limits;
pub mod schema;
mod span;
mod structure;
mod suggest;

use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

pub use checks::certificate_dates::{Concern, Validity};
pub use checks::cluster::{choose_node, cluster_key};
pub use checks::runtime_files::is_pid;
pub use environment::{FILE_BYTES_MAX, Machine, World};
pub use from_flags::one_line;
pub use model::{Config, Rules};
pub use problem::{PROBLEMS_MAX, Problem, Severity, thousands};

use checks::context::{Checks, Names};
use checks::{
    audit, certificates, cluster, cluster_cross, cross, listeners, node, pools, rules, runtime_files,
};
use problem::Report;
use raw::RawConfig;
use span::{KeyPath, Source};

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings, in file order.
    pub warnings: Vec<Problem>,
    raw: RawConfig,
    /// By rule, a problem without words at its condition.
    rule_places: Vec<Problem>,
}

impl Loaded {
    /// A problem without words at the condition of this rule, or at the whole file when there is none of that name.
    pub fn place_of_rule(&self, name: &str, file: &Path) -> Problem {
        let index = self.config.rules.specs.iter().position(|rule| rule.name == name);
        let place = index.and_then(|index| self.rule_places.get(index)).cloned();
        place.unwrap_or_else(|| Problem::of_file(&file.display().to_string(), "", ""))
    }

    /// The configuration as TOML with every default written out. Paths stay relative to the folder of the
    /// original file.
    pub fn effective_toml(&self) -> String {
        let mut raw = self.raw.clone();
        for pool in raw.pools.iter_mut().filter(|pool| !pool.policy.is_by_session()) {
            pool.sessions = None;
        }
        // Every raw struct is a plain table, which TOML can express.
        toml::to_string_pretty(&raw).unwrap_or_default()
    }
}

/// Loads a configuration file.
///
/// Relative paths in it begin at its folder. Certificate, key and ticket files must exist and be readable
/// by this process; host names must resolve. On failure all problems are returned, errors and warnings, in
/// file order.
pub fn load(path: &Path) -> Result<Loaded, Vec<Problem>> {
    let file = path.display().to_string();
    let bytes = Machine.read(path).map_err(|error| {
        let what = format!("the configuration cannot be read: {error}");
        vec![Problem::of_file(&file, what, remedy_for_reading(&error, path))]
    })?;
    let base_dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parse_bytes(bytes, &file, base_dir)
}

/// Loads a configuration from a stream, such as standard input. Relative paths in it begin at the working folder.
pub fn load_from(input: impl Read, file: &str) -> Result<Loaded, Vec<Problem>> {
    let wrong = |what: String, remedy: &str| vec![Problem::of_file(file, what, remedy)];
    let mut bytes = Vec::new();
    input.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
        wrong(format!("the configuration cannot be read: {error}"), "name a file instead")
    })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong("the configuration is larger than 16 MiB".to_owned(), "split it up"));
    }
    parse_bytes(bytes, file, Path::new("."))
}

fn parse_bytes(bytes: Vec<u8>, file: &str, base_dir: &Path) -> Result<Loaded, Vec<Problem>> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let what = format!("the file is not UTF-8 text from byte {} on", error.utf8_error().valid_up_to());
        vec![Problem::of_file(file, what, "save it as UTF-8")]
    })?;
    parse(&text, file, base_dir)
}

fn remedy_for_reading(error: &io::Error, path: &Path) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "name an existing file; `examples/minimal.toml` is a start",
        io::ErrorKind::PermissionDenied => {
            "let `node.user` (for reloads) and the user that starts evergate read the file and enter the folders \
             above it"
        }
        _ if path.is_dir() => "this is a folder: name the file in it, such as `evergate.toml`",
        io::ErrorKind::InvalidInput => {
            "pipes and devices cannot be read again at a reload: write it to a file, and name that"
        }
        _ => "name the configuration: a regular file that the user that starts evergate may read",
    }
}

/// Parses and checks a configuration text, as [`load`] does. `file` is its name in problems.
pub fn parse(text: &str, file: &str, base_dir: &Path) -> Result<Loaded, Vec<Problem>> {
    parse_with(text, file, base_dir, &Machine)
}

/// [`parse`] with another view of files and host names, for tests.
pub fn parse_with(
    text: &str,
    file: &str,
    base_dir: &Path,
    world: &dyn World,
) -> Result<Loaded, Vec<Problem>> {
    let mut source = Source::new(file, text);
    let (tree, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let shown = errors.iter().take(problem::PROBLEMS_MAX);
        let mut problems: Vec<Problem> = shown.map(|error| syntax_error(&source, error)).collect();
        if let more @ 1.. = errors.len() - problems.len() {
            problems.push(Problem::of_more(file, Severity::Error, more));
        }
        return Err(problems);
    }
    let tree = DeValue::Table(tree.into_inner());
    source.index(&KeyPath::root(), &tree);
    let DeValue::Table(mut table) = tree else { return Err(Vec::new()) };
    let mut report = Report::new(&source);
    structure::fit(&schema::ROOT, &mut table, &KeyPath::root(), &mut report);
    let raw = match RawConfig::deserialize(Deserializer::from(Spanned::new(0..text.len(), table))) {
        Ok(raw) => raw,
        Err(error) => {
            // The schema and the raw structs disagree; a test forbids it, and the file may still be right.
            let what = format!("a value could not be read: {}", error.message());
            let at = error.span().map_or(0, |span| span.start);
            report.error_at_byte_because(at, &KeyPath::root(), what, problem::REFUSED, "correct this value");
            return Err(report.into_problems());
        }
    };
    let mut loaded = check(raw, report, base_dir, world)?;
    loaded.config.digest = evergate_base::fnv(text.bytes());
    Ok(loaded)
}

/// Turns raw structs into the validated configuration.
fn check(
    raw: RawConfig,
    report: Report<'_>,
    base_dir: &Path,
    world: &dyn World,
) -> Result<Loaded, Vec<Problem>> {
    let mut checks = Checks {
        listeners: Names::new(raw.listeners.iter().map(|l| l.name.as_deref()), "listeners", &report),
        certificates: Names::new(raw.certificates.iter().map(|c| c.name.as_deref()), "certificates", &report),
        tls: Names::new(raw.tls.keys().map(|name| Some(name.as_str())), "tls", &report),
        pools: Names::new(raw.pools.iter().map(|p| p.name.as_deref()), "pools", &report),
        report,
        base_dir,
        world,
        user: raw.node.user.clone().map(|user| (user, raw.node.group.clone())),
        read_files: Vec::new(),
        own_files: Vec::new(),
    };
    let config = Config {
        node: node::node(&raw.node, &mut checks),
        timeouts: node::timeouts(&raw.timeouts, &mut checks),
        limits: node::node_limits(&raw.limits, &mut checks),
        logs: node::logs(&raw.logs, &mut checks),
        admin: node::admin(&raw.admin, &mut checks),
        certificates: certificates::certificates(&raw.certificates, &mut checks),
        tls: certificates::tls(&raw.tls, &mut checks),
        pools: pools::pools(&raw, &mut checks),
        listeners: listeners::listeners(&raw, &mut checks),
        rules: rules::rules(&raw, &mut checks),
        cluster: cluster::cluster(&raw, &mut checks),
        audit: audit::audit(&raw, &mut checks),
        digest: 0,
        folder: base_dir.to_owned(),
    };
    runtime_files::clashes(&mut checks);
    runtime_files::foreign_pid_file(&mut checks);
    if !checks.report.has_errors() {
        // With errors, what looks unused may only be referred to by something unreadable.
        cross::unused(&raw, &mut checks);
        cross::loops(&config, &mut checks);
        cluster_cross::fits(&config, &mut checks);
    }
    let refused = checks.report.has_errors();
    let rules = KeyPath::root().key("rules");
    let place = |index| checks.report.place(&rules.index(index).key("when"));
    let rule_places = (0..raw.rules.len()).map(place).collect();
    let problems = checks.report.into_problems();
    if refused { Err(problems) } else { Ok(Loaded { config, warnings: problems, raw, rule_places }) }
}

fn syntax_error(source: &Source<'_>, error: &toml::de::Error) -> Problem {
    let mut problem = Problem::of_file(
        source.file(),
        format!("this is not TOML: {}", error.message()),
        syntax_remedy(error.message()),
    );
    if let Some(span) = error.span() {
        (problem.line, problem.column) = source.line_column(span.start);
    }
    problem
}

fn syntax_remedy(message: &str) -> &'static str {
    if message.contains("duplicate key") {
        "remove one of the two, or begin each element of a list with double brackets, such as `[[listeners]]`"
    } else if message.contains("string") || message.contains("quot") {
        "put text in double quotes; text with quotes or backslashes is easiest in single quotes"
    } else {
        "write `key = value` lines under `[table]` and `[[list]]` headers; text stands in quotes"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_configuration_has_a_remedy_per_cause() {
        let remedy = |kind: io::ErrorKind| remedy_for_reading(&kind.into(), Path::new("/none/evergate.toml"));
        assert!(remedy(io::ErrorKind::NotFound).contains("existing file"));
        assert!(remedy(io::ErrorKind::PermissionDenied).contains("user that starts"));
        assert!(remedy(io::ErrorKind::InvalidInput).contains("pipes"));
        let folder = load(Path::new("/")).unwrap_err().remove(0);
        assert!(folder.remedy.contains("folder"), "{folder}");
    }
}
