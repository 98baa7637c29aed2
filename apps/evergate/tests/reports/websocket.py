"""golang/go#80875, #80416, traefik#2629, #3165, linkerd2#195: upgrades."""

from report import *


def f():
    ev = {}

    def b(c, n, be):
        r = Reader(c)
        q = r.request(body=False)
        if q is None:
            return
        be.reqs.append(q)
        t = q.target
        if t == "/ws":
            c.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: x\r\nX-Hop: 1\r\nKeep-Alive: x\r\n\r\nFIRSTFRAME"
            )
            if r.b:
                c.sendall(b"early:" + r.b)
                r.b = b""
            while True:
                x = c.recv(65536)
                if not x:
                    break
                c.sendall(x)
            ev["end"] = "fin"
        elif t == "/refuse":
            c.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\ndenied")
            q = r.request()
            if q is None:  # the client closed; a later check reads `be.reqs`
                return
            be.reqs.append(q)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        elif t == "/426":
            c.sendall(
                b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Content-Length: 0\r\n\r\n"
            )
        elif t == "/badup":
            c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n")
        elif t == "/noup":
            c.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        else:
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        time.sleep(0.2)

    be = Backend(b)
    U = (
        "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n"
    )
    for proto in ("http", "https"):
        p = free_port()
        e = Eg(site(p, [be.port], proto, pool="keep_alive_idle_max = 0")).start()

        def conn():
            return connect(p) if proto == "http" else tls(p)

        try:
            s = conn()
            s.sendall(("GET /ws HTTP/1.1\r\nHost: a\r\n" + U + "\r\n").encode() + b"EARLY")
            rd = Reader(s)
            r = rd.response()
            check(
                r.status == 101
                and (r.get("upgrade") or "").lower() == "websocket"
                and "upgrade" in (r.get("connection") or "").lower(),
                proto + ": 101 comes through with Upgrade and Connection",
            )
            check("keep-alive" not in r.names, proto + ": Keep-Alive does not")

            while not rd.b.endswith(b"EARLY") and rd.more():
                pass
            check(
                rd.b == b"FIRSTFRAME" + b"early:EARLY" or rd.b == b"FIRSTFRAMEEARLY",
                "%s: what stands right behind the 101 and behind the request arrives (%r)" % (proto, rd.b),
            )
            big = os.urandom(500_000)
            rd.b = b""
            check(rd.exchange(big) == big, proto + ": 500 kB come back as they were (%s)" % rd.eof)
            s.close()
            check(until(lambda: ev.pop("end", None)), proto + ": the client's end reaches the server")
            s = conn()
            s.sendall(("GET /refuse HTTP/1.1\r\nHost: a\r\n" + U + "\r\n").encode())
            rd = Reader(s)
            r = rd.response()
            check(r and r.status == 403 and r.body == b"denied", proto + ": a refused upgrade is an ordinary response")
            s.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            r = rd.response()
            check(r and r.status == 200, proto + ": and the connection stays open")
            s.close()
            r = ask(p, "GET /426 HTTP/1.1\r\nHost: a\r\n\r\n", sock=conn())
            check(r.status == 426 and r.get("upgrade") == "websocket", proto + ": 426 keeps Upgrade")
            r = ask(p, "GET /noup HTTP/1.1\r\nHost: a\r\n" + U + "\r\n", sock=conn())
            check(r and r.status == 502, "%s: 101 without Upgrade is 502 (%s)" % (proto, r and r.status))
            r = ask(p, "GET /ws HTTP/1.1\r\nHost: a\r\n\r\n", sock=conn())
            check(
                r and r.status == 502,
                "%s: 101 that the client did not ask for becomes 502 (%s)" % (proto, r and r.status),
            )
            for up in ("h2c", "h2c, websocket", "HTTP/2.0", "TLS/1.0", "H2C"):
                be.reqs.clear()
                r = ask(
                    p,
                    "GET /h HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n"
                    "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
                    % up,
                    sock=conn(),
                )
                u = " ".join(be.reqs[0].all("upgrade")).lower() if be.reqs else "-"
                check(
                    "h2c" not in u
                    and "http/2" not in u
                    and "tls" not in u
                    and not (be.reqs and "http2-settings" in be.reqs[0].names),
                    "%s: Upgrade: %s does not reach the server (%s)" % (proto, up, u),
                )
            check(
                until(
                    lambda: e.status()["connections"]["open"] == 0 and all(x["outstanding"] == 0 for x in e.servers())
                ),
                proto + ": nothing stays",
            )
        finally:
            e.stop()


main("upgrades", f)
