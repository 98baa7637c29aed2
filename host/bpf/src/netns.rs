//! Network namespaces for tests and demonstrations: a thread that lives in one.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace without a name, with a mount namespace and a BPF file system of its own. It is a thread; the
/// namespace and all in it is gone when the last thread, process or socket of it is, so there is nothing to clean up, also
/// after a crash.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
}

impl Namespace {
    /// A new one, with the loopback interface up. Needs root.
    pub fn new() -> io::Result<Namespace> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new().name("netns".into()).spawn(move || {
            let made = enter();
            let alive = made.is_ok();
            // SAFETY: no pointers are passed.
            let id = unsafe { libc::gettid() };
            let _ = ready.send(made.map(|()| id));
            if alive {
                inbox.iter().for_each(|job| job());
            }
        })?;
        let thread_id =
            started.recv().map_err(|_| io::Error::other("the thread of a network namespace ended"))??;
        let namespace = Namespace { jobs: Some(jobs), thread: Some(thread), thread_id };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Runs `job` inside and waits for it. A panic of the job is a panic here.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (done, result) = mpsc::channel();
        let job = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            let _ = done.send(outcome);
        };
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Box::new(job));
        }
        match result.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!("the thread of a network namespace ended"),
        }
    }

    /// Starts a thread inside.
    pub fn spawn<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        // A thread inherits the namespaces of the one that starts it.
        self.run(move || std::thread::spawn(job))
    }

    /// Runs `ip` with these arguments inside.
    pub fn ip(&self, arguments: &str) -> io::Result<()> {
        let arguments = arguments.to_owned();
        self.run(move || {
            let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
            if output.status.success() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("ip {arguments}: {}", text.trim())))
        })
    }

    /// Sets a variable below /proc/sys inside.
    pub fn sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        let (path, value) = (format!("/proc/sys/{}", name.replace('.', "/")), value.to_owned());
        self.run(move || std::fs::write(path, value))
    }

    /// A pair of Ethernet cards, `ours` here and `theirs` in `other`, both up.
    pub fn connect(&self, ours: &str, our_mac: &str, other: &Namespace, theirs: &str) -> io::Result<()> {
        self.ip(&format!(
            "link add {ours} address {our_mac} type veth peer name {theirs} netns {}",
            other.thread_id
        ))?;
        self.ip(&format!("link set {ours} up"))?;
        other.ip(&format!("link set {theirs} up"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn enter() -> io::Result<()> {
    // SAFETY: no pointers are passed; only the calling thread changes its namespaces.
    if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: terminated strings; no data. What is mounted here from now on is seen here only.
    let result =
        unsafe { libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    crate::pins::mount(Path::new("/sys/fs/bpf"))
}
