"""Reports on haproxy, node and go: IPv4 clients of a dual-stack listener, IPv6, redirects that keep ports,
HTTP/1.0 keep-alive, and the Upgrade field of Apache.
"""

from report import *


def f():
    be = Backend(
        http=lambda q: {
            "/apache": b"HTTP/1.1 200 OK\r\nUpgrade: h2,h2c\r\nConnection: Upgrade, Keep-Alive\r\n"
                       b"Keep-Alive: timeout=5, max=100\r\nContent-Length: 2\r\n\r\nok",
            "/close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            "/h10": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n",
        }.get(q.target, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    )
    p, r80, t = free_port(), free_port(), free_port()
    cfg = site(
        p,
        [be.port],
        rest='[[listeners]]\nname = "r"\naddress = ":%d"\nprotocol = "http"\nredirect_to_https = true\n'
             '[[listeners]]\nname = "t"\naddress = ":%d"\nprotocol = "https"\npool = "p"\n'
             '[[certificates]]\nname = "c"\nself_signed = ["localhost"]\n'
             '[[rules]]\nname = "v4"\nwhen = \'client.ip == "127.0.0.1"\'\nset_request_headers = { X-Rule = "v4" }\n'
        % (r80, t),
    ).replace('"127.0.0.1:%d"\nprotocol = "http"\npool' % p, '":%d"\nprotocol = "http"\npool' % p)
    e = Eg(cfg).start()
    try:
        ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        q = be.reqs[-1]
        check(
            q.get("x-forwarded-for") == "127.0.0.1" and q.get("x-rule") == "v4",
            "an IPv4 client of a dual-stack listener is 127.0.0.1 (%s, rule %s)"
            % (q.get("x-forwarded-for"), q.get("x-rule")),
        )
        l = e.jlines(1)[-1]
        check(l["client"].startswith("127.0.0.1:"), "in the log too (%s)" % l["client"])
        try:
            ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", host="::1")
            q = be.reqs[-1]
            check(q.get("x-forwarded-for") == "::1", "an IPv6 client (%s)" % q.get("x-forwarded-for"))
        except OSError as x:
            note("no IPv6", x)
        for host, want in (
            ("a.test", "https://a.test:%d/x?y=1" % t),
            ("a.test:%d" % r80, "https://a.test:%d/x?y=1" % t),
            ("[::1]:%d" % r80, "https://[::1]:%d/x?y=1" % t),
            ("A.Test", "https://a.test:%d/x?y=1" % t),
        ):
            r = ask(r80, "GET /x?y=1 HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
            check(
                r.status == 308 and r.get("location", "").lower() == want,
                "%s is sent to %s (%s)" % (host, want, r.get("location")),
            )
        r = ask(r80, "GET //evil.test/%0d%0aX:1 HTTP/1.1\r\nHost: a\r\n\r\n")
        check(
            r.get("location", "").startswith("https://a:%d/" % t) and "\r" not in r.get("location"),
            "no other site, no other header (%s)" % r.get("location"),
        )
        s = connect(p)
        rd = Reader(s)
        s.sendall(b"GET /1 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
        r = rd.response()
        check(
            (r.get("connection") or "").lower() == "keep-alive",
            "the response to HTTP/1.0 with keep-alive has Connection: keep-alive (%s)" % r.get("connection"),
        )
        s.sendall(b"GET /2 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
        r = rd.response()
        check(r and r.status == 200, "and its connection stays open")
        s.close()
        r = ask(p, "GET /chunk HTTP/1.0\r\nHost: a\r\n\r\n")
        check(
            r.get("transfer-encoding") is None and r.body == b"ok",
            "HTTP/1.0 gets no chunks (%s %s)" % (r.get("transfer-encoding"), r.body),
        )
        r = ask(p, "GET /chunk HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
        check(
            r.body == b"ok" and (r.get("connection") or "").lower() != "keep-alive", "nor a promise that cannot be kept"
        )
        r = ask(p, "GET /chunk HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n")
        check(r.trailers == [b"X-T: 1"], "trailers come through (%s)" % r.trailers)
        r = ask(p, "GET /apache HTTP/1.1\r\nHost: a\r\n\r\n")
        note(r.raw)
        check(
            "h2" not in (r.get("upgrade") or "") and "keep-alive" not in r.names,
            "a server's offer of h2 is not passed on (%s)" % r.get("upgrade"),
        )
        for path in ("/close", "/h10"):
            s = connect(p)
            rd = Reader(s)
            s.sendall(("GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path).encode())
            r = rd.response()
            s.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            r2 = rd.response()
            check(
                r.status == 200 and r2 and r2.status == 200,
                "%s of the server does not end the client's connection" % path,
            )
    finally:
        e.stop()


main("addresses, redirects, HTTP/1.0, offers of upgrades", f)
