//! Tests of the assembly of a generation, and of the state that a refused reload leaves alone.

use super::*;
use crate::upgrade::{adopt_servers, offered_servers, prefer_known};
use evergate_config::{World, parse_with};
use std::io;
use std::net::SocketAddr;

/// A machine without files, where every name has these addresses.
struct Bare(&'static [u8]);

impl World for Bare {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.iter().map(|last| SocketAddr::from(([10, 9, 9, *last], port))).collect())
    }
}

fn config(text: &str) -> Config {
    config_where(text, &[9])
}

fn config_where(text: &str, addresses: &'static [u8]) -> Config {
    match parse_with(text, "test.toml", Path::new("/"), &Bare(addresses)) {
        Ok(loaded) => loaded.config,
        Err(problems) => panic!("{problems:?}"),
    }
}

fn assembled(text: &str, previous: Option<&Generation>, keep: &mut CarriedState) -> Arc<Generation> {
    assemble(&config(text), previous, keep).unwrap().generation
}

fn listener(name: &str, port: u16, protocol: &str, pool: &str) -> String {
    format!(
        "[[listeners]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\nprotocol = \"{protocol}\"\npool = \
         \"{pool}\"\n"
    )
}

fn pool(name: &str, servers: &str, tls: &str) -> String {
    format!("[[pools]]\nname = \"{name}\"\nservers = [{servers}]\ntls = {{ verify = false{tls} }}\n")
}

#[test]
fn server_name_is_the_own_host_unless_configured() {
    let servers =
        "{ address = \"one.internal:1\" }, { address = \"two.internal:2\" }, { address = \"10.0.0.1:3\" }";
    let names = |tls: &str| -> Vec<String> {
        let text = listener("in", 1, "http", "web") + &pool("web", servers, tls);
        let generation = assembled(&text, None, &mut CarriedState::default());
        let name = |server: &Server| server.tls_name.as_ref().unwrap().to_str().into_owned();
        generation.snapshot.pools[0].servers.iter().map(name).collect()
    };
    assert_eq!(names(""), ["one.internal", "two.internal", "10.0.0.1"]);
    assert_eq!(names(", server_name = \"app.internal\""), ["app.internal"; 3]);
}

#[test]
fn alpn_offers_http_unless_only_raw_listeners_use_the_pool() {
    let server = "{ address = \"10.0.0.1:1\" }";
    let mut text = String::new();
    for name in ["raw", "web", "both", "ruled"] {
        text += &pool(name, server, "");
    }
    text += &listener("a", 1, "tcp", "raw");
    text += &listener("b", 2, "http", "web");
    text += &listener("c", 3, "http", "both");
    text += &listener("d", 4, "tcp", "both");
    text += &listener("e", 5, "tcp", "ruled");
    text += "[[rules]]\nname = \"r\"\nwhen = 'path == \"/\"'\nroute = \"ruled\"\n";
    let generation = assembled(&text, None, &mut CarriedState::default());
    for (pool, offers) in generation.snapshot.pools.iter().zip([false, true, true, true]) {
        let offered = &pool.tls.as_ref().unwrap().config.alpn_protocols;
        assert_eq!(!offered.is_empty(), offers, "{}: {offered:?}", pool.name);
    }
}

/// Read again while the names have these addresses, and assembled as a reload does it.
fn reloaded(
    text: &str,
    addresses: &'static [u8],
    before: &Generation,
    keep: &mut CarriedState,
) -> Arc<Generation> {
    let mut config = config_where(text, addresses);
    prefer_known(&mut config, &offered_servers(before));
    assemble(&config, Some(before), keep).unwrap().generation
}

const NAMED: &str = "[[pools]]\nname = \"web\"\nservers = [{ address = \"app.internal:80\" }]\n";

#[test]
fn server_is_the_same_while_its_host_has_the_address_in_use() {
    let text = listener("in", 1, "http", "web") + NAMED;
    let mut keep = CarriedState::default();
    let first = assemble(&config_where(&text, &[7, 200]), None, &mut keep).unwrap().generation;
    for addresses in [&[200, 7][..], &[200, 7, 9], &[9, 7], &[7]] {
        let next = reloaded(&text, addresses, &first, &mut keep);
        assert!(Arc::ptr_eq(&first.pools[0].servers[0], &next.pools[0].servers[0]), "{addresses:?}");
    }
    let other = reloaded(&text, &[200, 9], &first, &mut keep);
    assert_ne!(first.pools[0].servers[0].id, other.pools[0].servers[0].id);
    assert_eq!(other.pools[0].servers[0].address().ip().to_string(), "10.9.9.200");
}

#[test]
fn drained_server_stays_drained_at_another_address() {
    let text = listener("in", 1, "http", "web") + NAMED;
    let mut keep = CarriedState::default();
    let first = assembled(&text, None, &mut keep);
    first.pools[0].servers[0].draining.store(true, Ordering::Relaxed);
    let other = reloaded(&text, &[1], &first, &mut keep);
    assert!(other.pools[0].servers[0].draining.load(Ordering::Relaxed));
}

#[test]
fn successor_adopts_and_prefers_the_address_in_use() {
    let text = listener("in", 1, "http", "web") + NAMED;
    let start = |addresses: &'static [u8], before: &Generation| {
        let (mut config, known) = (config_where(&text, addresses), offered_servers(before));
        prefer_known(&mut config, &known);
        let generation = assemble(&config, None, &mut CarriedState::default()).unwrap().generation;
        adopt_servers(&generation, &known);
        generation.pools[0].servers[0].clone()
    };
    let before = assemble(&config_where(&text, &[7, 200]), None, &mut CarriedState::default()).unwrap();
    let server = &before.generation.pools[0].servers[0];
    server.healthy.store(false, Ordering::Relaxed);
    server.draining.store(true, Ordering::Relaxed);
    for (addresses, healthy) in [(&[200, 7][..], false), (&[200], true)] {
        let adopted = start(addresses, &before.generation);
        assert_eq!(adopted.address() == server.address(), !healthy);
        assert_eq!(adopted.healthy.load(Ordering::Relaxed), healthy, "{addresses:?}");
        assert!(adopted.draining.load(Ordering::Relaxed));
    }
}

#[test]
fn generation_is_independent_of_the_resolver_order() {
    let text = listener("in", 1, "http", "web") + NAMED;
    let number = |addresses: &'static [u8]| fingerprint(&config_where(&text, addresses));
    assert_eq!(number(&[7, 200]), number(&[200, 7]));
    assert_ne!(number(&[7, 200]), number(&[7, 9]));
}

#[test]
fn generation_is_independent_of_the_folder() {
    let number = |folder: &str, file: &str| {
        let mut config = config(&(listener("in", 1, "http", "web") + NAMED));
        config.folder = folder.into();
        config.tls[0].client_ca = Some(config.folder.join(file));
        fingerprint(&config)
    };
    let one = number("/etc/one", "ca.pem");
    for folder in ["/etc/an \"other\"", ".", "", "/"] {
        assert_eq!(number(folder, "ca.pem"), one, "{folder}");
    }
    assert_ne!(number("/etc/one", "others.pem"), one);
    assert_ne!(number("/etc/one", "/etc/oneca.pem"), one);
    assert!(one < 1 << 53, "a number that floating point has");
}

#[test]
fn server_with_another_host_name_is_another_server() {
    let text = |host: &str| {
        let server = format!("{{ name = \"s\", address = \"{host}:1\" }}");
        listener("in", 1, "http", "web") + &pool("web", &server, "")
    };
    let mut keep = CarriedState::default();
    let first = assembled(&text("one.internal"), None, &mut keep);
    let same = assembled(&text("one.internal"), Some(&first), &mut keep);
    let other = assembled(&text("two.internal"), Some(&first), &mut keep);
    let id = |generation: &Generation| generation.pools[0].servers[0].id;
    assert_eq!(id(&same), id(&first));
    assert_ne!(id(&other), id(&first), "kept connections were verified under the name of before");
}

#[test]
fn refused_reload_keeps_the_rotation_of_ticket_keys() {
    let text = |rotate_s: u32, last: &str| {
        listener("in", 1, "https", "web")
            + "tls = \"t\"\n[[certificates]]\nname = \"c\"\nself_signed = [\"localhost\"]\n"
            + &format!("[tls.t]\nticket_rotate_s = {rotate_s}\n")
            + &pool("web", "{ address = \"10.0.0.1:1\" }", last)
    };
    let mut keep = CarriedState::default();
    let rotation = |keep: &CarriedState| keep.tickets().map(|(_, (_, _, every))| every.as_secs()).max();
    let first = assembled(&text(600, ""), None, &mut keep);
    keep.commit();
    assert_eq!(rotation(&keep), Some(600));
    // The keys of the pool are checked after those of the listener.
    let mut refused = config(&text(60, ""));
    refused.pools[0].tls.as_mut().unwrap().server_name = Some("no name".to_owned());
    assert!(assemble(&refused, Some(&first), &mut keep).is_err());
    assert_eq!(rotation(&keep), Some(600));
    // An assembled generation may still be refused, by an address in use.
    assembled(&text(60, ""), Some(&first), &mut keep);
    assert_eq!(rotation(&keep), Some(600));
    keep.commit();
    assert_eq!(rotation(&keep), Some(60));
}

#[test]
fn counters_continue_until_the_rules_change() {
    let text = |path: &str| {
        let limit = "{ requests_per_s = 1, burst = 1, key = \"global\" }";
        let rule = format!("[[rules]]\nname = \"r\"\nwhen = 'path == \"{path}\"'\nrate_limit = {limit}\n");
        listener("in", 1, "http", "web") + NAMED + &rule
    };
    let mut keep = CarriedState::default();
    let first = assembled(&text("/a"), None, &mut keep);
    first.rule_hits.get(0).unwrap().store(5, Ordering::Relaxed);
    first.pools[0].unavailable.store(7, Ordering::Relaxed);
    first.pools[0].client_responses.add(0, 200);
    first.listener_responses[0].add(1, 404);
    let passes = |of: &Generation| of.rates.allow(RuleId(0), [10, 0, 0, 1].into(), b"", 0);
    assert!(passes(&first) && !passes(&first));
    let same = assembled(&text("/a"), Some(&first), &mut keep);
    let other = assembled(&text("/b"), Some(&same), &mut keep);
    for (generation, hits) in [(&same, 5), (&other, 0)] {
        assert_eq!(generation.rule_hits.get(0).unwrap().load(Ordering::Relaxed), hits);
        assert_eq!(generation.pools[0].unavailable.load(Ordering::Relaxed), 7);
        assert_eq!(generation.pools[0].client_responses.by_class()["2xx"], 1);
        assert_eq!(generation.listener_responses[0].by_class()["4xx"], 1);
        assert!(!passes(generation), "a reload is no way around a limit");
    }
}

#[test]
fn default_connection_bound_is_known_as_default() {
    let text = listener("in", 1, "http", "web")
        + "[[pools]]\nname = \"web\"\nservers = [{ address = \"10.0.0.1:1\" }]\n";
    let unsent = config(&text).limits.listener.connections_max;
    assert_eq!(unsent as u64, crate::daemon::fd_limit::CONNECTIONS_MAX_DEFAULT);
}
