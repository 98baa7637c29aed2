//! Detection of changed certificate, key and ticket files.
//!
//! Files are polled rather than watched: polling works on every file system, sees a certificate and its key replaced
//! one after the other, and costs a few `stat` calls. A set of files that failed to load is tried again only after
//! another change, so that a broken file is reported once.

use evergate_config::Config;
use evergate_config::model::CertificateSource;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Metadata of the files at one time, without their content. A file that cannot be read has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<(PathBuf, Option<Stamp>)>);

/// Device, inode, modification time in seconds and nanoseconds, length.
type Stamp = (u64, u64, i64, i64, u64);

impl Fingerprint {
    /// Looks at the files.
    pub(super) fn of(paths: &[PathBuf]) -> Fingerprint {
        let look = |path: &PathBuf| {
            let seen = std::fs::metadata(path).ok();
            (
                path.clone(),
                seen.map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.len())),
            )
        };
        Fingerprint(paths.iter().map(look).collect())
    }

    /// The files that differ.
    fn changed_from(&self, before: &Fingerprint) -> impl Iterator<Item = &PathBuf> {
        let differs = |(path, seen): &&(PathBuf, _)| !before.0.iter().any(|(p, s)| p == path && s == seen);
        self.0.iter().filter(differs).map(|(path, _)| path)
    }
}

/// Comparison of the files with the loaded ones.
#[derive(Debug)]
pub(super) struct Watch {
    loaded: Fingerprint,
    refused: Option<Fingerprint>,
}

impl Watch {
    /// `loaded`: the files' metadata before they were loaded.
    pub(super) fn new(loaded: Fingerprint) -> Watch {
        Watch { loaded, refused: None }
    }

    /// The changed files, if the files should be loaded again.
    pub(super) fn sees(&self, now: &Fingerprint) -> Option<String> {
        let known = *now == self.loaded || self.refused.as_ref() == Some(now);
        // A check that began before a reload may have seen other files than those in use.
        let paths = |of: &Fingerprint| of.0.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
        (!known && paths(now) == paths(&self.loaded)).then(|| {
            let changed = now.changed_from(self.refused.as_ref().unwrap_or(&self.loaded));
            changed.map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        })
    }

    /// The files whose metadata differs from that of the files in use.
    pub(super) fn fresh(&self, now: &Fingerprint) -> Vec<PathBuf> {
        now.changed_from(&self.loaded).cloned().collect()
    }

    /// Records that the files with this metadata are in use.
    pub(super) fn loaded(&mut self, then: Fingerprint) {
        *self = Watch::new(then);
    }

    /// Whether the files are again as they were when they were loaded. A refused set is tried again if it comes back.
    pub(super) fn is_back(&mut self, now: &Fingerprint) -> bool {
        let is_back = *now == self.loaded;
        if is_back {
            self.refused = None;
        }
        is_back
    }

    /// Records that the files with this metadata cannot be used.
    pub(super) fn refused(&mut self, then: Fingerprint) {
        self.refused = Some(then);
    }
}

/// The files whose content a configuration uses.
pub(super) fn files(config: &Config) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for certificate in &config.certificates {
        if let CertificateSource::Files { chain, key } = &certificate.source {
            files.extend([chain.clone(), key.clone()]);
        }
    }
    for tls in &config.tls {
        files.extend(tls.client_ca.clone());
        files.extend(tls.tickets.as_ref().and_then(|tickets| tickets.keys.clone()));
    }
    for tls in config.pools.iter().filter_map(|pool| pool.tls.as_ref()) {
        files.extend(tls.ca.clone());
        files.extend(tls.client.iter().flat_map(|client| [client.chain.clone(), client.key.clone()]));
    }
    files.sort();
    files.dedup();
    files
}

/// The secret ones of these files.
pub(super) fn secrets(config: &Config) -> Vec<&PathBuf> {
    let keys = config.certificates.iter().filter_map(|certificate| match &certificate.source {
        CertificateSource::Files { key, .. } => Some(key),
        CertificateSource::SelfSigned { .. } => None,
    });
    let tickets = config.tls.iter().filter_map(|tls| tls.tickets.as_ref()?.keys.as_ref());
    let pools = config.pools.iter().filter_map(|pool| pool.tls.as_ref()?.client.as_ref());
    keys.chain(tickets).chain(pools.map(|client| &client.key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(inode: Option<u64>) -> Fingerprint {
        Fingerprint(vec![("a.pem".into(), inode.map(|inode| (1, inode, 0, 0, 10))), ("b.pem".into(), None)])
    }

    #[test]
    fn refused_set_of_files_is_tried_again_only_after_a_change() {
        let mut watch = Watch::new(stamp(Some(1)));
        assert_eq!(watch.sees(&stamp(Some(1))), None);
        assert_eq!(watch.sees(&stamp(Some(2))), Some("a.pem".to_owned()));
        watch.refused(stamp(Some(2)));
        assert_eq!(watch.sees(&stamp(Some(2))), None);
        assert_eq!(watch.sees(&stamp(None)), Some("a.pem".to_owned()));
        watch.loaded(stamp(Some(3)));
        assert_eq!(watch.sees(&stamp(Some(3))), None);
        assert_eq!(watch.sees(&stamp(Some(2))), Some("a.pem".to_owned()));
    }
}
