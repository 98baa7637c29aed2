"""Reports on haproxy (hash-type), katran, cilium (#16746, #15683) and traefik: weights, stickiness by
address, and repeated cookies.
"""

from report import *


def f():
    bs = [Backend(http=lambda q, i=i: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % i) for i in range(4)]

    def frm(p, src, hd=""):
        s = socket.socket()
        s.settimeout(5)
        s.bind((src, 0))
        s.connect(("127.0.0.1", p))
        r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n%s\r\n" % hd, sock=s)
        s.close()
        return r

    tab = lambda ids: ['{ name = "s%d", address = "127.0.0.1:%d" }' % (i, bs[i].port) for i in ids]
    p = free_port()
    e = Eg(site(p, tab(range(4)), pool='sticky = "source"')).start()
    try:
        src = ["127.0.%d.%d" % (i // 200 + 1, i % 200 + 1) for i in range(120)]
        a = {s: int(frm(p, s).body) for s in src}
        check(all(int(frm(p, s).body) == a[s] for s in src), "each source keeps its server")
        n = [list(a.values()).count(i) for i in range(4)]
        check(min(n) >= 12, "they are spread (%s)" % n)
        e.write(site(p, tab((0, 1, 3)), pool='sticky = "source"'))
        e.cli("reload")
        b = {s: int(frm(p, s).body) for s in src}
        moved = [s for s in src if a[s] != 2 and b[s] != a[s]]
        check(not moved, "one server less: no other client moves (%d)" % len(moved))
        e.write(site(p, tab((3, 1, 2, 0)), pool='sticky = "source"'))
        e.cli("reload")
        c = {s: int(frm(p, s).body) for s in src}
        check(c == a, "back, in another order: all are where they were (%d moved)" % sum(c[s] != a[s] for s in src))
        e.cli("restart")
    finally:
        e.stop()
    p = free_port()
    e = Eg(
        site(
            p,
            ['{ address = "127.0.0.1:%d", weight = %d }' % (bs[i].port, w) for i, w in enumerate((5, 1, 1))],
            pool='policy = "round_robin"',
        )
    ).start()
    try:
        n = [frm(p, "127.0.0.1").body for i in range(70)]
        k = [n.count(b"%d" % i) for i in range(3)]
        check(k == [50, 10, 10], "weights 5, 1, 1 in turn (%s)" % k)
        run = max(len(x) for x in re.findall(r"0+", "".join(x.decode() for x in n)))
        check(run <= 5, "in a smooth order (%d in a row)" % run)
    finally:
        e.stop()
    p = free_port()
    e = Eg(site(p, tab(range(4)), pool='sticky = "cookie"\npolicy = "round_robin"')).start()
    try:
        cks = {}
        for i in range(4):
            r = frm(p, "127.0.0.1")
            cks[r.body] = r.get("set-cookie").split(";")[0]
        check(len(cks) == 4, "four cookies")
        v = cks[b"2"]
        for hd in (
            "Cookie: EVERGATE_p=gone; %s\r\n" % v,
            "Cookie: EVERGATE_p=gone\r\nCookie: %s\r\n" % v,
            "Cookie: a=1;%s;b=2\r\n" % v,
            "cookie:%s\r\n" % v,
            "Cookie: XEVERGATE_p=1; %s\r\n" % v,
            "Cookie: %s; EVERGATE_p=gone\r\n" % v,
        ):
            k = [frm(p, "127.0.0.1", hd).body for i in range(5)]
            check(k == [b"2"] * 5, "%r leads to its server (%s)" % (hd[:40], k))
    finally:
        e.stop()


main("weights, stickiness by address, cookies", f)
