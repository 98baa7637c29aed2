//! Socket addresses in the kernel's representation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A `sockaddr_storage` with its length.
pub(crate) struct Raw {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Raw {
    pub(crate) fn empty() -> Raw {
        // SAFETY: sockaddr_storage is plain data for which all zero bytes are a valid value.
        let storage = unsafe { std::mem::zeroed() };
        Raw { storage, length: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub(crate) fn new(address: SocketAddr) -> Raw {
        let mut raw = Raw::empty();
        match address {
            SocketAddr::V4(v4) => {
                let to: *mut libc::sockaddr_in = (&raw mut raw.storage).cast();
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is at least as large and as aligned as sockaddr_in.
                unsafe { to.write(value) };
                raw.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                let to: *mut libc::sockaddr_in6 = (&raw mut raw.storage).cast();
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: sockaddr_storage is at least as large and as aligned as sockaddr_in6.
                unsafe { to.write(value) };
                raw.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn pointer_mut(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.length)
    }

    pub(crate) fn length(&self) -> libc::socklen_t {
        self.length
    }

    /// The address; the unspecified IPv4 address for families that are not IP.
    pub(crate) fn address(&self) -> SocketAddr {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the kernel wrote a sockaddr_in, as the family states.
                let v4 = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port))
            }
            libc::AF_INET6 => {
                // SAFETY: the kernel wrote a sockaddr_in6, as the family states.
                let v6 = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                SocketAddr::new(IpAddr::V6(ip), u16::from_be(v6.sin6_port))
            }
            _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        }
    }
}
