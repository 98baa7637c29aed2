//! Network interfaces: index, link type, state, MTU.

use crate::error::CaptureError;
use crate::ethtool::{self, Offloads};
use crate::sockopt::{check, socket};
use crate::statistics::{self, InterfaceStatistics};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// An interface of the caller's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// The interface of this name.
    pub fn named(name: &str) -> Result<Interface, CaptureError> {
        let missing = || CaptureError::NoInterface(name.to_owned());
        let text = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the name is a terminated string.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 || name.len() >= libc::IFNAMSIZ {
            return Err(missing());
        }
        Ok(Interface { name: name.to_owned(), index })
    }

    /// Its name when it was looked up.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether the interface still exists, perhaps under another name.
    pub fn exists(&self) -> bool {
        let mut name = [0; libc::IFNAMSIZ];
        // SAFETY: the buffer has the size that the call demands.
        !unsafe { libc::if_indextoname(self.index, name.as_mut_ptr()) }.is_null()
    }

    /// Errors if its frames have no Ethernet header or if it is down. The loopback interface passes: its frames have
    /// Ethernet headers.
    pub fn check(&self) -> Result<(), CaptureError> {
        // SAFETY: the address is the variant that the kernel filled in.
        let kind = unsafe { self.ask(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr.sa_family };
        if kind != libc::ARPHRD_ETHER && kind != libc::ARPHRD_LOOPBACK {
            return Err(CaptureError::NotEthernet { name: self.name.clone(), kind });
        }
        if self.is_up()? { Ok(()) } else { Err(CaptureError::Down(self.name.clone())) }
    }

    /// Whether it is administratively up.
    pub fn is_up(&self) -> Result<bool, CaptureError> {
        // SAFETY: the flags are the variant that the kernel filled in.
        let flags = unsafe { self.ask(libc::SIOCGIFFLAGS)?.ifr_ifru.ifru_flags };
        Ok(i32::from(flags) & libc::IFF_UP != 0)
    }

    /// Its MTU.
    pub fn mtu(&self) -> Result<u32, CaptureError> {
        // SAFETY: the MTU is the variant that the kernel filled in.
        let mtu = unsafe { self.ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu };
        Ok(u32::try_from(mtu).unwrap_or(0))
    }

    /// Its counters, all of one moment.
    pub fn statistics(&self) -> Result<InterfaceStatistics, CaptureError> {
        statistics::read(self.index)
            .map_err(CaptureError::kernel(format!("reading counters of {}", self.name)))
    }

    /// Its offloads that join packets.
    pub fn offloads(&self) -> Result<Offloads, CaptureError> {
        ethtool::offloads(self).map_err(CaptureError::kernel(format!("reading features of {}", self.name)))
    }

    /// Sends one request about this interface to the kernel.
    fn ask(&self, request: libc::c_ulong) -> Result<libc::ifreq, CaptureError> {
        let ask = || {
            let socket = control_socket()?;
            let mut question = self.question();
            // SAFETY: the requests of this file read the name and write one variant of the union.
            check(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut question) })?;
            Ok(question)
        };
        ask().map_err(|error: io::Error| match error.raw_os_error() {
            Some(libc::ENODEV) => CaptureError::Gone(self.name.clone()),
            _ => CaptureError::kernel(format!("asking for the state of {}", self.name))(error),
        })
    }

    /// A request with the interface's name.
    pub(crate) fn question(&self) -> libc::ifreq {
        // SAFETY: ifreq is plain data for which all zero bytes are a valid value.
        let mut question: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = libc::IFNAMSIZ - 1;
        for (to, from) in question.ifr_name[..room].iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        question
    }
}

/// A socket for requests about interfaces.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
}
