"""traefik#1299, #3975, #5521, #1568: stickiness by cookie with removed servers, retries, and unusual
cookies.
"""

from report import *


def f():
    bs = [
        Backend(http=lambda q, i=i: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nSet-Cookie: app=%d\r\n\r\n%d" % (i, i))
        for i in range(3)
    ]
    p = free_port()
    e = Eg(
        site(
            p,
            [b.port for b in bs],
            pool='sticky = "cookie"\npolicy = "round_robin"\n'
                 '[pools.health]\ninterval_ms = 200\ntimeout_ms = 150\nfall = 2\nrise = 1',
        )
    ).start()
    try:
        until(lambda: all(x["health"] for x in e.servers()))

        def go(c=None, extra=""):
            r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n%s%s\r\n" % ("Cookie: %s\r\n" % c if c else "", extra))
            return r, next((x.split(";")[0] for x in r.all("set-cookie") if x.startswith("EVERGATE_p=")), None)

        firsts = [go()[0].body for i in range(6)]
        check(len(set(firsts)) == 3, "new clients are spread (%s)" % firsts)
        r, ck = go()
        me = r.body
        check(ck, "a new client gets a cookie")
        note(r.raw)
        check("app=%s" % me.decode() in r.all("set-cookie"), "the server's own cookie stays")
        rs = [go(ck) for i in range(6)]
        check(all(x[0].body == me for x in rs), "the client returns to its server")
        check(all(x[1] is None for x in rs), "and gets no other cookie")
        check(go("x=y; %s; z=1" % ck)[0].body == me, "among other cookies")
        check(
            all(go("EVERGATE_p=%s" % v)[1] is not None
            for v in ("", "zzz", "0" * 500, '"', "127.0.0.1:%d" % bs[0].port)),
            "a cookie of no server is replaced",
        )
        # The server dies.
        k = int(me)
        bs[k].close()
        [c.shutdown(2) for c in bs[k].conns if c.fileno() >= 0]
        r, ck2 = go(ck)
        check(
            r.status == 200 and r.body != me and ck2,
            "right when it dies another one answers, and its cookie is set (%s %s)" % (r.status, ck2),
        )
        check(
            all(go(ck2)[0].body == r.body for i in range(4)),
            "the new cookie is that of the one that answered (after a retry)",
        )
        until(lambda: e.servers()[k]["state"] == "down")
        r, ck3 = go(ck)
        check(r.status == 200 and ck3, "while it is down too")
        nb = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % k, port=bs[k].port)
        check(until(lambda: e.servers()[k]["state"] == "up", 5), "it comes back")
        check(go(ck)[0].body == me, "and the old cookie leads to it")
        e.cli("servers", "drain", "p/127.0.0.1:%d" % bs[k].port)
        r, c4 = go(ck)
        check(r.status == 200 and r.body != me and c4, "drained: another one, another cookie")
        e.cli("servers", "ready", "p/127.0.0.1:%d" % bs[k].port)
        check(go(ck)[0].body == me, "ready: back")
        # A reload removes the server.
        e.write(site(p, [b.port for i, b in enumerate(bs) if i != k], pool='sticky = "cookie"\npolicy = "round_robin"'))
        x = e.cli("reload")
        check(x.returncode == 0, "reload " + x.stdout + x.stderr)
        r, c5 = go(ck)
        check(r.status == 200 and c5, "a server that a reload took away: another one, another cookie")
    finally:
        e.stop()


main("stickiness by cookie", f)
