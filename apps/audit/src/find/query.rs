//! Query over connections: options of the command line, the selection that a hold keeps of them, and the conditions.

use crate::find::address::EndFilter;
use crate::find::row::{Connection, address_bytes};
use crate::index::text_of;
use crate::when;
use evergate_evidence::hold::Selection;

/// Longest host name in bytes.
const SNI_BYTES_MAX: usize = 1024;

/// Options that select connections.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Selection (every given condition applies)")]
pub(crate) struct QueryArgs {
    /// Connections with packets at or after this time: RFC 3339, a date, -15m, "2h ago"
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// Connections with packets at or before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// Client: ADDRESS, ADDRESS/LENGTH, ADDRESS:PORT, [ADDRESS]/LENGTH:PORT or :PORT
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// Server, as --client
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// Host name of the ClientHello, or *.DOMAIN for all hosts of a domain
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Random of the ClientHello in hexadecimal digits, or its beginning
    #[arg(long, value_name = "HEX")]
    client_random: Option<String>,
    /// Id of a request: the switch's own, or the client's
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Number of the connection in its Recorder
    #[arg(long, value_name = "NUMBER")]
    connection: Option<u64>,
}

/// Conditions on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) client: Option<EndFilter>,
    pub(crate) server: Option<EndFilter>,
    pub(crate) sni: Option<SniFilter>,
    /// The first 1 to 32 bytes.
    pub(crate) client_random: Option<Vec<u8>>,
    /// Id in the form of the index.
    pub(crate) request_id: Option<String>,
    pub(crate) connection: Option<u64>,
}

/// Condition on the host name, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SniFilter {
    /// This name.
    Name(String),
    /// Names that end with this text, which begins with a dot.
    Domain(String),
}

impl QueryArgs {
    /// The selection in its one form: times in nanoseconds, prefixes with their length.
    pub(crate) fn selection(&self, now_ns: u64) -> Result<Selection, String> {
        let time = |text: &Option<String>| -> Result<Option<String>, String> {
            text.as_ref().map(|text| when::parse(text, now_ns).map(|ns| ns.to_string())).transpose()
        };
        let end = |text: &Option<String>| -> Result<Option<String>, String> {
            text.as_ref().map(|text| EndFilter::parse(text).map(|filter| filter.to_string())).transpose()
        };
        let selection = Selection {
            client: end(&self.client)?,
            client_random: self.client_random.as_ref().map(|hex| hex.trim().to_ascii_lowercase()),
            connection: self.connection,
            from_ns: time(&self.from)?,
            request_id: self.request_id.clone(),
            server: end(&self.server)?,
            sni: self.sni.as_ref().map(|name| name.trim().to_ascii_lowercase()),
            to_ns: time(&self.to)?,
        };
        Query::of(&selection)?;
        Ok(selection)
    }
}

impl Query {
    /// Every connection.
    pub(crate) fn all() -> Query {
        Query {
            from_ns: 0,
            to_ns: u64::MAX,
            client: None,
            server: None,
            sni: None,
            client_random: None,
            request_id: None,
            connection: None,
        }
    }

    /// The conditions of a selection.
    pub(crate) fn of(selection: &Selection) -> Result<Query, String> {
        let end = |text: &Option<String>| text.as_ref().map(|text| EndFilter::parse(text)).transpose();
        let (from_ns, to_ns) = selection.period().ok_or("a time of the selection is no number")?;
        if from_ns > to_ns {
            return Err(format!(
                "the period ends before it begins: {} is after {}",
                shown(from_ns),
                shown(to_ns)
            ));
        }
        Ok(Query {
            from_ns,
            to_ns,
            client: end(&selection.client)?,
            server: end(&selection.server)?,
            sni: selection.sni.as_ref().map(|name| SniFilter::parse(name)).transpose()?,
            client_random: selection.client_random.as_ref().map(|hex| parse_random(hex)).transpose()?,
            request_id: selection.request_id.as_ref().map(|id| text_of(id.as_bytes()).into_owned()),
            connection: selection.connection,
        })
    }

    /// Whether the index that helps most has 131,072 connections apart from the next.
    pub(crate) fn has_bucket_index(&self) -> bool {
        let has_net = |filter: &Option<EndFilter>| filter.is_some_and(|filter| filter.net.is_some());
        let is_keyed = self.client_random.is_some() || self.sni.is_some();
        self.connection.is_none() && (is_keyed || has_net(&self.client) || has_net(&self.server))
    }

    /// Whether a connection meets every condition but that on requests.
    pub(crate) fn matches(&self, connection: &Connection) -> bool {
        let is_end = |filter: &Option<EndFilter>, address, port| {
            filter.as_ref().is_none_or(|filter| {
                filter.range().is_none_or(|range| range.contains(&address_bytes(address)))
                    && filter.port.is_none_or(|wanted| wanted == port)
            })
        };
        let random = connection.client_random.as_ref().map_or(&[][..], |random| &random[..]);
        self.from_ns <= connection.last_ns
            && self.to_ns >= connection.first_ns
            && is_end(&self.client, connection.client.ip(), connection.client.port())
            && is_end(&self.server, connection.server.ip(), connection.server.port())
            && self.sni.as_ref().is_none_or(|filter| filter.matches(&connection.sni))
            && self.client_random.as_ref().is_none_or(|prefix| random.starts_with(prefix))
            && self.connection.is_none_or(|number| number == connection.number)
    }
}

impl SniFilter {
    fn parse(name: &str) -> Result<SniFilter, String> {
        let name = name.to_ascii_lowercase();
        if name.is_empty() || name.len() > SNI_BYTES_MAX {
            return Err("--sni: give a host name, or *.DOMAIN".into());
        }
        match name.strip_prefix('*') {
            Some(domain) if domain.len() > 1 && domain.starts_with('.') && !domain.contains('*') => {
                Ok(SniFilter::Domain(domain.to_owned()))
            }
            None if !name.contains('*') => Ok(SniFilter::Name(name)),
            _ => Err(format!("--sni: {name:?} has '*' elsewhere than in *.DOMAIN")),
        }
    }

    /// Whether a name of the index meets the condition.
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            SniFilter::Name(wanted) => wanted == name,
            SniFilter::Domain(domain) => name.ends_with(domain.as_str()),
        }
    }
}

fn shown(ns: u64) -> String {
    when::shown_ns(ns)
}

fn parse_random(hex: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("--client-random: {hex:?} is not 2 to 64 hexadecimal digits of an even number");
    if hex.is_empty()
        || hex.len() > 64
        || !hex.len().is_multiple_of(2)
        || !hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return Err(wrong());
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| wrong()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_keeps_every_option_in_one_form() {
        let args = QueryArgs {
            from: Some("2026-11-28".into()),
            to: Some("now".into()),
            client: Some("10.1.1.1/8".into()),
            sni: Some("*.Example.COM".into()),
            client_random: Some("ABCD".into()),
            ..QueryArgs::default()
        };
        let selection = args.selection(2_000_000_000_000_000_000).expect("valid");
        assert_eq!(selection.from_ns.as_deref(), Some("1795824000000000000"));
        assert_eq!(selection.client.as_deref(), Some("10.0.0.0/8"));
        let query = Query::of(&selection).expect("valid");
        assert_eq!(query.sni, Some(SniFilter::Domain(".example.com".into())));
        assert_eq!(query.client_random, Some(vec![0xab, 0xcd]));
    }

    #[test]
    fn wrong_options_are_refused() {
        let base = QueryArgs::default();
        for args in [
            QueryArgs { from: Some("now".into()), to: Some("-1h".into()), ..base.clone() },
            QueryArgs { sni: Some("a.*".into()), ..base.clone() },
            QueryArgs { sni: Some("*example.com".into()), ..base.clone() },
            QueryArgs { client_random: Some("abc".into()), ..base.clone() },
            QueryArgs { client: Some("host".into()), ..base },
        ] {
            assert!(args.selection(1 << 60).is_err(), "{args:?}");
        }
    }
}
