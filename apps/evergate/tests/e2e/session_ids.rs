//! TLS 1.2 clients without tickets, which resume sessions by their ids.

use super::backend::Backend;
use super::node::{Folder, Node, eventually, web};
use super::pki::{Tls, certificate, https, issue, tls, tls12};
use super::tls::{CLOSING, s_client};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::{ClientConfig, HandshakeKind};
use std::io::Write;
use std::sync::Arc;

struct Scene {
    backend: Backend,
    node: Node,
}

/// Node whose listener has these TLS settings; `more`: further configuration.
fn scene(settings: &str, more: &str) -> Scene {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "site", "ecdsa", "site.example", Some("ca"));
    let backend = Backend::new("one");
    let config = config(&backend, settings, more);
    Scene { backend, node: Node::start_in(folder, &config) }
}

fn config(backend: &Backend, settings: &str, more: &str) -> String {
    let web = web(&[backend.address()], "");
    format!("{}{}{web}[tls.t]\n{settings}\n{more}", https("tls = \"t\""), certificate("site"))
}

impl Scene {
    fn client(&self) -> Arc<ClientConfig> {
        let mut config = tls12(&self.node.folder);
        config.resumption =
            Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
        Arc::new(config)
    }

    fn visit(&self, client: &Arc<ClientConfig>) -> (Tls, HandshakeKind) {
        let mut wire = tls(self.node.address("in"), client, "site.example");
        assert_eq!(wire.get("/x").unwrap().text(), "one");
        let kind = wire.stream.conn.handshake_kind().unwrap();
        (wire, kind)
    }

    fn kind(&self, client: &Arc<ClientConfig>) -> HandshakeKind {
        self.visit(client).1
    }

    fn openssl(&self, more: &[&str]) -> String {
        let all = [&["-no_ticket", "-servername", "site.example"], more].concat();
        let reported = s_client(&self.node, &all, CLOSING);
        assert!(reported.contains("\r\n\r\none"), "{reported}");
        reported
    }
}

#[test]
fn openssl_resumes_by_id_across_workers_reload_and_upgrade() {
    let scene = scene("", "");
    let first = scene.openssl(&["-tls1_2", "-sess_out", "session"]);
    assert!(first.contains("New, TLSv1.2"), "{first}");
    assert_eq!(scene.node.metric("evergate_session_ids"), 1);
    let again = |times: u64| {
        for _ in 0..times {
            let reported = scene.openssl(&["-tls1_2", "-sess_in", "session"]);
            assert!(reported.contains("Reused, TLSv1.2"), "{reported}");
        }
    };
    let by_worker = || scene.node.status().workers.into_iter().map(|worker| worker.counts.handshakes_resumed);
    eventually("both workers have resumed it", || {
        again(1);
        by_worker().all(|count| count > 0).then_some(())
    });
    let status = scene.node.status();
    assert_eq!(status.total.session_ids_found, status.total.handshakes_resumed);
    assert_eq!((status.total.session_ids_missed, status.session_ids), (0, 1));
    scene.node.write(&config(&scene.backend, "ticket_rotate_s = 3600", ""));
    scene.node.reload();
    again(4);
    scene.node.upgrade();
    again(4);
    // A TLS 1.3 client sends a random id, which must not be stored.
    let newer = scene.openssl(&[]);
    assert!(newer.contains("TLSv1.3"), "{newer}");
    let status = scene.node.status();
    assert_eq!((status.total.session_ids_missed, status.session_ids), (0, 1));
}

#[test]
fn sessions_resume_by_id_where_tickets_are_off() {
    let scene = scene("tickets = false\nmax_version = \"1.2\"", "");
    for takes_tickets in [true, false] {
        let more: &[&str] = if takes_tickets { &[] } else { &["-no_ticket"] };
        let args = |last: &'static str| [more, &["-servername", "site.example", last, "session"]].concat();
        let reported = s_client(&scene.node, &args("-sess_out"), CLOSING);
        assert!(reported.contains("New, TLSv1.2"), "{reported}");
        let reported = s_client(&scene.node, &args("-sess_in"), CLOSING);
        assert!(reported.contains("Reused, TLSv1.2"), "{reported}");
    }
}

#[test]
fn session_is_not_stored_for_ticket_clients_or_when_disabled() {
    let scene = scene("session_id_lifetime_s = 0", "");
    let client = scene.client();
    assert_eq!((scene.kind(&client), scene.kind(&client)), (HandshakeKind::Full, HandshakeKind::Full));
    scene.node.write(&config(&scene.backend, "", "[limits]\nsession_cache_mb = 0\n"));
    scene.node.reload();
    assert_eq!((scene.kind(&client), scene.kind(&client)), (HandshakeKind::Full, HandshakeKind::Full));
    scene.node.write(&config(&scene.backend, "", ""));
    scene.node.reload();
    let tickets = Arc::new(tls12(&scene.node.folder));
    assert_eq!((scene.kind(&tickets), scene.kind(&tickets)), (HandshakeKind::Full, HandshakeKind::Resumed));
    assert_eq!(scene.node.status().session_ids, 0);
    assert_eq!((scene.kind(&client), scene.kind(&client)), (HandshakeKind::Full, HandshakeKind::Resumed));
    assert_eq!(scene.node.status().session_ids, 1);
}

#[test]
fn session_survives_a_cut_connection_but_not_an_aborted_one() {
    let scene = scene("", "");
    let client = scene.client();
    let (wire, _) = scene.visit(&client);
    drop(wire); // TCP ends without close_notify: RFC 5246 section 7.2.1
    let (mut wire, kind) = scene.visit(&client);
    assert_eq!(kind, HandshakeKind::Resumed);
    // A record that no key has sealed; the node answers with bad_record_mac.
    wire.stream.sock.write_all(&[23, 3, 3, 0, 30]).unwrap();
    wire.stream.sock.write_all(&[7; 30]).unwrap();
    assert!(wire.fill().unwrap_err().to_string().contains("BadRecordMac"));
    assert_eq!(scene.node.status().session_ids, 0);
    assert_eq!(scene.kind(&client), HandshakeKind::Full);
    assert_eq!(scene.kind(&client), HandshakeKind::Resumed, "the new session");
}
