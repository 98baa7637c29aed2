//! Context of all checks: the report, names, files.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evergate_crypto::{TicketKeys, pem_certificates, unmarked};
use evergate_sys::Access;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::environment::World;
use crate::problem::{REFUSED, Report};
use crate::span::KeyPath;
use crate::suggest::{did_you_mean, listed};

/// The state of one pass over a configuration.
pub(crate) struct Checks<'a> {
    pub(crate) report: Report<'a>,
    pub(crate) base_dir: &'a Path,
    pub(crate) world: &'a dyn World,
    /// The user and group that the process runs as.
    pub(crate) user: Option<(String, Option<String>)>,
    /// Names defined so far, by list.
    pub(crate) listeners: Names,
    pub(crate) certificates: Names,
    pub(crate) tls: Names,
    pub(crate) pools: Names,
    /// The files that the configuration names for reading, with the keys that name them.
    pub(crate) read_files: Vec<(KeyPath, PathBuf)>,
    /// The files that the process makes, with the keys that name them.
    pub(crate) own_files: Vec<(KeyPath, PathBuf)>,
}

/// The names of the elements of one list, and whether each is used.
#[derive(Debug, Default)]
pub(crate) struct Names {
    index: BTreeMap<String, usize>,
    used: BTreeSet<String>,
    /// Set when an element's name could not be read: then a reference to nothing may be right.
    is_incomplete: bool,
}

impl Names {
    pub(crate) fn new<'n>(
        all: impl Iterator<Item = Option<&'n str>>,
        list: &str,
        report: &Report<'_>,
    ) -> Self {
        let is_incomplete = report.is_excused(&KeyPath::root().key(list));
        let mut names = Self { is_incomplete, ..Self::default() };
        for (i, name) in all.enumerate() {
            match name {
                Some(name) => {
                    names.index.entry(name.to_owned()).or_insert(i);
                }
                None => names.is_incomplete = true,
            }
        }
        names
    }

    pub(crate) fn is_used(&self, name: &str) -> bool {
        self.used.contains(name)
    }

    pub(crate) fn mark_used(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// The element that `name` refers to, which thereby is used; reports a name that refers to nothing.
    pub(crate) fn find(
        &mut self,
        name: &str,
        what: &str,
        header: &str,
        at: &KeyPath,
        report: &mut Report<'_>,
    ) -> Option<usize> {
        self.used.insert(name.to_owned());
        if let Some(index) = self.index.get(name) {
            return Some(*index);
        }
        if self.is_incomplete {
            return None;
        }
        let known = self.index.keys().map(String::as_str);
        let remedy = if self.index.is_empty() {
            format!("define it under the header `{header}`")
        } else {
            let guess = did_you_mean(name, known.clone());
            format!("{guess}define it under the header `{header}`, or use one of {}", listed(known))
        };
        report.error(at, format!("there is no {what} named {name:?}"), remedy);
        None
    }
}

/// Required content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// At least one PEM certificate.
    Certificates,
    /// One PEM private key.
    PrivateKey,
    /// Ticket keys, as the handshake reads them.
    TicketKeys,
    /// 64 hexadecimal digits, and white space around them.
    ClusterKey,
}

impl Checks<'_> {
    /// A path of the file, relative to the folder of the configuration.
    pub(crate) fn path(&self, text: &str) -> PathBuf {
        self.base_dir.join(text)
    }

    /// Checks the name of the `index`th element of a list and whether it is the only one so called.
    pub(crate) fn name(
        &mut self,
        name: Option<&str>,
        at: &KeyPath,
        seen: &mut BTreeMap<String, KeyPath>,
        example: &str,
    ) -> Option<String> {
        let at = at.key("name");
        let Some(name) = name else {
            self.report.missing(
                &at,
                &format!("nothing could refer to it; {REFUSED}"),
                &format!("add a name, such as `name = \"{example}\"`"),
            );
            return None;
        };
        let valid = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !valid {
            let what = format!("{name:?} cannot be a name");
            self.report.error_because(
                &at,
                what,
                format!("names appear in logs and metric labels; {REFUSED}"),
                "use 1 to 64 letters, digits, hyphens, underscores and dots",
            );
            return None;
        }
        if let Some(first) = seen.get(name) {
            let what =
                format!("the name {name:?} is taken by `{}`", first.parent().unwrap_or_default().as_str());
            let consequence = format!("a reference to it would be ambiguous; {REFUSED}");
            self.report.error_because(&at, what, consequence, "give each one its own name");
            return None;
        }
        seen.insert(name.to_owned(), at);
        Some(name.to_owned())
    }

    /// A file that must be readable now and contain what it is for.
    pub(crate) fn file(&mut self, text: &str, at: &KeyPath, content: Content) -> Option<PathBuf> {
        let path = self.path(text);
        self.read_files.push((at.clone(), path.clone()));
        let shown = path.display();
        let bytes = match self.world.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let remedy = format!(
                    "create it or correct the path; relative paths begin at the folder of the configuration file, `{}`",
                    self.base_dir.display()
                );
                self.report.error(at, format!("the file `{shown}` does not exist"), remedy);
                return None;
            }
            Err(error) => {
                let remedy = match &self.user {
                    Some((user, _)) => format!(
                        "make it a regular file that user \"{user}\" (`node.user`) and the user that starts evergate \
                         may read"
                    ),
                    None => "make it a regular file that the user that starts evergate may read".to_owned(),
                };
                self.report.error(at, format!("the file `{shown}` cannot be read: {error}"), remedy);
                return None;
            }
        };
        if let Err((what, remedy)) = inspect(&bytes, content) {
            self.report.error(at, format!("the file `{shown}` {what}"), remedy);
            return None;
        }
        if let Some((user, group)) = &self.user
            && !self.world.may(user, group.as_deref(), Access::Read, &path)
        {
            let group = group.as_ref().unwrap_or(user);
            self.report.warning(
                at,
                format!("user \"{user}\" (`node.user`) may not read `{shown}`"),
                "the node starts, but later refuses every reload and keeps the old configuration",
                format!(
                    "allow it to read the file and to enter the folders above: `chgrp {group} {shown}` and \
                     `chmod g+r {shown}`"
                ),
            );
        }
        if content != Content::Certificates && self.world.is_readable_by_all(&path) {
            self.report.warning(
                at,
                format!("every user of this machine may read the secret in `{shown}`"),
                "a user that reads it can pose as this server or read its connections",
                format!("remove the permission: `chmod o-r {shown}`"),
            );
        }
        Some(path)
    }

    /// [`file`](Self::file) for a key that may be absent.
    pub(crate) fn optional_file(
        &mut self,
        text: Option<&str>,
        at: &KeyPath,
        content: Content,
    ) -> Option<PathBuf> {
        text.and_then(|text| self.file(text, at, content))
    }
}

fn inspect(bytes: &[u8], content: Content) -> Result<(), (Cow<'static, str>, &'static str)> {
    let has_certificate = || CertificateDer::pem_slice_iter(unmarked(bytes)).any(|c| c.is_ok());
    let has_key = || PrivateKeyDer::from_pem_slice(unmarked(bytes)).is_ok();
    let is_encrypted =
        || bytes.windows(9).any(|w| w == b"ENCRYPTED") && bytes.windows(11).any(|w| w == b"PRIVATE KEY");
    match content {
        Content::Certificates => match pem_certificates(bytes) {
            Ok(found) if !found.is_empty() => Ok(()),
            Ok(_) if has_key() => Err((
                "contains a private key, not a certificate".into(),
                "are `chain` and `key` exchanged? Name the certificate here",
            )),
            Ok(_) => Err((
                "contains no certificate in PEM form".into(),
                "the file must have a block `-----BEGIN CERTIFICATE-----`; convert DER with `openssl x509 -inform der`",
            )),
            Err(error) => Err((
                format!("is broken: {error}").into(),
                "write the whole file again, each certificate from its line `BEGIN` to its line `END`",
            )),
        },
        Content::PrivateKey if is_encrypted() => Err((
            "is encrypted".into(),
            "no password can be entered at start; decrypt it with `openssl pkey` and protect the file",
        )),
        Content::PrivateKey if has_key() => Ok(()),
        Content::PrivateKey if has_certificate() => Err((
            "contains a certificate, not a private key".into(),
            "are `chain` and `key` exchanged? Name the private key here",
        )),
        Content::PrivateKey => Err((
            "contains no private key in PEM form".into(),
            "the file must have a block `-----BEGIN PRIVATE KEY-----` (or `EC` or `RSA PRIVATE KEY`)",
        )),
        Content::ClusterKey if super::cluster::cluster_key(bytes).is_some() => Ok(()),
        Content::ClusterKey => Err((
            "does not consist of 64 hexadecimal digits".into(),
            "make one with `(umask 077; evergate cluster key > FILE)` and copy it to all nodes",
        )),
        Content::TicketKeys => TicketKeys::from_file_bytes(bytes).map(drop).map_err(|error| {
            (
                format!("cannot be used: {error}").into(),
                "make one with `(umask 077; openssl rand -out FILE 64)` and copy it to all nodes",
            )
        }),
    }
}
