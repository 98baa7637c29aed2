"""Reports on hyper, haproxy and others: generated answers to HEAD and to HTTP/1.0, on persistent
connections.
"""

from report import *


def f():
    dead = free_port()
    be = Backend(
        http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (2, b"" if q.method == "HEAD" else b"ok")
    )
    slow = Backend(lambda c, n, b: time.sleep(3))
    p, r8 = free_port(), free_port()
    rules = "".join(
        '[[rules]]\nname = "%s"\nwhen = \'path == "/%s"\'\n%s\n' % (n, n, a)
        for n, a in (
            ("deny", "deny = 403"),
            ("redir", 'redirect = "https://x.test/${path}"'),
            ("dead", 'route = "dead"'),
            ("slow", 'route = "slow"'),
            ("down", 'route = "down"'),
            ("rate", 'rate_limit = { requests_per_s = 1, burst = 1, key = "global" }'),
        )
    )
    cfg = site(
        p,
        [be.port],
        rest='[[pools]]\nname = "dead"\nretries = 0\nservers = [{ address = "127.0.0.1:%d" }]\n'
             '[[pools]]\nname = "slow"\nretries = 0\nresponse_timeout_ms = 300\n'
             'servers = [{ address = "127.0.0.1:%d" }]\n'
             '[[pools]]\nname = "down"\nservers = [{ address = "127.0.0.1:%d" }]\n'
             '[pools.health]\ninterval_ms = 200\ntimeout_ms = 100\n'
        % (dead, slow.port, dead)
        + rules
        + '[[listeners]]\nname = "r"\naddress = "127.0.0.1:%d"\nprotocol = "http"\nredirect_to_https = true\n'
          '[[listeners]]\nname = "s"\naddress = "127.0.0.1:%d"\nprotocol = "https"\npool = "p"\n'
          '[[certificates]]\nname = "c"\nself_signed = ["localhost"]\n'
        % (r8, free_port()),
    )
    e = Eg(cfg).start()
    time.sleep(0.4)
    try:
        ask(p, "GET /rate HTTP/1.1\r\nHost: a\r\n\r\n")
        for path, st, port in (
            ("/deny", 403, p),
            ("/redir", 302, p),
            ("/dead", 502, p),
            ("/slow", 504, p),
            ("/down", 503, p),
            ("/rate", 429, p),
            ("/any", 308, r8),
        ):
            for m in ("HEAD", "GET", "POST"):
                if path == "/rate":
                    [ask(p, "GET /rate HTTP/1.1\r\nHost: a\r\n\r\n") for i in range(2)]
                s = connect(port, 3)
                rd = Reader(s)
                s.sendall(
                    (
                        "%s %s HTTP/1.1\r\nHost: a\r\n%s\r\n"
                        % (m, path, "Content-Length: 0\r\n" if m == "POST" else "")
                    ).encode()
                )
                r = rd.response(m)
                ok = check(r and r.status == st, "%s %s: %d (%s)" % (m, path, st, r and r.status))
                if not ok:
                    continue
                if m == "HEAD":
                    time.sleep(0.05)
                    s.settimeout(0.15)
                if m == "HEAD":
                    try:
                        x = s.recv(1000)
                    except TimeoutError:
                        x = None
                    check(x in (None, b""), "HEAD %s has no body (%r)" % (path, x))
                    s.settimeout(3)
                if (r.get("connection") or "").lower() != "close":
                    s.sendall(("GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % ("/x" if port == p else "/any")).encode())
                    r2 = rd.response()
                    check(
                        r2 and r2.status == (200 if port == p else 308),
                        "%s %s: the connection stays open (%s)" % (m, path, r2 and r2.line),
                    )
                s.close()
            if path == "/rate":
                [ask(p, "GET /rate HTTP/1.1\r\nHost: a\r\n\r\n") for i in range(2)]
            s = connect(port, 3)
            rd = Reader(s)
            s.sendall(("GET %s HTTP/1.0\r\nHost: a\r\n\r\n" % path).encode())
            r = rd.response()
            check(r and r.status == st and (rd.more() or rd.eof == "fin"), "HTTP/1.0 %s: %d and an end" % (path, st))
            s.close()
        s = connect(p)
        s.sendall(
            b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /deny HTTP/1.1\r\nHost: a\r\n\r\nHEAD /deny HTTP/1.1\r\n"
            b"Host: a\r\n\r\nGET /dead HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\nBAD\r\n\r\n"
        )
        rd = Reader(s)
        rr = [rd.response(m) for m in ("GET", "GET", "HEAD", "GET", "GET", "GET")]
        check(
            [x and x.status for x in rr] == [200, 403, 403, 502, 200, 400],
            "pipelined: each has its answer in turn (%s)" % [x and x.status for x in rr],
        )
    finally:
        e.stop()


main("answers of the proxy's own", f)
