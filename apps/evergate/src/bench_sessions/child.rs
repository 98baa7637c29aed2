//! Child processes of the experiment: started, awaited, measured, and ended by their id.

use anyhow::{Context, Result, bail};
use evergate_sys::end_with_parent;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Limit of the wait for a child that starts.
const START_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
/// Last bytes of a child's messages in an error.
const SHOWN_BYTES: usize = 600;

/// Running child that listens on one address. It ends with this value, and with the thread that started it.
pub(super) struct Server {
    process: Child,
    messages: PathBuf,
    pub(super) address: SocketAddr,
}

impl Server {
    /// Starts a command, whose messages go to a file, and waits until it accepts connections.
    pub(super) fn start(command: &mut Command, messages: PathBuf, address: SocketAddr) -> Result<Server> {
        let program = command.get_program().to_string_lossy().into_owned();
        let file = File::create(&messages).with_context(|| format!("cannot write {}", messages.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = end_with_parent(command).spawn().with_context(|| format!("cannot start {program}"))?;
        let mut server = Server { process, messages, address };
        let until = Instant::now() + START_MAX;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.process.try_wait()? {
                bail!("{program} ended at once ({status}): {}", server.last_messages());
            }
            if Instant::now() > until {
                bail!("{program} does not listen on {address}: {}", server.last_messages());
            }
            std::thread::sleep(POLL);
        }
        // Another process may have taken the port meanwhile: then the child cannot listen, and ends.
        match server.process.try_wait()? {
            Some(status) => bail!("{program} ended at once ({status}): {}", server.last_messages()),
            None => Ok(server),
        }
    }

    /// CPU time of all its threads so far, user and system.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.process.id()));
        let read = || -> std::io::Result<u64> {
            let mut sum_ns = 0;
            for task in std::fs::read_dir(&tasks)? {
                // A thread may end between the two looks.
                let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
                sum_ns += running_ns(&text).unwrap_or(0);
            }
            Ok(sum_ns)
        };
        match read().with_context(|| format!("cannot read {}", tasks.display()))? {
            0 => bail!("{} has no CPU times: the kernel needs CONFIG_SCHED_INFO", tasks.display()),
            sum_ns => Ok(Duration::from_nanos(sum_ns)),
        }
    }

    fn last_messages(&self) -> String {
        let text = std::fs::read_to_string(&self.messages).unwrap_or_default();
        let text = text.trim();
        let mut from = text.len().saturating_sub(SHOWN_BYTES);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        if text.is_empty() { "without a message".to_owned() } else { text[from..].to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// First field of `schedstat`: the time that a thread ran, in nanoseconds; `stat` counts in ticks of 10 ms.
fn running_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Different ports of 127.0.0.1 that are free now.
pub(super) fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let bound: std::io::Result<Vec<TcpListener>> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect();
    let addresses = bound.context("no free ports on 127.0.0.1")?;
    addresses.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

/// Folder for configurations, keys and messages; removed with this value.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("evergate-bench-sessions-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Folder(path))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_that_ends_at_once_shows_its_message() {
        let path = std::env::temp_dir().join(format!("evergate-child-{}", std::process::id()));
        let address = free_addresses(1).unwrap()[0];
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such key >&2; exit 3"]);
        let error = Server::start(&mut command, path.clone(), address).err().unwrap().to_string();
        std::fs::remove_file(path).unwrap();
        assert!(error.contains("no such key") && error.contains("3"), "{error}");
    }

    #[test]
    fn cpu_time_is_the_first_field() {
        assert_eq!(running_ns("3829233 17 12\n"), Some(3_829_233));
        assert_eq!(running_ns(""), None);
        assert!(running_ns(&std::fs::read_to_string("/proc/self/schedstat").unwrap()).is_some());
    }
}
