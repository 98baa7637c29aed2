//! What a generation is made of, and what a reload that is refused leaves alone.

use super::*;
use crate::config::{World, parse_with};
use std::io;
use std::net::SocketAddr;

/// A machine without files, where every name is one and the same address.
struct Bare;

impl World for Bare {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::from(([10, 9, 9, 9], port))])
    }
}

fn config(text: &str) -> Config {
    match parse_with(text, "test.toml", Path::new("/"), &Bare) {
        Ok(loaded) => loaded.config,
        Err(problems) => panic!("{problems:?}"),
    }
}

fn assembled(text: &str, previous: Option<&Generation>, keep: &mut Keepsakes) -> Arc<Generation> {
    assemble(&config(text), previous, keep).unwrap().generation
}

fn listener(name: &str, port: u16, protocol: &str, pool: &str) -> String {
    format!(
        "[[listeners]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\nprotocol = \"{protocol}\"\npool = \"{pool}\"\n"
    )
}

fn pool(name: &str, servers: &str, tls: &str) -> String {
    format!("[[pools]]\nname = \"{name}\"\nservers = [{servers}]\ntls = {{ verify = false{tls} }}\n")
}

#[test]
fn each_server_is_named_after_its_own_host_unless_one_name_is_given() {
    let servers =
        "{ address = \"one.internal:1\" }, { address = \"two.internal:2\" }, { address = \"10.0.0.1:3\" }";
    let names = |tls: &str| -> Vec<String> {
        let text = listener("in", 1, "http", "web") + &pool("web", servers, tls);
        let generation = assembled(&text, None, &mut Keepsakes::default());
        let name = |server: &Server| server.tls_name.as_ref().unwrap().to_str().into_owned();
        generation.snapshot.pools[0].servers.iter().map(name).collect()
    };
    assert_eq!(names(""), ["one.internal", "two.internal", "10.0.0.1"]);
    assert_eq!(names(", server_name = \"app.internal\""), ["app.internal"; 3]);
}

#[test]
fn http_is_offered_to_servers_unless_only_raw_listeners_use_their_pool() {
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
    let generation = assembled(&text, None, &mut Keepsakes::default());
    for (pool, offers) in generation.snapshot.pools.iter().zip([false, true, true, true]) {
        let offered = &pool.tls.as_ref().unwrap().config.alpn_protocols;
        assert_eq!(!offered.is_empty(), offers, "{}: {offered:?}", pool.name);
    }
}

#[test]
fn a_server_whose_host_has_another_name_is_another_server() {
    let text = |host: &str| {
        let server = format!("{{ name = \"s\", address = \"{host}:1\" }}");
        listener("in", 1, "http", "web") + &pool("web", &server, "")
    };
    let mut keep = Keepsakes::default();
    let first = assembled(&text("one.internal"), None, &mut keep);
    let same = assembled(&text("one.internal"), Some(&first), &mut keep);
    let other = assembled(&text("two.internal"), Some(&first), &mut keep);
    let id = |generation: &Generation| generation.pools[0].servers[0].id;
    assert_eq!(id(&same), id(&first));
    assert_ne!(id(&other), id(&first), "kept connections were verified under the name of before");
}

#[test]
fn a_reload_that_is_refused_leaves_the_rotation_of_ticket_keys_as_it_was() {
    let text = |rotate_s: u32, last: &str| {
        listener("in", 1, "https", "web")
            + "tls = \"t\"\n[[certificates]]\nname = \"c\"\nself_signed = [\"localhost\"]\n"
            + &format!("[tls.t]\nticket_rotate_s = {rotate_s}\n")
            + &pool("web", "{ address = \"10.0.0.1:1\" }", last)
    };
    let mut keep = Keepsakes::default();
    let rotation = |keep: &Keepsakes| keep.tickets().map(|(_, (_, _, every))| every.as_secs()).max();
    let first = assembled(&text(600, ""), None, &mut keep);
    keep.commit();
    assert_eq!(rotation(&keep), Some(600));
    // The keys of the pool are looked at after those of the listener.
    let mut refused = config(&text(60, ""));
    refused.pools[0].tls.as_mut().unwrap().server_name = Some("no name".to_owned());
    assert!(assemble(&refused, Some(&first), &mut keep).is_err());
    assert_eq!(rotation(&keep), Some(600));
    // What is assembled may still be refused, by an address that is taken.
    assembled(&text(60, ""), Some(&first), &mut keep);
    assert_eq!(rotation(&keep), Some(600));
    keep.commit();
    assert_eq!(rotation(&keep), Some(60));
}

#[test]
fn the_bound_on_connections_that_nobody_set_is_known_as_such() {
    let text = listener("in", 1, "http", "web")
        + "[[pools]]\nname = \"web\"\nservers = [{ address = \"10.0.0.1:1\" }]\n";
    let unsaid = config(&text).limits.listener.connections_max;
    assert_eq!(unsaid as u64, crate::daemon::CONNECTIONS_MAX_UNSAID);
}
