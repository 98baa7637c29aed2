//! Connection of a simulated client: the listener of its URL, and the result of their handshake.

use super::{Url, Wrong};
use crate::cli::ExplainArgs;
use evergate_config::Config;
use evergate_config::model::{ClientCertificates, Listener, TlsVersion};
use std::net::{IpAddr, SocketAddr};

const HTTP: &str = "http/1.1";

/// The listener by its name, or the first that fits scheme and port, or fits the scheme, or reads requests at all; with
/// a word where the URL leads to none.
pub(super) fn listener<'c>(
    args: &ExplainArgs,
    config: &'c Config,
    url: &Url<'_>,
) -> Result<(&'c Listener, Option<String>), Wrong> {
    let readers: Vec<&Listener> =
        config.listeners.iter().filter(|listener| listener.protocol.is_http()).collect();
    if let Some(name) = &args.listener {
        let found = readers.iter().find(|listener| listener.name == *name);
        return found.map(|listener| (*listener, None)).ok_or_else(|| {
            let names = readers.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>().join(", ");
            Wrong::Usage(format!("no listener {name:?} reads requests; those that do: {names}"))
        });
    }
    let first = readers.first().copied();
    let first =
        first.ok_or_else(|| Wrong::Usage("the configuration has no https or http listener".to_owned()));
    let Some(scheme) = url.scheme else { return Ok((first?, None)) };
    let port = url.port();
    let of_scheme = |listener: &&&Listener| listener.protocol.as_str() == scheme;
    let both = |listener: &&&Listener| of_scheme(listener) && listener.address.socket.port() == port;
    if let Some(found) = readers.iter().find(both) {
        return Ok((found, None));
    }
    let (taken, why) = match readers.iter().find(of_scheme) {
        Some(found) => (*found, format!("the first with {scheme}")),
        None => (first?, "the first that reads requests".to_owned()),
    };
    let note = format!(
        "no {scheme} listener has port {port}; this is for listener \"{}\" on {}, {why}: --listener names another",
        taken.name, taken.address
    );
    Ok((taken, Some(note)))
}

/// The address and the port that the client connects to.
pub(super) fn local(args: &ExplainArgs, listener: &Listener) -> SocketAddr {
    let bound = listener.address.socket;
    match args.local {
        Some((ip, port)) => SocketAddr::new(ip, port.unwrap_or(bound.port())),
        None => bound,
    }
}

/// Result of a handshake between client and listener.
pub(super) struct Handshake {
    pub(super) client_subject: Option<String>,
    pub(super) sni: Option<String>,
    pub(super) alpn: Option<&'static str>,
    pub(super) version: &'static str,
}

/// The handshake of a client that uses HTTP/1.1 and the newest version of the listener, unless the arguments differ;
/// `None` without TLS. `host`: the request's host.
pub(super) fn handshake(
    args: &ExplainArgs,
    config: &Config,
    listener: &Listener,
    url: &Url<'_>,
    host: &str,
) -> Result<Option<Handshake>, Wrong> {
    let Some(tls) = &listener.tls else {
        let given = [args.sni.is_some(), args.tls_version.is_some(), args.client_subject.is_some()];
        return match given.contains(&true) {
            true => Err(Wrong::Usage(format!(
                "listener \"{}\" has no TLS: leave --sni, --tls-version and --client-subject out",
                listener.name
            ))),
            false => Ok(None),
        };
    };
    let settings = config.tls_settings(tls.settings);
    let version = match args.tls_version.as_deref() {
        None => settings.max_version,
        Some("1.2") => TlsVersion::V1_2,
        Some(_) => TlsVersion::V1_3,
    };
    if !(settings.min_version..=settings.max_version).contains(&version) {
        let (name, newest) = (&listener.name, shown(settings.max_version));
        let offered = shown(version);
        return Err(Wrong::Usage(format!(
            "listener \"{name}\" does not take {offered}, so a client without another version gets no connection; \
             the newest that it takes is {newest}"
        )));
    }
    match (settings.client_certificates, &args.client_subject) {
        (ClientCertificates::Required, None) => {
            return Err(Wrong::Usage(format!(
                "listener \"{}\" requires a certificate, so a client without one gets no connection: give its \
                 subject with --client-subject",
                listener.name
            )));
        }
        (ClientCertificates::None, Some(_)) => {
            return Err(Wrong::Usage(format!(
                "listener \"{}\" asks for no certificates: leave --client-subject out",
                listener.name
            )));
        }
        _ => {}
    }
    let dialled = if url.scheme.is_some() { url.host() } else { host };
    let sni = match &args.sni {
        Some(name) => Some(name.as_str()).filter(|name| !name.is_empty()),
        // An address is no server name (RFC 6066 section 3).
        None => Some(dialled.trim_end_matches('.')).filter(|name| !is_address(name)),
    };
    Ok(Some(Handshake {
        client_subject: args.client_subject.clone(),
        sni: sni.map(str::to_ascii_lowercase),
        alpn: settings.alpn.iter().any(|name| name == HTTP).then_some(HTTP),
        version: shown(version),
    }))
}

fn shown(version: TlsVersion) -> &'static str {
    match version {
        TlsVersion::V1_2 => "TLSv1.2",
        TlsVersion::V1_3 => "TLSv1.3",
    }
}

fn is_address(host: &str) -> bool {
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}
