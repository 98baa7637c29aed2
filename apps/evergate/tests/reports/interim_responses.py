"""golang/go#81319, #16875: hop-by-hop fields of interim responses must not reach the client."""

from report import *


def f():
    def b(c, n, be):
        r = Reader(c)
        r.request()
        c.sendall(
            b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\nConnection: X-Nom\r\nX-Nom: strip\r\n"
            b"Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\r\n"
        )
        time.sleep(0.2)
        c.sendall(
            b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nConnection: X-Two\r\nX-Two: strip\r\n"
            b"Keep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok"
        )
        r.request()

    be = Backend(b)
    p = free_port()
    e = Eg(site(p, [be.port])).start()
    try:
        s = connect(p)
        s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        i = []
        r = Reader(s).response(interim=i)
        check(r and r.status == 200 and r.body == b"ok", "the final response comes through")
        m = next((x for x in i if x.status == 103), None)
        check(m is not None, "103 is passed on")
        note([x.raw for x in i], r and r.raw)
        if m:
            check(m.get("link"), "103 keeps Link")
            for k in ("connection", "x-nom", "keep-alive", "proxy-connection"):
                check(k not in m.names, "103 without " + k)
        check("x-two" not in r.names and "keep-alive" not in r.names, "200 without what Connection names")
        # An HTTP/1.0 client gets no interim response (RFC 9110, 15.2).
        s = connect(p)
        s.sendall(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        i = []
        r = Reader(s).response(interim=i)
        check(r and r.status == 200 and not i, "HTTP/1.0 client gets no 1xx")
    finally:
        e.stop()


main("interim responses lose their hop-by-hop fields", f)
