//! Addresses as people write them: `:443`, `0.0.0.0:443`, `[::1]:443`, `app.internal:8080`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::model::ListenAddress;

/// Why an address is not one, and how to write it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) what: String,
    pub(crate) remedy: String,
}

fn wrong<T>(what: impl Into<String>, remedy: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { what: what.into(), remedy: remedy.into() })
}

/// An address to listen on.
pub(crate) fn listen(text: &str) -> Result<ListenAddress, Wrong> {
    let (host, port) = split(text, "")?;
    if host.is_empty() {
        return Ok(ListenAddress::any(port));
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        of_one_machine(ip)?;
        return Ok(ListenAddress { socket: SocketAddr::new(ip, port), both_families: false });
    }
    match host {
        "*" => wrong("`*` is not an address", format!("write `:{port}` for all addresses of IPv4 and IPv6")),
        "localhost" => wrong(
            "a listener binds an address, not a host name",
            format!("write `127.0.0.1:{port}` to listen for this machine only"),
        ),
        _ => wrong(
            format!("a listener binds an address, not the host name `{host}`"),
            format!("write `:{port}` for all addresses, or one IP address of this machine"),
        ),
    }
}

impl ListenAddress {
    /// Whether one of two addresses takes connections that the other one would take: the kernel lets only sockets that
    /// share listen on both.
    pub fn meets(self, other: ListenAddress) -> bool {
        let (one, two) = (self.socket.ip(), other.socket.ip());
        self.socket.port() == other.socket.port() && (one == two || self.takes(two) || other.takes(one))
    }

    /// Whether connections to `ip` come here because all addresses do, of its family at least.
    fn takes(self, ip: IpAddr) -> bool {
        let of_family = self.socket.is_ipv4() == ip.is_ipv4();
        self.socket.ip().is_unspecified() && (of_family || self.both_families)
    }
}

/// The host of a server, not resolved yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Host<'t> {
    Ip(IpAddr),
    Name(&'t str),
}

/// Host and port of a server.
pub(crate) fn server(text: &str) -> Result<(Host<'_>, u16), Wrong> {
    let (host, port) = split(text, "127.0.0.1")?;
    if host.is_empty() {
        return wrong(
            "the address has no host",
            format!("write the server's host, such as `127.0.0.1:{port}`"),
        );
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        if ip.is_unspecified() {
            let remedy = format!("write the address to connect to, such as `127.0.0.1:{port}`");
            return wrong(format!("`{ip}` means \"all addresses\"; it cannot be connected to"), remedy);
        }
        of_one_machine(ip)?;
        return Ok((Host::Ip(ip), port));
    }
    if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return wrong(
            format!("`{host}` is not an IPv4 address"),
            "write four numbers from 0 to 255 with dots between",
        );
    }
    if !is_host_name(host) {
        let remedy = "write a name of letters, digits, hyphens and dots, such as `app.internal:8080`";
        return wrong(format!("`{host}` is neither an IP address nor a host name"), remedy);
    }
    Ok((Host::Name(host), port))
}

/// Refuses addresses that TCP cannot have at either end of a connection, so that a start does not fail, nor every
/// request.
fn of_one_machine(ip: IpAddr) -> Result<(), Wrong> {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    match ip {
        _ if ip.is_multicast() || is_broadcast => wrong(
            format!("`{ip}` is the address of many machines at once"),
            "write the address of one machine",
        ),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => wrong(
            format!("`{ip}` is a link-local address, which means nothing without an interface"),
            NO_INTERFACE,
        ),
        _ => Ok(()),
    }
}

/// Remedy for an address with a zone.
const NO_INTERFACE: &str = "use an address that needs no interface, such as one of fd00::/8 or a global one";

/// Splits host and port. `host_example` completes remedies.
fn split<'t>(text: &'t str, host_example: &str) -> Result<(&'t str, u16), Wrong> {
    no_other_form(text, host_example)?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => in_brackets(rest)?,
        None => without_brackets(text)?,
    };
    let shown = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let Some(port) = port.strip_prefix(':') else {
        if !host.is_empty() && host.bytes().all(|b| b.is_ascii_digit()) {
            let remedy = format!("write `{host_example}:{host}`");
            return wrong("the address has no colon before its port", remedy);
        }
        let remedy = format!("add the port: `{shown}:8080`, or the port that is meant");
        return wrong("the address has no port", remedy);
    };
    if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return wrong(format!("the port `{port}` is not a number"), format!("write it like `{shown}:8080`"));
    }
    match port.parse::<u16>() {
        Ok(0) => wrong(
            "port 0 means \"any free port\", which no client could find",
            "choose a port from 1 to 65535",
        ),
        Ok(port) => Ok((host, port)),
        Err(_) => wrong(format!("the port {port} does not exist"), "choose a port from 1 to 65535"),
    }
}

/// Refuses anything but a host with a port: URLs, paths, unix sockets, zones.
fn no_other_form(text: &str, host_example: &str) -> Result<(), Wrong> {
    if text.is_empty() {
        return wrong("the address is empty", format!("write it like `{host_example}:8080`"));
    }
    if text.trim() != text {
        return wrong("the address has white space around it", format!("write `{}`", text.trim()));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let bare = rest.split('/').next().unwrap_or_default();
        let tls = if scheme == "https" {
            "; TLS is switched on by the protocol of a listener or the table `[pools.tls]`"
        } else {
            ""
        };
        return wrong("the address is a URL", format!("write host and port only: `{bare}`{tls}"));
    }
    if text.starts_with("unix:") || text.starts_with(['/', '@']) {
        let remedy = format!("let the other side use TCP, such as `{host_example}:8080`");
        return wrong("unix sockets are not supported", remedy);
    }
    if let Some((before, zone)) = text.split_once('%') {
        let name = zone.split([']', ':']).next().unwrap_or_default();
        if before.trim_start_matches('[').parse::<Ipv6Addr>().is_ok() {
            return wrong(format!("IPv6 zones (`%{name}`) are not supported"), NO_INTERFACE);
        }
    }
    if let Some((bare, _)) = text.split_once('/') {
        let remedy = format!("write host and port only: `{bare}`; rules look at paths");
        return wrong("the address has a path", remedy);
    }
    Ok(())
}

/// Host, and port with its colon, of what follows on an opening bracket.
fn in_brackets(rest: &str) -> Result<(&str, &str), Wrong> {
    match rest.split_once(']') {
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => Ok((host, port)),
        Some((host, _)) => {
            wrong(format!("`{host}` is not an IPv6 address"), "only IPv6 addresses stand in brackets")
        }
        None => wrong("the bracket is not closed", "write an IPv6 address like `[::1]:8080`"),
    }
}

/// Host, and port with its colon if there is one.
fn without_brackets(text: &str) -> Result<(&str, &str), Wrong> {
    const NEEDS_BRACKETS: &str = "an IPv6 address with a port needs brackets";
    if text.parse::<Ipv6Addr>().is_ok() {
        if let Some((host, port)) = text.rsplit_once(':')
            && host.parse::<Ipv6Addr>().is_ok()
            && port.parse::<u16>().is_ok_and(|port| port > 0)
        {
            let remedy = format!("write `[{host}]:{port}`, or `[{text}]:443` with the port that is meant");
            return wrong(NEEDS_BRACKETS, remedy);
        }
        let remedy = format!("write `[{text}]:443`, with the port that is meant");
        return wrong("an IPv6 address needs brackets and a port", remedy);
    }
    let at = text.rfind(':').unwrap_or(text.len());
    let (host, port) = text.split_at(at);
    if host.contains(':') {
        return wrong(NEEDS_BRACKETS, format!("write `[{host}]{port}`"));
    }
    Ok((host, port))
}

/// Whether the text is a host name: labels of 1 to 63 letters, digits, hyphens and underscores (RFC 1123;
/// underscores occur in service names).
pub(crate) fn is_host_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_port_listens_on_both_families_and_address_on_its_own() {
        assert_eq!(listen(":443").unwrap(), ListenAddress::any(443));
        assert_eq!(listen(":443").unwrap().ipv4_fallback(), Some("0.0.0.0:443".parse().unwrap()));
        for text in ["0.0.0.0:443", "[::]:443", "127.0.0.1:8080"] {
            let address = listen(text).unwrap();
            assert_eq!(address, ListenAddress { socket: text.parse().unwrap(), both_families: false });
        }
    }

    #[test]
    fn a_server_is_an_ip_or_a_name() {
        assert_eq!(server("[::1]:80"), Ok((Host::Ip("::1".parse().unwrap()), 80)));
        assert_eq!(server("app_1.internal:80"), Ok((Host::Name("app_1.internal"), 80)));
    }

    #[test]
    fn a_wrong_address_comes_with_the_right_one() {
        for (text, remedy) in [
            ("8080", "`127.0.0.1:8080`"),
            ("::1", "write `[::1]:443`"),
            ("::1:80", "write `[::1]:80`"),
            ("2001:db8::5:8080", "write `[2001:db8::5]:8080`, or `[2001:db8::5:8080]:443`"),
            ("fe80::1:beef", "write `[fe80::1:beef]:443`"),
            ("fe80:::80", "`[fe80::]:80`"),
            ("http://app:80/x", "`app:80`"),
            ("app", "`app:8080`"),
            ("app:0", "1 to 65535"),
            ("app:65536", "1 to 65535"),
            ("app:http", "`app:8080`"),
            ("[::1]", "`[::1]:8080`"),
            ("[::1", "`[::1]:8080`"),
            ("[app]:80", "only IPv6"),
            ("unix:/run/app.sock", "TCP"),
            ("/run/app.sock", "TCP"),
            ("[fe80::1%eth0]:80", "no interface"),
            ("fe80::1%eth0", "no interface"),
            ("[fe80::1]:80", "no interface"),
            ("224.0.0.1:80", "of one machine"),
            ("[ff02::1]:80", "of one machine"),
            ("255.255.255.255:80", "of one machine"),
            (":80", "`127.0.0.1:80`"),
            ("0.0.0.0:80", "`127.0.0.1:80`"),
            ("1.2.3.400:80", "0 to 255"),
            ("a b:80", "letters"),
            (" a:80", "`a:80`"),
            ("", "`127.0.0.1:8080`"),
        ] {
            let wrong = server(text).unwrap_err();
            assert!(wrong.remedy.contains(remedy), "{text}: {wrong:?}");
        }
        assert!(listen("[fe80::1]:80").unwrap_err().remedy.contains("no interface"));
        assert!(listen("224.0.0.1:80").unwrap_err().remedy.contains("of one machine"));
        assert!(listen("*:80").unwrap_err().remedy.contains("`:80`"));
        assert!(listen("8443").unwrap_err().remedy.contains("`:8443`"));
        assert!(listen("localhost:80").unwrap_err().remedy.contains("`127.0.0.1:80`"));
        assert!(listen("example.com:80").unwrap_err().remedy.contains("`:80`"));
    }
}
