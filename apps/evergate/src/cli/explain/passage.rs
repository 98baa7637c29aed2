//! A whole connection, to a listener that reads no requests.

use super::{Answer, CLIENT_PORT, Wrong, decided};
use crate::cli::ExplainArgs;
use evergate_config::Config;
use evergate_config::model::{Listener, Protocol};
use evergate_rules::{Explanation, Request, TlsFacts};
use std::net::SocketAddr;

/// The decision on a connection with these addresses and this hello.
pub(super) fn answer(args: &ExplainArgs, config: &Config) -> Result<Answer, Wrong> {
    let wanted = args.listener.as_deref().unwrap_or_default();
    let raw = |listener: &&Listener| listener.protocol.is_raw();
    let found = config.listeners.iter().filter(raw).find(|listener| listener.name == wanted);
    let listener = found.ok_or_else(|| {
        let names: Vec<&str> =
            config.listeners.iter().filter(raw).map(|listener| listener.name.as_str()).collect();
        Wrong::Usage(match names.is_empty() {
            true => "every listener reads requests: give one with --request".to_owned(),
            false => format!(
                "no listener {wanted:?} routes whole connections; these do: {}. For requests give --request",
                names.join(", ")
            ),
        })
    })?;
    let hello = [args.sni.is_some(), args.alpn.is_some(), args.tls_version.is_some()];
    if listener.protocol == Protocol::Tcp && hello.contains(&true) {
        return Err(Wrong::Usage(format!(
            "listener \"{wanted}\" reads no byte: leave --sni, --alpn and --tls-version out"
        )));
    }
    let version = if args.tls_version.as_deref() == Some("1.2") { "TLSv1.2" } else { "TLSv1.3" };
    let sni = args.sni.as_deref().filter(|name| !name.is_empty()).map(str::to_ascii_lowercase);
    let facts = TlsFacts {
        sni: sni.as_deref(),
        alpn: args.alpn.as_deref().filter(|names| !names.is_empty()),
        version,
        client_subject: args.client_subject.as_deref(),
    };
    let client = SocketAddr::new(args.client.0, args.client.1.unwrap_or(CLIENT_PORT));
    let tls = (listener.protocol != Protocol::Tcp).then_some(facts);
    let request = Request::of_connection(&listener.name, client, super::local(args, listener), tls);
    let Explanation { rules, .. } = config.rules.ruleset.explain(&request);
    let path = sni.as_ref().map_or_else(String::new, |name| format!("for {name} "));
    let mut answer = Answer {
        listener: listener.name.clone(),
        host: sni.clone().unwrap_or_default(),
        path,
        rules,
        ..Answer::default()
    };
    decided(config, listener, &request, &mut answer);
    Ok(answer)
}
