"""Variants of haproxy#560: other kinds of health checks, and the node's admin and metrics servers."""

from report import *


def run(name, handler, h, tlsb=False, kind="http"):
    ev = {"rst": 0, "n": 0, "fin": 0, "ragged": 0}

    def b(c, n, be):
        if tlsb:
            c = cert_ctx.wrap_socket(c, server_side=True, suppress_ragged_eofs=False)
        ev["n"] += 1
        c.settimeout(2)
        try:
            handler(c)
            while True:
                if not c.recv(4096):
                    break
            ev["fin"] += 1
        except (ConnectionResetError, BrokenPipeError):
            ev["rst"] += 1
        except ssl.SSLError as x:
            ev["ragged"] += 1
            ev["x"] = str(x)

    be = Backend(b)
    p = free_port()
    e = Eg(
        site(
            p,
            [be.port],
            "http" if kind != "tcp" else "tcp",
            pool='[pools.health]\nkind = "%s"\ninterval_ms = 100\ntimeout_ms = 90\n%s'
            % (kind, "[pools.tls]\nverify = false\n" if tlsb else ""),
        )
    ).start()
    try:
        until(lambda: ev["n"] >= 8, 4)
        time.sleep(0.1)
        check(ev["fin"] >= ev["n"] - 1 and ev["n"] >= 5, "%s (%s; %s)" % (name, ev, e.servers()[0]["state"]))
    finally:
        e.stop()


cert_ctx = server_context()


def req(c):
    r = Reader(c)
    r.request()


def two(c):
    req(c)
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    time.sleep(0.02)
    c.sendall(b"hello")


def typical(c):
    req(c)
    c.sendall(
        b"HTTP/1.1 200 OK\r\nServer: nginx/1.24.0\r\nDate: Sat, 28 Nov 2026 10:00:00 GMT\r\n"
        b"Content-Type: application/json\r\nContent-Length: 220\r\nConnection: close\r\n"
        b"Cache-Control: no-cache, no-store, max-age=0, must-revalidate\r\n\r\n"
        + b"{"
        + b"x" * 218
        + b"}"
    )


def small(c):
    req(c)
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def chunk(c):
    req(c)
    c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
    time.sleep(0.01)
    c.sendall(b"0\r\n\r\n")


def f():
    run("small answer in one write ends in order", small, "")
    run("a usual answer of 220 bytes ends in order", typical, "")
    run("head and body in two writes end in order", two, "")
    run("a chunked answer in two writes ends in order", chunk, "")
    run("TLS: an HTTP check ends with close_notify", small, "", True)
    run("TLS: a tcp check ends with close_notify", lambda c: None, "", True, "tcp")
    run(
        "tcp check of a server that sends first ends in order",
        lambda c: c.sendall(b"220 mail ESMTP\r\n"),
        "",
        False,
        "tcp",
    )
    run("tcp check of a server that is silent ends in order", lambda c: None, "", False, "tcp")
    # The node's admin and metrics servers.
    be = Backend(http=lambda q: b"")
    p, m = free_port(), free_port()
    e = Eg(
        site(p, [be.port], rest='[admin]\nmetrics_listen = "127.0.0.1:%d"\nsocket = "{dir}/a.sock"' % m), admin=False
    ).start()
    try:
        for i in range(5):
            s = connect(m)
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" + b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
            time.sleep(0.1)
            r = Reader(s).response()
            check(
                r and r.status == 200 and r.complete and b"# EOF" in r.body or b"evergate_build_info" in r.body,
                "metrics: a pipelining caller gets a whole answer",
            )
            s = connect(m)
            s.sendall(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200000)
            time.sleep(0.1)
            r = Reader(s).response()
            check(
                r is not None and r.status == 405,
                "metrics: 405 reaches a caller that sends a body (%s)" % (r and r.status),
            )
            s.close()
            s = socket.socket(socket.AF_UNIX)
            s.connect(e.sock)
            s.settimeout(5)
            s.sendall(b"GET /v1/status HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100000)
            time.sleep(0.1)
            r = Reader(s).response()
            check(
                r is not None and r.status in (200, 400, 413),
                "admin: an answer reaches a caller that sends a body (%s)" % (r and r.status),
            )
            s.close()
    finally:
        e.stop()


main("connections that the node itself opens or answers end in order", f)
