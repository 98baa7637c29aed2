//! Rules about whole connections, and passthrough listeners.

use crate::case::expect;
use evergate_config::Severity;

#[test]
fn rule_that_its_listener_cannot_serve_is_refused() {
    let listener = |protocol: &str| {
        format!("[[listeners]]\nname = \"t\"\naddress = \":1\"\nprotocol = \"{protocol}\"\npool = \"web\"\n")
    };
    for (protocol, rule, place, advice) in [
        ("tcp", "when = @@'tls.sni == \"a.example\"'\nroute = \"web\"", "when", "client.ip, client.port"),
        ("passthrough", "when = @@'host == \"a.example\"'\nroute = \"web\"", "when", "of the ClientHello"),
        ("passthrough", "when = @@'tls.client_subject.exists()'\ndeny = \"reset\"", "when", "ClientHello"),
        ("tls", "when = @@'path == \"/a\"'\nroute = \"web\"", "when", "fields that begin with tls."),
        ("passthrough", "deny = @@403", "deny", "deny = \"access_denied\""),
        ("tcp", "deny = @@\"access_denied\"", "deny", "deny = \"reset\""),
        ("tls", "route = \"web\"\nsticky = @@\"cookie\"", "sticky", "sticky = \"source\""),
        ("tls", "redirect = @@\"https://a.example/\"", "redirect", "remove the key"),
        (
            "passthrough",
            "route = \"web\"\nset_request_headers = @@{ X-A = \"1\" }",
            "set_request_headers",
            "remove the key",
        ),
    ] {
        let listener = listener(protocol);
        let text = format!("{{L}}{listener}{{C}}{{P}}[[rules]]\nname = \"r\"\nlisteners = [\"t\"]\n{rule}\n");
        expect(Severity::Error, &[(&text, &format!("rules[0].{place}"), advice)]);
    }
}

#[test]
fn rules_for_requests_and_connections_are_kept_apart() {
    let tcp = "[[listeners]]\nname = \"t\"\naddress = \":1\"\nprotocol = \"tcp\"\npool = \"web\"\n";
    let both = format!(
        "{{L}}{tcp}{{C}}{{P}}[[rules]]\nname = \"r\"\nlisteners = @@[\"public\", \"t\"]\nroute = \"web\"\n"
    );
    expect(Severity::Error, &[(&both, "rules[0].listeners", "write two rules")]);
    let named = "{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = @@\"reset\"\n";
    expect(Severity::Error, &[(named, "rules[0].deny", "write a status")]);
}

#[test]
fn passthrough_listener_needs_a_server_without_tls_of_ours() {
    let listener = "[[listeners]]\nname = \"t\"\naddress = \":1\"\nprotocol = \"passthrough\"\n";
    let lost = format!("{{L}}@@{listener}{{C}}{{P}}");
    expect(Severity::Error, &[(&lost, "listeners[1].pool", "add `pool`")]);
    let twice = format!("{{L}}{listener}pool = @@\"web\"\n{{C}}{{P}}[pools.tls]\nverify = false\n");
    expect(Severity::Error, &[(&twice, "listeners[1].pool", "remove `tls` from the pool")]);
    let certificates = format!("{{L}}{listener}pool = \"web\"\ncertificates = @@[\"site\"]\n{{C}}{{P}}");
    expect(Severity::Error, &[(&certificates, "listeners[1].certificates", "remove `certificates`")]);
}
