"""RFC 8446 6.1, RFC 5246 7.2.1: every orderly end of a TLS connection to a server begins with
close_notify.
"""

from report import *


def f():
    ctx = server_context()
    ev = []

    def b(c, n, be):
        c.settimeout(8)
        c = ctx.wrap_socket(c, server_side=True, suppress_ragged_eofs=False)
        r = Reader(c)
        while True:
            q = r.request()
            if q is None:
                ev.append(r.eof)
                return
            if q.target == "/ws":
                c.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                while r.more():
                    pass
                ev.append(r.eof)
                return
            if q.target == "/cl":
                c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
                r.more()
                ev.append(r.eof)
                return
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    be = Backend(b)
    for name, pool, paths in (
        ("idle for keep_alive_idle_ms", "keep_alive_idle_ms = 300", ["/"]),
        ("keep_alive_idle_max = 0", "keep_alive_idle_max = 0", ["/"]),
        ("Connection: close of the server", "", ["/cl"]),
        ("a tunnel whose client ends", "", ["/ws"]),
        ("a reload that takes the server away", "", ["reload"]),
        ("the node's end", "", ["term"]),
    ):
        p = free_port()
        e = Eg(site(p, [be.port], "http", pool=pool + "\n[pools.tls]\nverify = false\n")).start()
        del ev[:]
        try:
            for path in paths:
                s = connect(p)
                s.sendall(
                    (
                        "GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n"
                        % (
                            path if path[0] == "/" else "/",
                            "Upgrade: websocket\r\nConnection: Upgrade\r\n" if path == "/ws" else "",
                        )
                    ).encode()
                )
                Reader(s).response()
                if path == "/ws":
                    s.shutdown(socket.SHUT_WR)
                if path == "reload":
                    e.write(site(p, [free_port()], "http"))
                    e.cli("reload")
                if path == "term":
                    e.proc.send_signal(signal.SIGTERM)
                until(lambda: ev, 6)
                check(ev == ["fin"], "%s: the server sees close_notify (%s)" % (name, ev))
                s.close()
        finally:
            e.stop()


main("TLS connections to servers end with close_notify", f)
