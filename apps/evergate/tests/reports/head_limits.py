"""Reports on envoy and haproxy (tune.maxrewrite, haproxy#991): heads near the limits, to which the proxy
adds fields.
"""

from report import *


def f():
    size = {"n": 0}

    def h(q):
        n = size["n"]
        base = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-P: "
        return base + b"a" * (n - len(base) - 4) + b"\r\n\r\nok"

    be = Backend(http=h)
    p = free_port()
    big = "v" * 900
    rules = (
        '[[rules]]\nname = "r"\nwhen = \'path == "/rule"\'\n'
        + "set_response_headers = { %s }\n" % ", ".join('X-S%d = "%s"' % (i, big) for i in range(12))
        + "set_request_headers = { %s }\n" % ", ".join('X-Q%d = "%s"' % (i, big) for i in range(12))
    )
    e = Eg(site(p, [be.port], pool='sticky = "cookie"', rest=rules)).start()
    try:
        for path in ("/plain", "/rule"):
            for n in (200, 8000, 15000, 16000, 16200, 16300, 16350, 16380, 16383, 16384):
                size["n"] = n
                r = ask(p, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
                check(
                    r
                    and r.status == 200
                    and r.body == b"ok"
                    and (path == "/plain" or len(r.get("x-s11") or "") == 900)
                    and any("EVERGATE" in c for c in r.all("set-cookie")),
                    "%s: a response head of %d bytes and what is added (%s)" % (path, n, r and r.line),
                )
            size["n"] = 16385
            r = ask(p, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            check(r and r.status == 502, "%s: 16385 bytes are 502 (%s)" % (path, r and r.status))
            size["n"] = 200
            for n in (15000, 16300, 16380, 16384):
                head = "GET %s HTTP/1.1\r\nHost: a\r\nX-P: " % path
                be.reqs.clear()
                r = ask(p, head + "b" * (n - len(head) - 4) + "\r\n\r\n")
                check(
                    r
                    and r.status == 200
                    and be.reqs
                    and (path == "/plain" or len(be.reqs[0].get("x-q11") or "") == 900),
                    "%s: a request head of %d bytes and what is added (%s)" % (path, n, r and r.line),
                )
            head = "GET %s HTTP/1.1\r\nHost: a\r\nX-P: " % path
            r = ask(p, head + "b" * (16385 - len(head) - 4) + "\r\n\r\n")
            check(r and r.status == 431, "%s: 16385 are 431 (%s)" % (path, r and r.status))
        # In pieces, byte by byte around the end.
        size["n"] = 200
        s = connect(p)
        rd = Reader(s)
        for k in range(3):
            q = b"GET /plain HTTP/1.1\r\nHost: a\r\nX-P: " + b"c" * 3000 + b"\r\n\r\n"
            for i in range(0, 3000, 500):
                s.sendall(q[i : i + 500])
                time.sleep(0.002)
            for i in range(3000, len(q)):
                s.sendall(q[i : i + 1])
            r = rd.response()
            check(r and r.status == 200, "a head in pieces")
        # A thousand pipelined requests, whose answers are read late.
        s = connect(p)
        n = 1000
        th = threading.Thread(
            target=lambda: s.sendall(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % i for i in range(n)))
        )
        th.start()
        time.sleep(0.5)
        rd = Reader(s)
        ok = 0
        for i in range(n):
            r = rd.response()
            ok += bool(r and r.status == 200)
        check(ok == n, "1000 pipelined requests (%d)" % ok)
        check([q.target for q in be.reqs[-n:]] == ["/%d" % i for i in range(n)], "in their order")
    finally:
        e.stop()


main("heads near the bounds", f)
