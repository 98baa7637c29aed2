"""traefik#3165, haproxy#2182, #1109, golang: clients that vanish without a segment are detected, although a
tunnel may be idle for hours.
"""

from report import *


def f():
    def b(c, n, be):
        r = Reader(c)
        q = r.request()
        if q:
            c.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            c.settimeout(30)
            c.recv(10)

    be = Backend(b)
    for proto in ("http", "https", "tcp"):
        p = free_port()
        e = Eg(site(p, [be.port], proto)).start()
        try:
            s = tls(p) if proto == "https" else connect(p)
            s.sendall(b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            Reader(s).head()
            time.sleep(0.3)
            out = subprocess.run(["ss", "-tnoH", "state", "established"], capture_output=True, text=True).stdout
            mine = [l for l in out.splitlines() if re.match(r"\d+\s+\d+\s+127.0.0.1:%d\s" % p, l)]
            srv = [l for l in out.splitlines() if re.search(r"^\d+\s+\d+\s+\S+\s+127.0.0.1:%d\b" % be.port, l)]
            check(
                mine and all("keepalive" in l for l in mine),
                "%s: the client's socket of a quiet tunnel has TCP keep-alive (%s)" % (proto, mine),
            )
            check(srv and all("keepalive" in l for l in srv), "%s: the server's too (%s)" % (proto, srv))
            s.close()
        finally:
            e.stop()


main("vanished peers of tunnels", f)
