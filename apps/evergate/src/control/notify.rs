//! The service manager's notification protocol (sd_notify(3)): a datagram to the socket in `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where the service manager listens, if there is one.
#[derive(Debug)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl Notify {
    /// The socket from the environment; an unusable socket counts as none.
    pub(super) fn from_environment() -> Notify {
        Notify { to: std::env::var_os("NOTIFY_SOCKET").as_deref().and_then(open) }
    }

    /// Start has finished.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// Something has changed.
    pub(super) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}\n"));
    }

    /// A reload begins; [`Notify::ready`] ends it, whatever came of it.
    pub(super) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reloading\n"));
    }

    /// Another process is the service now, or this one again.
    pub(super) fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\n"));
    }

    /// The process is about to end.
    pub(super) fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}\n"));
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.to {
            // A manager that does not read must not hold the switch up.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

fn open(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
        [b'/', ..] => SocketAddr::from_pathname(name).ok()?,
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abstract_socket_receives_the_protocol() {
        let name = format!("evergate-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notify = Notify { to: open(OsStr::new(&format!("@{name}"))) };
        let mut buffer = [0; 256];
        let mut next = || {
            let length = manager.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        notify.ready("serving");
        assert_eq!(next(), "READY=1\nSTATUS=serving\n");
        notify.status("serving more");
        assert_eq!(next(), "STATUS=serving more\n");
        notify.reloading();
        let text = next();
        let microseconds = text.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
        assert!(text.starts_with("RELOADING=1\n") && microseconds.parse::<u64>().unwrap() > 0);
        notify.main_process(812);
        assert_eq!(next(), "MAINPID=812\n");
        notify.stopping("draining");
        assert_eq!(next(), "STOPPING=1\nSTATUS=draining\n");
        assert!(open(OsStr::new("relative")).is_none());
    }
}
