"""haproxy#136, #908, #2078, #1003: servers at their maximum, while places become free and clients leave
the queue.
"""

from report import *


def f():
    ev = {"n": 0, "max": 0}
    lock = threading.Lock()
    hold = threading.Event()

    def b(c, n, be):
        r = Reader(c)
        while True:
            q = r.request()
            if q is None:
                return
            with lock:
                ev["n"] += 1
                ev["max"] = max(ev["max"], ev["n"])
            if q.target == "/hold":
                hold.wait(20)
            elif q.target == "/rst":
                with lock:
                    ev["n"] -= 1
                return rst(c)
            elif q.target == "/ws":
                c.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                while c.recv(100):
                    pass
                with lock:
                    ev["n"] -= 1
                return
            else:
                time.sleep(0.02)
            with lock:
                ev["n"] -= 1
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    be = Backend(b)
    p = free_port()
    cfg = site(
        p,
        ['{ address = "127.0.0.1:%d", connections_max = 2 }' % be.port],
        pool="queue_timeout_ms = 3000\nqueue_max = 50\nretries = 0",
    ).replace("workers = 1", "workers = 2")
    e = Eg(cfg).start()
    try:

        def many(n, path="/"):
            out = []

            def one():
                try:
                    r = ask(p, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
                    out.append(r.status if r else None)
                except OSError as x:
                    out.append(repr(x))

            ts = [threading.Thread(target=one) for i in range(n)]
            [t.start() for t in ts]
            [t.join() for t in ts]
            return out

        o = many(40)
        check(
            o.count(200) == 40 and ev["max"] <= 2,
            "40 at once through 2 places: %d served, %d at a time at most" % (o.count(200), ev["max"]),
        )
        hs = [connect(p) for i in range(2)]
        [s.sendall(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n") for s in hs]
        until(lambda: ev["n"] == 2)
        qs = [connect(p) for i in range(30)]
        [s.sendall(b"GET /q HTTP/1.1\r\nHost: a\r\n\r\n") for s in qs]
        check(
            until(lambda: e.metric("evergate_requests_queued") == 30),
            "30 wait (%d)" % e.metric("evergate_requests_queued"),
        )
        for i, s in enumerate(qs):
            if i % 2:
                rst(s)
            else:
                s.close()
        k = e.metric("evergate_requests_queued")
        until(lambda: e.metric("evergate_requests_queued") <= 0, 2)
        note("queued after clients left", k, e.metric("evergate_requests_queued"))
        check(
            e.metric("evergate_requests_queued") <= 15,
            "clients that reset leave the queue (%d)" % e.metric("evergate_requests_queued"),
        )
        hold.set()
        [Reader(s).response() for s in hs]
        [s.close() for s in hs]
        hold.clear()
        check(
            until(
                lambda: e.metric("evergate_requests_queued") == 0 and all(x["outstanding"] == 0 for x in e.servers())
            ),
            "then nothing waits and nothing is outstanding (%s)" % [x["outstanding"] for x in e.servers()],
        )
        # Every kind of end frees the place of a request.
        for i in range(20):
            s = connect(p)
            s.sendall(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
            time.sleep(0.01)
            rst(s)
        many(10, "/rst")
        for i in range(4):
            s = connect(p, 4)
            s.sendall(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            Reader(s).response()
            if i % 2:
                rst(s)
            else:
                s.close()
        hold.set()
        check(
            until(lambda: all(x["outstanding"] == 0 for x in e.servers())),
            "resets, lost responses and tunnels give their places back",
        )
        o = many(20)
        check(o.count(200) == 20, "and 20 more are served (%s)" % o)
        hold.clear()
        hs = [connect(p) for i in range(2)]
        [s.sendall(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n") for s in hs]
        time.sleep(0.2)
        t = time.time()
        r = ask(p, "GET /t HTTP/1.1\r\nHost: a\r\n\r\n")
        d = time.time() - t
        check(
            r and r.status == 503 and 2.5 < d < 4.5,
            "a request that waits too long gets 503 (%s after %.1f s)" % (r and r.status, d),
        )
        o = many(120, "/t")
        check(o.count(503) == 120, "a full queue and a long wait are 503s (%s)" % o.count(503))
        hold.set()
    finally:
        e.stop()


main("queues and places", f)
