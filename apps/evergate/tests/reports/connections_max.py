"""haproxy#18: idle connections must not block new clients at connections_max."""

from report import *


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p = free_port()
    e = Eg(site(p, [be.port], rest="[limits]\nconnections_max = 20")).start()
    try:
        ss = []
        for i in range(20):
            s = connect(p)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            r = Reader(s).response()
            check(r and r.status == 200, "client %d of 20" % i) if not (r and r.status == 200) else None
            ss.append((s, r))
        ok = 0
        for i in range(10):
            try:
                r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", timeout=2)
                ok += bool(r and r.status == 200)
            except OSError:
                pass
            time.sleep(0.1)
        check(ok >= 8, "with 20 of 20 connections idle, a new client is served (%d of 10)" % ok)
    finally:
        e.stop()


main("idle connections at connections_max", f)
