"""caddy#5471, #6420, nginx-gateway-fabric#5524, haproxy#1053, #1876: many reloads under long connections
and traffic.
"""

from report import *


def f():
    def b(c, n, be):
        r = Reader(c)
        while True:
            q = r.request()
            if q is None:
                return
            if q.target == "/ws":
                c.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + r.b)
                while True:
                    x = c.recv(4096)
                    if not x:
                        return
                    c.sendall(x)
            if q.target == "/long":
                c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for i in range(40):
                    c.sendall(b"4\r\n%04d\r\n" % i)
                    time.sleep(0.1)
                c.sendall(b"0\r\n\r\n")
                continue
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%02d" % be.tag)

    be, be2 = Backend(b), Backend(b)
    be.tag, be2.tag = 1, 2
    p, q = free_port(), free_port()
    c1 = site(p, [be.port], "https")
    e = Eg(c1).start()
    try:
        ws = [tls(p) for i in range(5)]
        for s in ws:
            s.sendall(b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            assert Reader(s).response().status == 101
        lg = tls(p)
        lg.sendall(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
        got = {}
        th = threading.Thread(target=lambda: got.update(r=Reader(lg).response()))
        th.start()
        stop = threading.Event()
        res = {"ok": 0, "bad": []}

        def load(new):
            s = None
            while not stop.is_set():
                try:
                    if s is None or new:
                        s = tls(p)
                        rd = Reader(s)
                    s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                    r = rd.response()
                    if r and r.status == 200:
                        res["ok"] += 1
                    else:
                        res["bad"].append(r and r.status)
                        s = None
                    if r and (r.get("connection") or "").lower() == "close":
                        s = None
                except Exception as x:
                    res["bad"].append(repr(x))
                    s = None
                time.sleep(0.005)

        ts = [threading.Thread(target=load, args=(i % 2,)) for i in range(4)]
        [t.start() for t in ts]
        time.sleep(0.5)
        e.cli("reload")
        f0, m0 = e.fds(), e.rss()
        bad = 0
        for i in range(60):
            k = i % 4
            if k == 0:
                e.write(site(p, [be2.port], "https"))
            elif k == 1:
                e.write(c1)
            elif k == 2:
                e.write(c1.replace('pool = "p"\n', 'pool = "nope"\n'))  # refused
            else:
                e.write(c1 + '\n[[rules]]\nname = "r%d"\nwhen = \'path == "/x"\'\ndeny = 403\n' % i)
            r = e.cli("reload")
            bad += (r.returncode != 0) != (k == 2)
        check(bad == 0, "60 reloads, one in four refused (%d unexpected)" % bad)
        e.write(c1)
        e.cli("reload")
        stop.set()
        [t.join() for t in ts]
        th.join()
        check(
            not res["bad"] and res["ok"] > 100,
            "traffic meanwhile: %d answered, %d not (%s)" % (res["ok"], len(res["bad"]), res["bad"][:3]),
        )
        check(got.get("r") and got["r"].complete and len(got["r"].body) == 160, "a response of 4 s comes through")
        ok = 0
        for s in ws:
            s.sendall(b"ping")
            ok += s.recv(10) == b"ping"
        check(ok == 5, "WebSockets live (%d of 5)" % ok)
        [s.close() for s in ws]
        time.sleep(0.5)
        check(e.fds() <= f0 + 6, "no descriptor stays (%d, then %d)" % (f0, e.fds()))
        check(e.rss() - m0 < 30000, "memory: %d kB more" % (e.rss() - m0))
        note(m0, e.rss())
        for i in range(30):
            e.proc.send_signal(signal.SIGHUP)
        time.sleep(1)
        check(e.proc.poll() is None and e.status()["state"] == "running", "30 SIGHUPs at once")
        r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", sock=tls(p))
        check(r.status == 200, "and it serves")
    finally:
        e.stop()


main("reloads", f)
