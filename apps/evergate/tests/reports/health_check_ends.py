"""haproxy#560 (and ceph-ansible#5126, cockroach#16084): health checks that reset their connections
fill servers' logs.
"""

from report import *


def f():
    for tlsb in (False, True):
        for size in (0, 200, 4000, 15000, 40000, 300000):
            ev = {"rst": 0, "n": 0, "fin": 0, "ragged": 0}

            def b(c, n, be):
                r = Reader(c)
                q = r.request()
                if q is None:
                    return
                ev["n"] += 1
                try:
                    c.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
                    )
                    c.settimeout(2)
                    x = c.recv(10)
                    ev["fin"] += 1
                except (ConnectionResetError, BrokenPipeError):
                    ev["rst"] += 1
                except ssl.SSLError as x:
                    ev["ragged"] += 1

            ctx = None
            rest = ""
            if tlsb:
                ctx = server_context()
                rest = "[pools.tls]\nverify = false\n"
            be = Backend(b, tls=ctx)
            p = free_port()
            e = Eg(site(p, [be.port], pool="[pools.health]\ninterval_ms = 1500\ntimeout_ms = 1400\n" + rest)).start()
            try:
                until(lambda: ev["fin"] >= 2, 10)  # the long timeout is for a busy machine: a late response is aborted
                check(
                    ev["fin"] >= 2 and ev["rst"] + ev["ragged"] == 0,
                    "%sa healthy answer of %d bytes: the check's connection ends in order (%s)"
                    % ("TLS, " if tlsb else "", size, ev),
                )
            finally:
                e.stop()


main("health checks end their connections in order", f)
