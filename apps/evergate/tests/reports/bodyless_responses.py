"""sozu#1049, hyper#1242, HTTP.jl#261, varnish#4245, h2o#274: responses that must have no body, with a body on
the wire.
"""

from report import *


def f():
    def b(c, n, be):
        r = Reader(c)
        while True:
            q = r.request()
            if q is None:
                return
            be.reqs.append((n, q.target))
            t = q.target
            if t == "/304cl":
                c.sendall(b'HTTP/1.1 304 NM\r\nContent-Length: 10\r\nETag: "a"\r\n\r\n')
            elif t == "/304body":
                c.sendall(b"HTTP/1.1 304 NM\r\nContent-Length: 10\r\n\r\n0123456789")
            elif t == "/304te":
                c.sendall(b"HTTP/1.1 304 NM\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            elif t == "/204te":
                c.sendall(b"HTTP/1.1 204 NC\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            elif t == "/204cl":
                c.sendall(b"HTTP/1.1 204 NC\r\nContent-Length: 5\r\n\r\nhello")
            elif t == "/204cl0":
                c.sendall(b"HTTP/1.1 204 NC\r\nContent-Length: 0\r\n\r\n")
            elif t == "/204":
                c.sendall(b"HTTP/1.1 204 NC\r\n\r\n")
            elif t == "/205":
                c.sendall(b"HTTP/1.1 205 RC\r\nContent-Length: 0\r\n\r\n")
            elif q.method == "HEAD" and t == "/hbody":
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nEVILEVI")
            elif q.method == "HEAD" and t == "/hte":
                c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            elif q.method == "HEAD":
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 777\r\n\r\n")
            else:
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")

    be = Backend(b)
    p = free_port()
    e = Eg(site(p, [be.port])).start()
    try:
        for m, t, st in (
            ("GET", "/304cl", 304),
            ("GET", "/304body", 304),
            ("GET", "/304te", 304),
            ("GET", "/204te", 204),
            ("GET", "/204cl", 204),
            ("GET", "/204cl0", 204),
            ("GET", "/204", 204),
            ("GET", "/205", 205),
            ("HEAD", "/hbody", 200),
            ("HEAD", "/hte", 200),
            ("HEAD", "/h", 200),
        ):
            s = connect(p, 4)
            s.sendall(("%s %s HTTP/1.1\r\nHost: a\r\n\r\n" % (m, t)).encode())
            rd = Reader(s)
            t0 = time.time()
            r = rd.response(m)
            check(
                r and r.status == st and time.time() - t0 < 2, "%s %s gives %d at once (%s)" % (m, t, st, r and r.line)
            )
            note(r and r.raw)
            if t == "/304cl":
                check(r.get("content-length") == "10", "304 keeps Content-Length")
            if t == "/h":
                check(r.get("content-length") == "777", "HEAD keeps Content-Length")
            if t.startswith("/204"):
                check(
                    r.get("content-length") is None and r.get("transfer-encoding") is None,
                    "204 %s without framing fields" % t,
                )
            s.sendall(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
            r2 = rd.response()
            check(
                r2 and r2.status == 200 and r2.body == b"mine",
                "after %s %s the same client gets its own answer (%s)" % (m, t, r2 and (r2.line, r2.body)),
            )
            r3 = ask(p, "GET /other HTTP/1.1\r\nHost: a\r\n\r\n")
            check(
                r3 and r3.status == 200 and r3.body == b"mine",
                "after %s %s another client gets its own answer" % (m, t),
            )
            s.close()
    finally:
        e.stop()


main("responses without content end at their head", f)
