"""envoy#17186, sozu#1227, caddy#3557, haproxy#2749, envoy#45190: complete and truncated ends of a response."""

from report import *


def f():
    big = bytes(range(256)) * 16384  # 4 MiB

    def b(c, n, be):
        r = Reader(c)
        q = r.request()
        if q is None:
            return
        t = q.target
        if t == "/cutchunk":
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            time.sleep(0.1)
            return
        if t == "/cutmid":
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nhello")
            time.sleep(0.1)
            return
        if t == "/cutcl":
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
            time.sleep(0.1)
            return
        if t == "/cuthead":
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
            return
        if t == "/rstclose":
            c.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
            time.sleep(0.2)
            rst(c)
            return
        if t == "/badchunk":
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nXYZ\r\n")
            time.sleep(0.3)
            return
        if t.startswith("/rstdone"):  # a whole chunked response, directly followed by a RST
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
            for i in range(0, len(big), 65536):
                c.sendall(b"10000\r\n" + big[i : i + 65536] + b"\r\n")
            c.sendall(b"0\r\n\r\n")
            time.sleep(0.5)
            rst(c)
            return
        if t == "/silent":
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            time.sleep(4)
            return
        if t == "/eofbig":
            c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + big)
            return

    be = Backend(b)
    for proto in ("http", "https"):
        p = free_port()
        e = Eg(site(p, [be.port], proto, pool="response_timeout_ms = 1000")).start()
        try:

            def go(t, slow=False):
                s = connect(p) if proto == "http" else tls(p)
                s.sendall(("GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % t).encode())
                if slow:
                    time.sleep(1)
                try:
                    return Reader(s).response()
                except ssl.SSLError as x:
                    m = Msg()
                    m.status = 200
                    m.complete = False
                    m.body = b""
                    m.eof = x
                    return m

            for t in ("/cutchunk", "/cutmid", "/cutcl", "/badchunk", "/silent"):
                r = go(t)
                check(
                    r and (r.status == 502 or not r.complete),
                    "%s %s: what is cut is not passed off as whole" % (proto, t),
                )
            r = go("/cuthead")
            check(r and r.status == 502, "%s: a cut head is 502" % proto)
            r = go("/rstclose")
            check(r and not r.complete, "%s: a reset of an unbounded response is none of its ends" % proto)
            for sl in (False, True):
                r = go("/rstdone", sl)
                check(
                    r and r.complete and r.body == big,
                    "%s: whole chunked response, server resets later (slow client %s): whole (%d of %d)"
                    % (proto, sl, len(r.body) if r else -1, len(big)),
                )
            r = go("/eofbig")
            check(r and r.complete and r.body == big, "%s: unbounded response is whole" % proto)
        finally:
            e.stop()


main("a response is whole where it is, and only there", f)
