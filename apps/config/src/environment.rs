//! The machine as the checks see it: files and host names. A trait, so that tests need neither.

use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use evergate_crypto::{Authorities, ClientCertificate, KeyError, authorities, pem_certificates};
use evergate_sys::{Access, Account};

use crate::checks::certificate_dates::Validity;

/// Files and host names, as the checks see them.
pub trait World {
    /// When a certificate chain that is used with this key is valid, both as PEM; an error when they do not fit.
    /// Without an answer of its own a world does not look into them.
    fn validity(&self, _chain: &[u8], _key: &[u8]) -> Result<Validity, KeyError> {
        Ok(Validity::ALWAYS)
    }
    /// [`validity`](Self::validity) of a certificate that servers are shown.
    fn client_validity(&self, _chain: &[u8], _key: &[u8]) -> Result<Validity, KeyError> {
        Ok(Validity::ALWAYS)
    }
    /// When the longest-lived of a file's authorities is valid.
    fn authority_validity(&self, _pem: &[u8]) -> Validity {
        Validity::ALWAYS
    }
    /// Which of a file's certificates are authorities'. Without an answer of its own a world does not look into them.
    fn authorities(&self, _pem: &[u8]) -> Option<Authorities> {
        None
    }
    /// The time, in seconds since 1970.
    fn now_unix_s(&self) -> i64 {
        0
    }
    /// The content of a regular file of at most [`FILE_BYTES_MAX`]; of anything else `InvalidInput`.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Whether every user of the machine may read the file.
    fn is_readable_by_all(&self, path: &Path) -> bool;
    /// What this process lacks for connections from clients' addresses, in words.
    fn lacks_client_source(&self) -> Option<String> {
        None
    }
    /// Whether there is such a user, and such a group.
    fn has_account(&self, _user: &str, _group: Option<&str>) -> bool {
        true
    }
    /// Whether a user may do that with a file that exists.
    fn may(&self, _user: &str, _group: Option<&str>, _access: Access, _path: &Path) -> bool {
        true
    }
    /// Whether it is a regular file.
    fn is_file(&self, _path: &Path) -> bool {
        false
    }
    /// Whether it is a folder.
    fn is_folder(&self, _path: &Path) -> bool {
        false
    }
    /// Whether there is no such folder.
    fn lacks_folder(&self, _path: &Path) -> bool {
        false
    }
    /// Whether the path is a pipe, a socket or a disk.
    fn is_pipe(&self, _path: &Path) -> bool {
        false
    }
    /// Whether two paths lead to one file, be it there or not.
    fn is_same_file(&self, one: &Path, other: &Path) -> bool {
        one == other
    }
    /// The addresses of a host name, in order of preference.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
    /// [`resolve`](Self::resolve) of each of these, in their order.
    fn resolve_all(&self, names: &[(&str, u16)]) -> Vec<io::Result<Vec<SocketAddr>>> {
        names.iter().map(|(host, port)| self.resolve(host, *port)).collect()
    }
}

/// Largest file read by the checks. A bundle of all public authorities is a quarter of a megabyte.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl World for Machine {
    fn validity(&self, chain: &[u8], key: &[u8]) -> Result<Validity, KeyError> {
        evergate_crypto::load_certificate(chain, key).map(|certificate| Validity::of(&certificate))
    }

    fn client_validity(&self, chain: &[u8], key: &[u8]) -> Result<Validity, KeyError> {
        let certificate = ClientCertificate::from_pem(chain, key)?;
        certificate.check()?;
        certificate.chain.first().map_or(Ok(Validity::ALWAYS), |first| Validity::of_der(first))
    }

    fn authority_validity(&self, pem: &[u8]) -> Validity {
        let all = pem_certificates(pem).unwrap_or_default();
        let all = all.iter().filter_map(|authority| Validity::of_der(authority).ok());
        // Files keep old authorities beside new ones.
        all.max_by_key(|validity| validity.not_after_unix_s).unwrap_or(Validity::ALWAYS)
    }

    fn authorities(&self, pem: &[u8]) -> Option<Authorities> {
        pem_certificates(pem).ok().map(|all| authorities(&all))
    }

    fn now_unix_s(&self) -> i64 {
        evergate_sys::wall_clock_s().cast_signed()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        // Opening a device may do something, so ask before; a pipe that took the file's place since is not waited for.
        let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        if !std::fs::metadata(path)?.is_file() {
            return Err(irregular());
        }
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(irregular());
        }
        let mut content = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
        if content.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is larger than 16 MiB"));
        }
        Ok(content)
    }

    fn lacks_client_source(&self) -> Option<String> {
        evergate_sys::missing_client_source().map(|missing| missing.to_string())
    }

    fn has_account(&self, user: &str, group: Option<&str>) -> bool {
        Account::named(user, group).is_ok()
    }

    fn may(&self, user: &str, group: Option<&str>, access: Access, path: &Path) -> bool {
        // An unknown answer is no finding.
        Account::named(user, group).and_then(|account| account.may(access, path)).unwrap_or(true)
    }

    fn is_file(&self, path: &Path) -> bool {
        path.is_file()
    }

    fn is_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn lacks_folder(&self, path: &Path) -> bool {
        // A folder that may not be inspected is no finding.
        let absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        std::fs::metadata(path).map_or_else(|error| absent(&error), |found| !found.is_dir())
    }

    #[cfg(unix)]
    fn is_pipe(&self, path: &Path) -> bool {
        use std::os::unix::fs::FileTypeExt;
        let is_other = |kind: std::fs::FileType| !kind.is_file() && !kind.is_dir() && !kind.is_char_device();
        std::fs::metadata(path).is_ok_and(|found| is_other(found.file_type()))
    }

    #[cfg(unix)]
    fn is_same_file(&self, one: &Path, other: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let inode = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
        match (inode(one), inode(other)) {
            (Ok(one), Ok(other)) => one == other,
            _ => resolved(one) == resolved(other),
        }
    }

    #[cfg(unix)]
    fn is_readable_by_all(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).is_ok_and(|m| m.mode() & 0o004 != 0)
    }

    #[cfg(not(unix))]
    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        // `localhost` is often both families while servers in development listen on IPv4 only.
        if addresses.iter().all(|a| a.ip().is_loopback()) {
            addresses.sort_by_key(SocketAddr::is_ipv6);
        }
        addresses.dedup();
        Ok(addresses)
    }

    fn resolve_all(&self, names: &[(&str, u16)]) -> Vec<io::Result<Vec<SocketAddr>>> {
        side_by_side(names, |(host, port)| self.resolve(host, *port))
    }
}

/// Host names that are looked up at a time.
const LOOKUPS_MAX: usize = 16;

/// Results for all items, up to [`LOOKUPS_MAX`] of them at a time. A name server that does not answer costs its timeout
/// once (10 s, unless resolv.conf sets another), not once per name.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take_turns = || -> Vec<(usize, R)> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let helper = |_| std::thread::Builder::new().spawn_scoped(scope, take_turns);
        // Without more threads this thread does all the work.
        let helpers: Vec<_> = (1..items.len().min(LOOKUPS_MAX)).map_while(|i| helper(i).ok()).collect();
        let mut all = take_turns();
        for helper in helpers {
            all.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, done)| done).collect()
}

/// The path with the links of its folder followed, for a file that need not be there.
fn resolved(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (std::fs::canonicalize(folder), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn names_are_looked_up_side_by_side_and_answered_in_their_order() {
        let (notify, reported) = channel();
        std::thread::spawn(move || {
            let together = Barrier::new(LOOKUPS_MAX); // one after the other they would wait for ever
            let names: Vec<usize> = (0..2 * LOOKUPS_MAX).collect();
            let found = side_by_side(&names, |name| {
                together.wait();
                name * 2
            });
            notify.send(found).unwrap();
        });
        let found = reported.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(found, (0..2 * LOOKUPS_MAX).map(|name| name * 2).collect::<Vec<_>>());
        assert!(side_by_side(&[], |name: &usize| *name).is_empty());
    }
}
