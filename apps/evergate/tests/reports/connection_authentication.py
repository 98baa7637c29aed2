"""Reports on haproxy, envoy, traefik, caddy and yarp about NTLM and Negotiate: a server that authenticates the
connection (RFC 4559, MS-NTHT), behind persistent connections.
"""

from report import *


def f():
    log = []

    def b(c, n, be):
        r = Reader(c)
        user = None
        chal = False  # state of the connection, as with IIS
        while True:
            q = r.request()
            if q is None:
                return
            a = q.get("authorization") or ""
            log.append((n, q.target, a[:12]))
            if a.startswith(SCHEME + " TYPE1"):
                chal = True
                c.sendall(
                    b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: %s TYPE2\r\nContent-Length: 0\r\n\r\n"
                    % SCHEME.encode()
                )
                continue
            if a.startswith(SCHEME + " TYPE3:"):
                if not chal:
                    c.sendall(
                        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: %s\r\nContent-Length: 0\r\n\r\n"
                        % SCHEME.encode()
                    )
                    continue
                user = a.split(":", 1)[1]
            if user:
                d = ("secret of " + user).encode()
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(d), d))
            else:
                c.sendall(
                    b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: %s\r\nWWW-Authenticate: Basic realm=x\r\n"
                    b"Content-Length: 0\r\n\r\n"
                    % SCHEME.encode()
                )

    global SCHEME
    for SCHEME in ("NTLM", "Negotiate"):
        del log[:]
        be = Backend(b)
        p = free_port()
        e = Eg(site(p, [be.port])).start()
        try:
            alice = connect(p)
            ra = Reader(alice)

            def a(h):
                alice.sendall(("GET /alice HTTP/1.1\r\nHost: a\r\n%s\r\n" % h).encode())
                return ra.response()

            st = [
                a("").status,
                a("Authorization: %s TYPE1\r\n" % SCHEME).status,
                a("Authorization: %s TYPE3:alice\r\n" % SCHEME).status,
            ]
            note(st, log)
            check(st == [401, 401, 200], "%s: Alice can log in (%s)" % (SCHEME, st))
            got = []
            for i in range(5):
                r = ask(p, "GET /bob HTTP/1.1\r\nHost: a\r\n\r\n")
                got.append((r.status, r.body.decode()))
            note(got, log)
            check(
                not any("alice" in x[1] for x in got),
                "%s: Bob has no password and does not get Alice's page (%s)" % (SCHEME, got[0]),
            )
            # Interleaved: Alice's handshake while Bob sends requests.
            carol = connect(p)
            rc = Reader(carol)

            def cc(h):
                carol.sendall(("GET /carol HTTP/1.1\r\nHost: a\r\n%s\r\n" % h).encode())
                return rc.response()

            s1 = cc("Authorization: %s TYPE1\r\n" % SCHEME).status
            ask(p, "GET /bob2 HTTP/1.1\r\nHost: a\r\n\r\n")
            hold = connect(p)
            hold.sendall(b"GET /bob3 HTTP/1.1\r\nHost: a\r\n\r\n")
            s2 = cc("Authorization: %s TYPE3:carol\r\n" % SCHEME)
            check(
                s2.status == 200,
                "%s: an authentication stays on its server connection beside other requests (%s)" % (SCHEME, s2.status),
            )
            hold.close()
        finally:
            e.stop()


main("servers that authenticate the connection", f)
