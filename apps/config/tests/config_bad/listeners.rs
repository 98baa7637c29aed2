//! Listeners, certificates and TLS settings that contradict themselves or each other.

use crate::case::{Case, expect};
use evergate_config::Severity;

#[test]
fn contradictory_file_is_refused_at_the_place_with_advice() {
    let cases: &[Case] = &[
        // Listeners.
        ("{C}{P}", "listeners", "add `[[listeners]]`"),
        (
            "@@[[listeners]]\naddress = \":1\"\nprotocol = \"https\"\n{C}{P}",
            "listeners[0].name",
            "`name = \"public\"`",
        ),
        (
            "@@[[listeners]]\nname = \"a\"\nprotocol = \"https\"\n{C}{P}",
            "listeners[0].address",
            "`address = \":443\"`",
        ),
        (
            "@@[[listeners]]\nname = \"a\"\naddress = \":1\"\n{C}{P}",
            "listeners[0].protocol",
            "`protocol = \"https\"`",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"[::]:9443\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "`listeners[0]` listens on that address",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"0.0.0.0:9443\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "own port",
        ),
        (
            "{L}[[listeners]]\nname = @@\"public\"\naddress = \":1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].name",
            "taken by `listeners[0]`",
        ),
        (
            "{L}[[listeners]]\nname = @@\"a b\"\naddress = \":1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].name",
            "1 to 64 letters",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"9000\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "`:9000`",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"127.0.0.1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "has no port",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\":0\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "1 to 65535",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"example.com:80\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "`:80`",
        ),
        (
            "{L}@@[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"tcp\"\n{C}{P}",
            "listeners[1].pool",
            "`tcp` connection would have no server",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\npool = @@\"wbe\"\n{C}{P}",
            "listeners[1].pool",
            "did you mean `web`?",
        ),
        ("{L}certificates = [@@\"locl\"]\n{C}{P}", "listeners[0].certificates[0]", "did you mean `local`?"),
        ("{L}certificates = @@[]\n{C}{P}", "listeners[0].certificates", "name at least one"),
        ("{L}certificates = [\"local\", @@\"local\"]\n{C}{P}", "listeners[0].certificates[1]", "twice"),
        (
            "[[listeners]]\nname = \"public\"\naddress = \":9443\"\nprotocol = @@\"https\"\npool = \"web\"\n{P}",
            "listeners[0].protocol",
            "self_signed",
        ),
        ("{L}tls = @@\"modern\"\n{C}{P}", "listeners[0].tls", "`[tls.NAME]`"),
        (
            "{L}tls = @@\"h2\"\n{C}{P}[tls.h2]\nalpn = [\"h2\", \"http/1.1\"]\n",
            "listeners[0].tls",
            "remove \"h2\" from `alpn`",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\ncertificates = @@[\"local\"]\n\
             {C}{P}",
            "listeners[1].certificates",
            "does not use TLS",
        ),
        ("{L}redirect_to_https = @@true\n{C}{P}", "listeners[0].redirect_to_https", "only `http` listeners"),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"tcp\"\npool = \"web\"\n\
             trust_forwarded = @@true\n{C}{P}",
            "listeners[1].trust_forwarded",
            "HTTP headers",
        ),
        ("{L}trust_forwarded = @@[]\n{C}{P}", "listeners[0].trust_forwarded", "list 1 to 256 networks"),
        (
            "{L}trust_forwarded = [\"10.0.0.1\", @@\"proxy\"]\n{C}{P}",
            "listeners[0].trust_forwarded[1]",
            "\"proxy\" is no network",
        ),
        ("{L}trust_forwarded = [@@\"::/0\"]\n{C}{P}", "listeners[0].trust_forwarded[0]", "your own proxies"),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"tcp\"\npool = @@\"c\"\n\
             {C}{P}[[pools]]\nname = \"c\"\nsticky = \"cookie\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "listeners[1].pool",
            "`sticky = \"source\"`",
        ),
        // PROXY protocol.
        (
            "{L}{C}[[pools]]\nname = \"web\"\nproxy_protocol_tlvs = @@[\"alpn\"]\n\
          [[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "pools[0].proxy_protocol_tlvs",
            "proxy_protocol = \"v2\"",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nproxy_protocol = \"v1\"\nproxy_protocol_tlvs = @@[\"alpn\"]\n\
             [[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "pools[0].proxy_protocol_tlvs",
            "proxy_protocol = \"v2\"",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nproxy_protocol = \"v2\"\nproxy_protocol_tlvs = [@@\"sni\"]\n\
             [[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "pools[0].proxy_protocol_tlvs[0]",
            "\"authority\"",
        ),
        ("{L}proxy_protocol = @@true\n{C}{P}", "listeners[0].proxy_protocol", "trusted_proxies"),
        (
            "{L}proxy_protocol = true\ntrusted_proxies = [\"10.0.0.0/8\", @@\"10.0.0.0/33\"]\n{C}{P}",
            "listeners[0].trusted_proxies[1]",
            "length of its prefix",
        ),
        // Certificates.
        ("{L}@@[[certificates]]\nname = \"a\"\n{P}", "certificates[0]", "neither files nor names"),
        ("{L}@@[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\n{P}", "certificates[0].key", "add `key`"),
        ("{L}@@[[certificates]]\nname = \"a\"\nkey = \"k.pem\"\n{P}", "certificates[0].chain", "add `chain`"),
        (
            "{L}[[certificates]]\nname = \"a\"\nself_signed = @@[\"a\"]\nkey = \"k.pem\"\n{P}",
            "certificates[0].self_signed",
            "not both",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nself_signed = @@[]\n{P}",
            "certificates[0].self_signed",
            "empty",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nself_signed = [@@\"a:80\"]\n{P}",
            "certificates[0].self_signed[0]",
            "without port",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"x.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "relative paths begin at the folder",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"denied.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "cannot be read",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"k.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "exchanged",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\nkey = @@\"c.pem\"\n{P}",
            "certificates[0].key",
            "exchanged",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\nkey = @@\"encrypted.pem\"\n{P}",
            "certificates[0].key",
            "decrypt",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"empty\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "BEGIN CERTIFICATE",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"cut.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "no line `-----END CERTIFICATE-----`",
        ),
        (
            "{L}{C}{P}[tls.a]\nclient_certificates = \"required\"\nclient_ca = @@\"cut.pem\"\n",
            "tls.a.client_ca",
            "no line `-----END CERTIFICATE-----`",
        ),
        // TLS.
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nmin_version = @@\"1.3\"\nmax_version = \"1.2\"\n",
            "tls.a.min_version",
            "newer than `max_version`",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nmax_version = @@\"1.1\"\n",
            "tls.a.max_version",
            "write `max_version = \"1.2\"`",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}@@[tls.a]\nclient_certificates = \"required\"\n",
            "tls.a.client_ca",
            "authorities",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nclient_ca = @@\"c.pem\"\n",
            "tls.a.client_ca",
            "`client_certificates = \"required\"`",
        ),
        ("{L}tls = \"a\"\n{C}{P}[tls.a]\nalpn = [@@\"\"]\n", "tls.a.alpn[0]", "registered ids"),
        ("{L}tls = \"a\"\n{C}{P}[tls.a]\nticket_keys = @@\"empty\"\n", "tls.a.ticket_keys", "holds no key"),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nticket_keys = @@\"half.keys\"\n",
            "tls.a.ticket_keys",
            "`(umask 077; openssl rand -out FILE 64)`",
        ),
    ];
    expect(Severity::Error, cases);
}
