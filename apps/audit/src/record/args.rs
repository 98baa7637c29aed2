//! Options of `record`.

use crate::cli::Failure;
use crate::record::feed::FeedListener;
use crate::record::link::Master;
use clap::Args;
use evergate_capture::Filter;
use evergate_evidence::statement::Partition;
use evergate_submission::{Identity, Trust, is_unix_path, parse_id};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MASTER_PORT: u16 = 7443;

/// Options of `record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Interface whose traffic is recorded
    #[arg(long, value_name = "IF", required_unless_present = "read")]
    pub interface: Option<String>,
    /// Record the packets of a pcap or pcapng file into a new store
    #[arg(long, value_name = "FILE", conflicts_with_all = ["interface", "part", "fanout", "require_wire", "outgoing"])]
    pub read: Option<PathBuf>,
    /// Folder of the record
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
    /// Part of the traffic, from 0: Recorders on several machines share the copies of a port
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = parse_part)]
    pub part: Partition,
    /// Fanout group: Recorders on one machine share the interface
    #[arg(long, value_name = "GROUP", conflicts_with = "part")]
    pub fanout: Option<u16>,
    /// Master that signs the record
    #[arg(long, value_name = "HOST[:PORT]")]
    pub master: Option<String>,
    /// Id of the Master's certificate: `evergate-audit identity --certificate FILE` prints it
    #[arg(long, value_name = "HEX", requires = "master", conflicts_with = "master_ca")]
    pub master_id: Option<String>,
    /// Authorities of the Master's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "master")]
    pub master_ca: Option<PathBuf>,
    /// Certificate of this Recorder, in PEM; the store's own otherwise
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// Key of this Recorder, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Where switches send sealed secrets and requests: path of a Unix socket, or ADDRESS:PORT for TLS
    #[arg(long, value_name = "SOCKET", conflicts_with = "read")]
    pub feed: Option<String>,
    /// Id of a switch that may connect by TLS; repeat it for each
    #[arg(long, value_name = "HEX", requires = "feed")]
    pub feed_switch: Vec<String>,
    /// Size of the capture ring
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=65536))]
    pub ring: u32,
    /// Most bytes kept of a packet; 0 keeps all
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub snaplen: u32,
    /// Record only frames for this machine
    #[arg(long)]
    pub no_promiscuous: bool,
    /// Record packets that this machine sends too: for the interface of a switch instead of a port with copies
    #[arg(long)]
    pub outgoing: bool,
    /// Refuse an interface that joins packets (GRO, LRO)
    #[arg(long)]
    pub require_wire: bool,
    /// Size at which a segment ends
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub segment: u32,
    /// Age at which a segment ends
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub segment_age: u32,
    /// Free space below which the oldest segments without a hold are deleted, beyond the 64 MiB below which packets are
    /// dropped; 0 deletes nothing; two segments by default
    #[arg(long, value_name = "MIB", conflicts_with = "read")]
    pub reserve: Option<u32>,
    /// Serve metrics for Prometheus on this address, such as 127.0.0.1:9311
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "read")]
    pub metrics: Option<SocketAddr>,
    /// End after this time
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
    /// Print the report at the end as JSON
    #[arg(long)]
    pub json: bool,
}

/// `I/N` as a part of the traffic.
fn parse_part(text: &str) -> Result<Partition, String> {
    let parts = text
        .split_once('/')
        .and_then(|(part, parts)| Partition::new(part.parse().ok()?, parts.parse().ok()?));
    parts.ok_or_else(|| "a part is I/N with I below N, such as 0/2 and 1/2".to_owned())
}

impl RecordArgs {
    /// The kernel's filter; `None` for all of the traffic.
    pub(crate) fn filter(&self) -> Option<Filter> {
        (self.part.parts > 1).then_some(Filter::Partition(self.part))
    }

    /// The kernel's filter in words; empty: all packets that the interface receives.
    pub(crate) fn filter_text(&self) -> String {
        let part = (self.part.parts > 1).then(|| format!("part {} of {}", self.part.part, self.part.parts));
        let outgoing = self.outgoing.then(|| "sent packets too".to_owned());
        part.into_iter().chain(outgoing).collect::<Vec<_>>().join(", ")
    }

    /// Whether the record has exactly the packets that the interface counts as received.
    pub(crate) fn is_whole(&self) -> bool {
        self.part.parts == 1 && self.fanout.is_none() && !self.outgoing
    }

    /// Files of the identity, if options name them.
    pub(crate) fn identity_files(&self) -> Option<(&Path, &Path)> {
        Some((self.certificate.as_deref()?, self.key.as_deref()?))
    }

    /// The Master of the options.
    pub(crate) fn master(&self) -> Result<Option<Master>, Failure> {
        let Some(host) = &self.master else { return Ok(None) };
        let trust = match (&self.master_id, &self.master_ca) {
            (Some(id), _) => {
                let id = parse_id(id).ok_or_else(|| {
                    Failure::wrong(format!(
                        "master: --master-id {id:?} is no id; it has 64 hexadecimal digits"
                    ))
                })?;
                Trust::Pinned(vec![id])
            }
            (None, Some(file)) => {
                let pem = std::fs::read(file);
                Trust::Authorities(pem.map_err(|error| {
                    Failure::wrong(format!(
                        "master: cannot read {}: {error}; correct --master-ca",
                        file.display()
                    ))
                })?)
            }
            (None, None) => {
                return Err(Failure::wrong(
                    "master: its certificate is not known; give --master-id or --master-ca",
                ));
            }
        };
        Ok(Some(Master { address: with_port(host), trust }))
    }

    /// The place where switches connect.
    pub(crate) fn feed_listener(&self, identity: &Identity) -> Result<Option<FeedListener>, Failure> {
        let Some(place) = &self.feed else { return Ok(None) };
        let listener = if is_unix_path(place) {
            FeedListener::unix(Path::new(place))
        } else {
            let ids = self.feed_switch.iter().map(|text| {
                let wrong = || {
                    format!("feed: --feed-switch {text:?} is no id; `evergate audit identity` prints that of a switch")
                };
                parse_id(text).ok_or_else(|| Failure::wrong(wrong()))
            });
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            if ids.is_empty() {
                return Err(Failure::wrong(
                    "feed: no switch may connect by TLS; give --feed-switch ID for each, or a Unix socket",
                ));
            }
            FeedListener::tls(place, identity, ids)
        };
        let listener = listener.map_err(|error| {
            Failure::wrong(format!(
                "feed: cannot listen at {place}: {error}; free it, or give another --feed"
            ))
        });
        listener.map(Some)
    }

    /// Bytes that deletions keep free; 0 for none.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        match self.read {
            Some(_) => 0,
            None => u64::from(self.reserve.unwrap_or(2 * self.segment)) << 20,
        }
    }

    /// Time after which the Recorder ends by itself.
    pub(crate) fn duration(&self) -> Option<Duration> {
        self.seconds.map(Duration::from_secs)
    }
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]`, `[ADDRESS]:PORT` or a bare IPv6 address, with a port.
pub(crate) fn with_port(host: &str) -> String {
    if host.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("[{host}]:{MASTER_PORT}");
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.to_owned() } else { format!("{host}:{MASTER_PORT}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_without_port_gets_the_default_one() {
        assert_eq!(with_port("audit.example"), "audit.example:7443");
        assert_eq!(with_port("10.0.0.1:99"), "10.0.0.1:99");
        assert_eq!(with_port("2001:db8::1"), "[2001:db8::1]:7443");
        assert_eq!(with_port("[2001:db8::1]"), "[2001:db8::1]:7443");
    }

    #[test]
    fn part_needs_a_number_below_the_count() {
        assert_eq!(parse_part("1/2"), Ok(Partition { part: 1, parts: 2 }));
        for text in ["2/2", "1", "a/b", "0/0", "-1/2"] {
            assert!(parse_part(text).is_err(), "{text}");
        }
    }
}
