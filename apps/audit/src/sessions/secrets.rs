//! Secrets of sessions: a key log, grants of the Revealer, and the secrets that a pcapng file carries.

use crate::cli::Failure;
use evergate_evidence::disclosure::Grant;
use evergate_evidence::disclosure::grant::GRANT_BYTES_MAX;
use evergate_evidence::pcapng::{SECRETS, block_head};
use evergate_evidence::secrets::{Label, SecretList};
use evergate_player::SecretSource;
use evergate_player::key_log::KeyLog;
use evergate_player::tls::RsaExchange;
use evergate_seal::{RecipientKey, ServerKey};
use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use zeroize::Zeroizing;

/// Longest key log in bytes.
const KEY_LOG_BYTES_MAX: u64 = 256 << 20;
/// Longest block of secrets in bytes.
const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Secrets of all sessions.
#[derive(Debug, Default)]
pub(crate) struct SecretFile {
    logs: Vec<KeyLog>,
    /// Private keys of servers, for sessions with RSA key exchange.
    server_keys: Rc<[ServerKey]>,
    /// Secrets that these keys gave.
    exchanged: RefCell<KeyLog>,
}

/// Grants of the Revealer, and the key that opens them.
#[derive(Debug, clap::Args)]
pub(crate) struct GrantArgs {
    /// Grant of the Revealer; may repeat
    #[arg(long, value_name = "FILE", requires = "recipient_key")]
    grant: Vec<PathBuf>,
    /// Private key of the grants' recipient
    #[arg(long, value_name = "FILE", requires = "grant")]
    recipient_key: Option<PathBuf>,
}

/// What opened grants have.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    pub(crate) log: KeyLog,
    /// A grant whose request does not permit credentials.
    pub(crate) without_credentials: Option<PathBuf>,
}

impl GrantArgs {
    /// Opens the grants. Whether their proofs hold is the business of `verify`.
    pub(crate) fn open(&self) -> Result<Grants, Failure> {
        let mut grants = Grants::default();
        let Some(path) = &self.recipient_key else { return Ok(grants) };
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| wrong(path, &error))?);
        let key = RecipientKey::parse(&text).map_err(|error| wrong(path, &error))?;
        for path in &self.grant {
            let file = File::open(path).map_err(|error| wrong(path, &error))?;
            let mut bytes = Vec::new();
            let most = GRANT_BYTES_MAX as u64 + 1;
            file.take(most).read_to_end(&mut bytes).map_err(|error| wrong(path, &error))?;
            let grant = Grant::decode(&bytes).map_err(|error| wrong(path, &error))?;
            let request = grant.request().map_err(|error| wrong(path, &error))?;
            let secrets = key.open(&grant).map_err(|error| wrong(path, &error))?;
            grants.log.add(request.client_random, &secrets).map_err(|error| wrong(path, &error))?;
            if !request.with_credentials {
                grants.without_credentials = Some(path.clone());
            }
        }
        Ok(grants)
    }
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::wrong(format!("secrets: {}: {error}", path.display()))
}

impl SecretSource for SecretFile {
    fn secrets(&self, client_random: &[u8; 32]) -> Option<SecretList> {
        self.logs.iter().find_map(|log| log.get(client_random)).cloned()
    }

    fn has_server_keys(&self) -> bool {
        !self.server_keys.is_empty()
    }

    fn exchange_secrets(&self, exchange: &RsaExchange) -> Option<SecretList> {
        let master = self.server_keys.iter().find_map(|key| {
            let premaster = key.premaster(exchange.encrypted())?;
            exchange.master_secret(&premaster)
        })?;
        let mut list = SecretList::default();
        list.set(Label::MasterSecret, &master).ok()?;
        self.exchanged.borrow_mut().add(*exchange.client_random(), &list).ok()?;
        Some(list)
    }
}

impl SecretFile {
    /// Secrets of one connection.
    pub(crate) fn of(client_random: [u8; 32], list: &SecretList) -> SecretFile {
        let mut log = KeyLog::default();
        let _ = log.add(client_random, list); // the only connection is below the limit
        SecretFile { logs: vec![log], ..SecretFile::default() }
    }

    /// Secrets that private keys of servers give.
    pub(crate) fn of_server_keys(keys: Rc<[ServerKey]>) -> SecretFile {
        SecretFile { server_keys: keys, ..SecretFile::default() }
    }

    /// What a private key of a server gave for a connection.
    pub(crate) fn exchanged(&self, client_random: &[u8; 32]) -> Option<SecretList> {
        self.exchanged.borrow().get(client_random).cloned()
    }

    /// Secrets of this key log, of grants, and of those sources that are pcapng files.
    pub(crate) fn load(
        file: Option<&Path>,
        grants: KeyLog,
        sources: &[PathBuf],
    ) -> Result<SecretFile, Failure> {
        let mut secrets = SecretFile { logs: vec![grants], ..SecretFile::default() };
        if let Some(path) = file {
            let wrong = |error: &dyn std::fmt::Display| {
                Failure::wrong(format!(
                    "secrets: {}: {error}; give a TLS key log (SSLKEYLOGFILE)",
                    path.display()
                ))
            };
            let mut content = Zeroizing::new(Vec::new());
            let file = File::open(path).map_err(|error| wrong(&error))?;
            file.take(KEY_LOG_BYTES_MAX + 1).read_to_end(&mut content).map_err(|error| wrong(&error))?;
            if content.len() as u64 > KEY_LOG_BYTES_MAX {
                return Err(wrong(&"it is longer than 256 MiB"));
            }
            secrets.logs.push(KeyLog::parse(&content).map_err(|error| wrong(&error))?);
        }
        for path in sources.iter().filter(|path| path.is_file()) {
            secrets.logs.extend(embedded(path)?);
        }
        Ok(secrets)
    }
}

/// Secrets that a little-endian pcapng file carries before its packets or among them.
fn embedded(path: &Path) -> Result<Vec<KeyLog>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| wrong(path, error);
    let mut file = File::open(path).map_err(|error| wrong(&error))?;
    let (mut logs, mut at) = (Vec::new(), 0);
    let length = file.metadata().map_err(|error| wrong(&error))?.len();
    let mut head = [0; 8];
    while at + 12 <= length {
        file.seek(SeekFrom::Start(at))
            .and_then(|_| file.read_exact(&mut head))
            .map_err(|error| wrong(&error))?;
        let Some(block) = block_head(&head) else { break };
        let is_first = at == 0;
        if (is_first && block.kind != evergate_evidence::pcapng::SECTION_HEADER) || block.total < 12 {
            break; // another format, or another byte order: the reader of packets judges it
        }
        if block.kind == SECRETS && block.total <= BLOCK_BYTES_MAX {
            let mut content = Zeroizing::new(vec![0; block.total - 8]);
            file.read_exact(&mut content).map_err(|error| wrong(&error))?;
            logs.extend(key_log_of(&content));
        }
        if block.kind == evergate_evidence::pcapng::PACKET && !logs.is_empty() {
            break;
        }
        at += block.total as u64;
    }
    Ok(logs)
}

/// Key log of a block of secrets; `None` for other kinds of secrets and damaged ones.
fn key_log_of(content: &[u8]) -> Option<KeyLog> {
    let (kind, rest) = content.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let log = rest.get(..u32::from_le_bytes(*length) as usize)?;
    (kind == b"KSLT").then(|| KeyLog::parse(log).ok()).flatten()
}
