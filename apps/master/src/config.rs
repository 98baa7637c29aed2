//! Configuration file of the Master: TOML in, checked values or problems out.
//!
//! Every problem has its place and its remedy. Unknown keys are problems.

use crate::problem::Problem;
use evergate_evidence::checkpoint::is_origin;
use evergate_evidence::merkle::Hash;
use evergate_evidence::note::{PublicKey, VerifyingKey};
use evergate_submission::parse_id;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most Recorders that one Master serves.
pub const RECORDERS_MAX: usize = 64;

/// Checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address for Recorders.
    pub listen: SocketAddr,
    /// Folder of the log.
    pub log: PathBuf,
    /// Name of the log.
    pub origin: String,
    /// Certificate of the Master's TLS, in PEM.
    pub certificate: PathBuf,
    /// Key of that certificate, in PEM.
    pub key: PathBuf,
    /// Key that signs the log.
    pub signer: SignerConfig,
    /// Recorders that may send.
    pub recorders: Vec<RecorderConfig>,
    /// Revealers that may ask for disclosures.
    pub revealers: Vec<RecorderConfig>,
    /// Escrow keys; without them nothing is disclosed.
    pub escrow: Option<EscrowConfig>,
    /// Note of the policy of disclosure.
    pub policy: Option<PathBuf>,
    /// Witnesses that cosign.
    pub witnesses: Vec<WitnessConfig>,
    /// Authority of time stamps.
    pub tsa: Option<TsaConfig>,
    /// Address of the metrics, on a loopback interface.
    pub metrics: Option<SocketAddr>,
    /// Last checkpoint of the log that this one continues.
    pub continues: Option<PathBuf>,
    /// Bounds.
    pub limits: Limits,
}

/// Key that signs the log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum SignerConfig {
    /// Key in a file: trials only.
    File {
        /// PKCS#8 in PEM.
        key: PathBuf,
    },
    /// Key in an HSM.
    Pkcs11 {
        /// Shared library.
        module: PathBuf,
        /// Label of the token.
        token: String,
        /// Label of the key pair.
        key: String,
        /// File with the PIN of the user.
        pin_file: PathBuf,
    },
}

/// Escrow keys of epochs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum EscrowConfig {
    /// Keys in a file: trials only.
    File {
        /// The file.
        keys: PathBuf,
    },
    /// Keys in an HSM.
    Pkcs11 {
        /// Shared library.
        module: PathBuf,
        /// Label of the token.
        token: String,
        /// File with the PIN of the user.
        pin_file: PathBuf,
    },
}

/// Recorder or Revealer that may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Name in logs and in the log.
    pub name: String,
    /// SHA-256 of the SPKI of its certificate.
    pub id: Hash,
}

/// Witness that cosigns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessConfig {
    /// Submission prefix: `http://HOST[:PORT][/PATH]`.
    pub url: String,
    /// Its key.
    pub vkey: VerifyingKey,
}

/// Authority of time stamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TsaConfig {
    /// Address: `http://HOST[:PORT][/PATH]`.
    pub url: String,
    /// Time between two requests.
    pub interval: Duration,
}

/// Bounds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections of Recorders at once.
    pub recorders: usize,
    /// Longest time for a handshake, and for a peer to take an answer, in seconds.
    pub peer_s: u64,
    /// Longest time for an answer of a witness or of the authority of time stamps, in seconds.
    pub http_s: u64,
    /// Shortest time between two requests of Revealers in ms.
    pub disclosure_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { recorders: RECORDERS_MAX, peer_s: 10, http_s: 10, disclosure_ms: 1000 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default = "default_listen")]
    listen: SocketAddr,
    log: PathBuf,
    origin: String,
    certificate: PathBuf,
    key: PathBuf,
    signer: SignerConfig,
    #[serde(default)]
    recorder: Vec<RawRecorder>,
    #[serde(default)]
    revealer: Vec<RawRecorder>,
    escrow: Option<EscrowConfig>,
    policy: Option<PathBuf>,
    #[serde(default)]
    witness: Vec<RawWitness>,
    tsa: Option<RawTsa>,
    metrics: Option<SocketAddr>,
    continues: Option<PathBuf>,
    #[serde(default)]
    limits: Limits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecorder {
    name: String,
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWitness {
    url: String,
    vkey: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTsa {
    url: String,
    #[serde(default = "default_interval")]
    interval_s: u64,
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 7443))
}

fn default_interval() -> u64 {
    60
}

impl Config {
    /// Configuration of a file. Relative paths begin at the file's folder.
    pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let remedy = "give the file with --config; `evergate-master init` writes one for trials";
            vec![Problem::new(path.display().to_string(), format!("cannot be read: {error}"), remedy)]
        })?;
        Config::parse(&text, path)
    }

    /// Configuration from its text; `path` is for messages and relative paths.
    pub fn parse(text: &str, path: &Path) -> Result<Config, Vec<Problem>> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            let what = error.message().to_owned();
            vec![Problem::new(format!("{}:{line}", path.display()), what, "correct this line")]
        })?;
        let mut problems = Vec::new();
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut config = Config {
            listen: raw.listen,
            log: folder.join(raw.log),
            origin: raw.origin,
            certificate: folder.join(raw.certificate),
            key: folder.join(raw.key),
            signer: raw.signer.below(folder),
            recorders: Vec::new(),
            revealers: Vec::new(),
            escrow: raw.escrow.map(|escrow| escrow.below(folder)),
            policy: raw.policy.map(|path| folder.join(path)),
            witnesses: Vec::new(),
            tsa: None,
            metrics: raw.metrics,
            continues: raw.continues.map(|path| folder.join(path)),
            limits: raw.limits,
        };
        let mut report = |place: String, what: &str, remedy: &str| {
            problems.push(Problem::new(format!("{}: {place}", path.display()), what, remedy));
        };
        config.check_single_values(&mut report);
        config.add_recorders(raw.recorder, &mut report);
        config.add_revealers(raw.revealer, &mut report);
        config.add_peers(raw.witness, raw.tsa, &mut report);
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    fn check_single_values(&self, report: &mut impl FnMut(String, &str, &str)) {
        if !is_origin(&self.origin) {
            let remedy = "use a name with its year, such as \"example.org/audit/2026\"";
            report("origin".into(), "is empty, too long, or has spaces or plus signs", remedy);
        }
        if self.metrics.is_some_and(|address| !address.ip().is_loopback()) {
            report(
                "metrics".into(),
                "is no loopback address",
                "use 127.0.0.1:PORT; the page has no access control",
            );
        }
        if !(1..=RECORDERS_MAX).contains(&self.limits.recorders) {
            report("limits.recorders".into(), "is out of range", "use 1 to 64");
        }
        if !(1..=600).contains(&self.limits.peer_s) || !(1..=600).contains(&self.limits.http_s) {
            report("limits".into(), "has a time that is out of range", "use 1 to 600 seconds");
        }
    }

    fn add_recorders(&mut self, raw: Vec<RawRecorder>, report: &mut impl FnMut(String, &str, &str)) {
        for (index, recorder) in raw.into_iter().enumerate() {
            let place = format!("recorder {} ('{}')", index + 1, recorder.name);
            if recorder.name.is_empty()
                || recorder.name.len() > 255
                || recorder.name.chars().any(char::is_control)
            {
                report(place.clone(), "has no usable name", "use 1 to 255 bytes without control characters");
            }
            let Some(id) = parse_id(&recorder.id) else {
                let remedy = "use the 64 digits that `evergate-audit identity` prints as the Recorder's id";
                report(place, "has an id that is not 64 hexadecimal digits in lower case", remedy);
                continue;
            };
            if self.recorders.iter().any(|other| other.id == id || other.name == recorder.name) {
                report(place, "repeats an id or a name", "give each Recorder its own certificate and name");
                continue;
            }
            self.recorders.push(RecorderConfig { name: recorder.name, id });
        }
    }

    fn add_revealers(&mut self, raw: Vec<RawRecorder>, report: &mut impl FnMut(String, &str, &str)) {
        // A Revealer's certificate is its own: one peer has one role.
        let before = self.recorders.len();
        self.add_recorders(raw, report);
        self.revealers = self.recorders.split_off(before);
        if !self.revealers.is_empty() && (self.escrow.is_none() || self.policy.is_none()) {
            let remedy = "add [escrow] and policy, or remove [[revealer]]";
            report("revealer".into(), "is of no use without escrow keys and a policy", remedy);
        }
    }

    fn add_peers(
        &mut self,
        witnesses: Vec<RawWitness>,
        tsa: Option<RawTsa>,
        report: &mut impl FnMut(String, &str, &str),
    ) {
        let remedy = "use http://HOST[:PORT][/PATH]; put a proxy before servers that need https";
        for (index, witness) in witnesses.into_iter().enumerate() {
            let place = format!("witness {}", index + 1);
            if crate::http::Url::parse(&witness.url).is_none() {
                report(place.clone(), "has an unusable url", remedy);
            }
            match VerifyingKey::parse(&witness.vkey) {
                Ok(vkey) if matches!(vkey.key(), PublicKey::Cosignature(_)) => {
                    self.witnesses.push(WitnessConfig { url: witness.url, vkey });
                }
                Ok(_) => {
                    report(place, "has a vkey of another type", "use the vkey for cosignatures (type 4)")
                }
                Err(error) => report(place, &error.to_string(), "copy the vkey that the witness publishes"),
            }
        }
        if let Some(tsa) = tsa {
            if crate::http::Url::parse(&tsa.url).is_none() {
                report("tsa.url".into(), "is unusable", remedy);
            }
            if !(1..=86_400).contains(&tsa.interval_s) {
                report("tsa.interval_s".into(), "is out of range", "use 1 to 86400 seconds");
            }
            self.tsa = Some(TsaConfig { url: tsa.url, interval: Duration::from_secs(tsa.interval_s) });
        }
    }
}

impl EscrowConfig {
    fn below(self, folder: &Path) -> EscrowConfig {
        match self {
            EscrowConfig::File { keys } => EscrowConfig::File { keys: folder.join(keys) },
            EscrowConfig::Pkcs11 { module, token, pin_file } => {
                EscrowConfig::Pkcs11 { module, token, pin_file: folder.join(pin_file) }
            }
        }
    }
}

impl SignerConfig {
    fn below(self, folder: &Path) -> SignerConfig {
        match self {
            SignerConfig::File { key } => SignerConfig::File { key: folder.join(key) },
            SignerConfig::Pkcs11 { module, token, key, pin_file } => {
                SignerConfig::Pkcs11 { module, token, key, pin_file: folder.join(pin_file) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "log = \"log\"\norigin = \"a/2026\"\ncertificate = \"c\"\nkey = \"k\"\n\
        signer = { kind = \"file\", key = \"s\" }\n";

    fn parse(more: &str) -> Result<Config, String> {
        Config::parse(&format!("{GOOD}{more}"), Path::new("/etc/m.toml"))
            .map_err(|problems| problems.iter().map(|p| format!("{p}\n")).collect())
    }

    #[test]
    fn defaults_and_relative_paths_are_filled_in() {
        let config = parse("").unwrap();
        assert_eq!(config.listen.port(), 7443);
        assert_eq!(config.log, Path::new("/etc/log"));
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn each_problem_has_place_and_remedy() {
        let id = "0".repeat(64);
        let problems = parse(&format!(
            "metrics = \"1.2.3.4:1\"\n[limits]\nrecorders = 65\n[[recorder]]\nname = \"a\"\nid = \"{id}\"\n\
             [[recorder]]\nname = \"b\"\nid = \"{id}\"\n[[recorder]]\nname = \"c\"\nid = \"x\"\n\
             [[witness]]\nurl = \"https://w\"\nvkey = \"x\"\n[tsa]\nurl = \"x\"\ninterval_s = 0\n"
        ))
        .unwrap_err();
        assert_eq!(problems.lines().count(), 8, "{problems}");
        for part in
            ["metrics", "limits.recorders", "recorder 2", "recorder 3", "witness 1", "tsa.url", "interval_s"]
        {
            assert!(problems.contains(part), "{part}: {problems}");
        }
    }

    #[test]
    fn unknown_keys_and_kinds_name_their_line() {
        assert!(parse("listn = 1\n").unwrap_err().contains("m.toml:6: unknown field `listn`"));
        let error = Config::parse(&GOOD.replace("file", "usb"), Path::new("m.toml")).unwrap_err();
        assert!(error[0].to_string().contains("m.toml:5: unknown variant `usb`"), "{}", error[0]);
    }
}
