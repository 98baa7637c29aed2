"""Reports on haproxy (#3195), envoy and go about TLS to servers: names, missing or wrong certificates, and
the text of the log.
"""

from report import *


def mk(d, n, san, ca=None):
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            d + "/%s.key" % n,
            "-out",
            d + "/%s.pem" % n,
            "-days",
            "3",
            "-subj",
            "/CN=" + n,
            "-addext",
            "subjectAltName=" + san,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ],
        capture_output=True,
        check=True,
    )


def f():
    d = tempfile.mkdtemp(prefix="evergate-report-")
    mk(d, "srv", "DNS:srv.test")
    mk(d, "cli", "DNS:cli")
    mk(d, "other", "DNS:other.test")

    def ctx(req=False):
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        c.load_cert_chain(d + "/srv.pem", d + "/srv.key")
        if req:
            c.verify_mode = ssl.CERT_REQUIRED
            c.load_verify_locations(d + "/cli.pem")
        return c

    names = []
    c1 = ctx()
    c1.sni_callback = lambda s, n, x: names.append(n)
    ok = lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    plain, mt = Backend(http=ok, tls=c1), Backend(http=ok, tls=ctx(True))
    clear = Backend(
        lambda c, n, b: (
            c.recv(1000),
            c.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        )
    )
    c12 = ctx(True)
    c12.maximum_version = ssl.TLSVersion.TLSv1_2
    mt12 = Backend(http=ok, tls=c12)

    def one(name, port, tlscfg, st, reason, detail=None, health=None, state=None):
        p = free_port()
        e = Eg(
            site(
                p,
                [port],
                pool="retries = 0\n"
                + (
                    ""
                    if not health
                    else '[pools.health]\nkind = "%s"\ninterval_ms = 200\ntimeout_ms = 190\nfall = 1\nrise = 1\n'
                    % health
                )
                + "[pools.tls]\n"
                + tlscfg,
            )
        ).start()
        try:
            if health:
                time.sleep(0.8)
                x = e.servers()[0]
                check(
                    x["state"] == state,
                    "%s: the %s check reports %s (%s)"
                    % (name, health, state, (x["state"], x["health"] and x["health"]["detail"])),
                )
                return
            for m in ("GET", "POST"):
                r = ask(p, "%s / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % m)
                l = e.jlines(1)[-1]
                note(name, r.line, l.get("reason"), l.get("detail"))
                check(
                    r.status == st and l.get("reason") == reason,
                    "%s, %s: %d %s (%s, %s, %s)" % (name, m, st, reason, r.status, l.get("reason"), l.get("detail")),
                )
                if detail:
                    check(
                        re.search(detail, l.get("detail") or ""),
                        "%s: the log names the fault (%s)" % (name, l.get("detail")),
                    )
        finally:
            e.stop()

    T = 'server_name = "srv.test"\nca = "%s/srv.pem"\n' % d
    one("a good server", plain.port, T, 200, None)
    check(set(names) == {"srv.test"}, "SNI is server_name (%s)" % set(names))
    one("another name", plain.port, T.replace('"srv.test"', '"x.test"'), 502, "upstream_tls", "(?i)name|valid")
    one("another authority", plain.port, T.replace("srv.pem", "other.pem"), 502, "upstream_tls", "(?i)issuer|unknown")
    one("a server in clear", clear.port, T, 502, "upstream_tls")
    one(
        "a client certificate is asked for and missing, TLS 1.2",
        mt12.port,
        T,
        502,
        "upstream_tls",
        "(?i)alert|certificate|handshake",
    )
    one(
        "a client certificate is asked for and missing, TLS 1.3",
        mt.port,
        T,
        502,
        "upstream_tls",
        "(?i)alert|certificate",
    )
    one("with it", mt.port, T + 'client_chain = "%s/cli.pem"\nclient_key = "%s/cli.key"\n' % (d, d), 200, None)
    one(
        "with a wrong certificate",
        mt.port,
        T + 'client_chain = "%s/other.pem"\nclient_key = "%s/other.key"\n' % (d, d),
        502,
        "upstream_tls",
        "(?i)alert|certificate|unknown",
    )
    one("missing, TLS 1.3", mt.port, T, 0, None, health="http", state="down")
    one("missing, TLS 1.2", mt12.port, T, 0, None, health="tcp", state="down")
    shutil.rmtree(d)


main("TLS to servers", f)
