"""Variants of haproxy#18: idle connections must not block new clients, at the limit per source, before the
handshake, and without free descriptors.
"""

from report import *

import resource


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def fill(p, n, what):
        ss = []
        for i in range(n):
            s = connect(p)
            if what == "served":
                s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                Reader(s).response()
            ss.append(s)
        return ss

    def served(p, n=5):
        ok = 0
        for i in range(n):
            try:
                r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", timeout=2)
                ok += bool(r and r.status == 200)
            except OSError:
                pass
            time.sleep(0.1)
        return ok

    for name, lim, n, what in (
        ("connections_per_source_max, idle connections", "connections_per_source_max = 15", 15, "served"),
        ("connections_max, connections that sent no byte", "connections_max = 15", 15, "silent"),
        ("a listener's own connections_max, idle connections", None, 15, "served"),
    ):
        p = free_port()
        e = Eg(
            site(
                p,
                [be.port],
                listener="" if lim else "limits = { connections_max = 15 }",
                rest="[limits]\n%s\n" % lim if lim else "",
            )
        ).start()
        try:
            ss = fill(p, n, what)
            k = served(p)
            check(k >= 4, "%s: a new client is served (%d of 5)" % (name, k))
            [s.close() for s in ss]
            check(until(lambda: served(p, 1), 3), "%s: when they are gone, too" % name)
        finally:
            e.stop()
    # Descriptors.
    p = free_port()
    e = Eg(site(p, [be.port]))
    old = subprocess.Popen

    def lim(*a, **k):
        return old(["bash", "-c", 'ulimit -n 110; exec "$@"', "x"] + a[0], *a[1:], **k)

    subprocess.Popen = lim
    e.start()
    subprocess.Popen = old
    try:
        ss = []
        for i in range(130):
            try:
                s = connect(p, 0.4)
                s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                r = Reader(s).response()
                if r is None:
                    break
                ss.append(s)
            except OSError:
                break
        k = served(p)
        check(k >= 4, "descriptors used up by %d idle connections: a new client is served (%d of 5)" % (len(ss), k))
    finally:
        e.stop()


main("idle connections make room", f)
