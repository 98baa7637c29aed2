"""Variants of envoy#11619 and mitmproxy#7781: the data path ends TLS with close_notify on both sides, in
each way in which a connection can end.
"""

from report import *


def f():
    ctx = server_context()
    ev = []

    def b(c, n, be):
        c.settimeout(8)
        try:
            c = ctx.wrap_socket(c, server_side=True, suppress_ragged_eofs=False)
        except (ssl.SSLError, OSError) as x:
            ev.append("hs:" + str(x)[:40])
            return
        r = Reader(c)
        while True:
            q = r.request()
            if q is None:
                ev.append(r.eof)
                return
            if q.target == "/ws":
                c.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                try:
                    while c.recv(100):
                        pass
                    ev.append("ws-fin")
                except OSError as x:
                    ev.append("ws-" + str(x)[:40])
                return
            if q.target == "/slow":
                time.sleep(1)
            try:
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            except OSError:
                ev.append("send")
                return

    be = Backend(b)
    p = free_port()
    q = free_port()
    e = Eg(
        site(
            p,
            [be.port],
            "https",
            pool="keep_alive_idle_ms = 500\n[pools.tls]\nverify = false\n",
            rest="[timeouts]\nkeep_alive_ms = 700\nrequest_head_ms = 700\ndrain_ms = 1500\ntunnel_idle_ms = 900\n"
                 "write_stall_ms = 800",
        )
    ).start()

    def end(s):
        try:
            while True:
                d = s.recv(4096)
                if not d:
                    return "clean"
        except ssl.SSLEOFError:
            return "ragged"
        except ssl.SSLError as x:
            return "ragged" if "EOF" in str(x) else str(x)
        except ConnectionResetError:
            return "reset"
        except TimeoutError:
            return "timeout"

    U = b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    try:
        for ver in ("1.3", "1.2"):
            del ev[:]
            s = tls(p, ver=ver)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            Reader(s).response()
            check(
                until(lambda: ev and ev[0] == "fin", 4),
                "%s an idle server connection ends with close_notify (%s)" % (ver, ev),
            )
            check(end(s) == "clean", ver + " a resting client's connection ends with close_notify")
            s.close()
            s = tls(p, ver=ver)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            r = Reader(s)
            r.response()
            x = end(s)
            check(x == "clean", "%s Connection: close ends with close_notify (%s)" % (ver, x))
            s.close()
            s = tls(p, ver=ver)
            x = end(s)
            check(x == "clean", "%s a client that asks nothing: close_notify (%s)" % (ver, x))
            s.close()
            s = tls(p, ver=ver)
            s.sendall(b"GET / HT")
            r = Reader(s).response()
            x = end(s)
            check(r and r.status == 408 and x == "clean", "%s 408 ends with close_notify (%s)" % (ver, x))
            s.close()
            s = tls(p, ver=ver)
            s.sendall(b"BAD\r\n\r\n")
            r = Reader(s).response()
            x = end(s)
            check(r and r.status == 400 and x == "clean", "%s 400 ends with close_notify (%s)" % (ver, x))
            s.close()
            del ev[:]
            s = tls(p, ver=ver)
            s.sendall(U)
            Reader(s).response()
            s.unwrap() if False else s.shutdown(socket.SHUT_WR)
            check(
                until(lambda: ev, 3) and ev[0] != "x",
                "%s a tunnel whose client ends without close_notify: the server sees %s" % (ver, ev),
            )
            s.close()
            del ev[:]
            s = tls(p, ver=ver)
            s.sendall(U)
            Reader(s).response()
            x = end(s)
            until(lambda: ev, 3)
            check(x == "clean", "%s an idle tunnel ends with close_notify at the client (%s, server %s)" % (ver, x, ev))
            s.close()
            s = tls(p, ver=ver)
            s.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
            time.sleep(0.2)
        s1 = tls(p)
        s1.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        Reader(s1).response()
        s2 = tls(p)
        s2.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.2)
        del ev[:]
        e.proc.send_signal(signal.SIGTERM)
        check(end(s1) == "clean", "drain: resting clients get close_notify")
        r = Reader(s2).response()
        check(r and r.status == 200 and end(s2) == "clean", "drain: a request under way is answered, then close_notify")
        e.proc.wait(5)
        check(until(lambda: all(x == "fin" for x in ev) and ev, 2), "drain: servers get close_notify (%s)" % ev)
    finally:
        e.stop()


main("TLS connections end with close_notify", f)
