//! Network namespaces for tests and demonstrations: a thread that lives in one, and what joins several to a network.
//!
//! No crate of the daemon's library depends on this one. Unsafe code: the calls that enter namespaces.

#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with a mount namespace and a BPF file system of its own. It is a thread; the namespace and all
/// in it is gone when the last thread, process or socket of it is. Without a name there is nothing to clean up, also
/// after a crash; a name goes with this value, and stays behind only when the process is killed.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
    name: Option<String>,
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
        let namespace = Namespace { jobs: Some(jobs), thread: Some(thread), thread_id, name: None };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// A new one that `ip netns` knows by this name as long as this value lives.
    pub fn named(name: &str) -> io::Result<Namespace> {
        let mut namespace = Namespace::new()?;
        ip(&format!("netns attach {name} {}", namespace.thread_id))?;
        namespace.name = Some(name.to_owned());
        Ok(namespace)
    }

    /// Takes away a name that a killed process left behind.
    pub fn forget(name: &str) -> io::Result<()> {
        ip(&format!("netns delete {name}"))
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
        self.run(move || ip(&arguments))
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

    /// Makes a bridge here that has an address itself.
    pub fn bridge(&self, name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.ip(&format!("link add {name} type bridge"))?;
        self.ip(&format!("link set {name} up"))?;
        self.ip(&format!("addr add {address}/{prefix} dev {name}"))
    }

    /// Puts a card of this namespace into a bridge.
    pub fn plug(&self, card: &Card<'_>, switch: &Namespace, bridge: &str) -> io::Result<()> {
        self.connect(card.name, card.mac, switch, card.port)?;
        self.ip(&format!("addr add {}/{} dev {}", card.address, card.prefix, card.name))?;
        switch.ip(&format!("link set {} master {bridge}", card.port))
    }
}

/// A network card.
#[derive(Clone, Copy, Debug)]
pub struct Card<'a> {
    /// Its name in its own namespace.
    pub name: &'a str,
    /// Its Ethernet address.
    pub mac: &'a str,
    /// The name of its other end, in the namespace of the bridge.
    pub port: &'a str,
    /// Its address.
    pub address: IpAddr,
    /// How many bits of that are its network's.
    pub prefix: u8,
}

fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {arguments}: {}", text.trim())))
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let _ = Namespace::forget(&name);
        }
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
    let (kind, folder) = (c"bpf".as_ptr(), c"/sys/fs/bpf".as_ptr());
    // SAFETY: terminated strings; a BPF file system takes no data.
    let result = unsafe { libc::mount(kind, folder, kind, 0, std::ptr::null()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
