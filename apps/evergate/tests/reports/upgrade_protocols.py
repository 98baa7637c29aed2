"""golang/go (ReverseProxy: "backend tried to switch protocol"), RFC 9110 7.8: a server must not switch to a
protocol that the client did not offer.
"""

from report import *


def f():
    ans = {}

    def b(c, n, be):
        r = Reader(c)
        q = r.request(body=False)
        if q is None:
            return
        be.reqs.append(q)
        c.sendall(ans["a"])
        time.sleep(0.2)

    be = Backend(b)
    p = free_port()
    e = Eg(site(p, [be.port], pool="keep_alive_idle_max = 0")).start()
    try:
        for name, up, a, ok in (
            ("what was asked for", "websocket", "Upgrade: websocket\r\nConnection: Upgrade", True),
            ("in another case", "websocket", "upgrade: WebSocket\r\nconnection: upgrade", True),
            ("one of two", "foo, websocket", "Upgrade: websocket\r\nConnection: Upgrade", True),
            ("another protocol", "websocket", "Upgrade: other\r\nConnection: Upgrade", False),
            ("h2c", "websocket", "Upgrade: h2c\r\nConnection: Upgrade", False),
            ("one of two, and neither of those", "foo, bar", "Upgrade: websocket\r\nConnection: Upgrade", False),
            ("more than was asked for", "websocket", "Upgrade: websocket, other\r\nConnection: Upgrade", False),
            ("no Upgrade at all", "websocket", "X: y", False),
        ):
            ans["a"] = ("HTTP/1.1 101 Switching Protocols\r\n%s\r\n\r\n" % a).encode()
            r = ask(p, "GET /u HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n" % up)
            check(
                r and r.status == (101 if ok else 502),
                "asked %s, the server takes %s: %d (%s)" % (up, name, 101 if ok else 502, r and r.status),
            )
    finally:
        e.stop()


main("what a server may switch to", f)
