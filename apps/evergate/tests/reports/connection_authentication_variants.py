"""Variants of haproxy#581, #1140: tokens without a challenge (Kerberos), Persistent-Auth,
keep_alive_idle_max = 0, TLS, tunnels of one client, 407.
"""

from report import *


def f():
    log = []

    def mk(scheme, extra=b"", preempt=False, code=401):
        H = b"WWW-Authenticate" if code == 401 else b"Proxy-Authenticate"
        A = "authorization" if code == 401 else "proxy-authorization"

        def b(c, n, be):
            r = Reader(c)
            user = None
            chal = preempt
            while True:
                q = r.request()
                if q is None:
                    return
                a = q.get(A) or ""
                log.append((n, q.target, a[:20]))
                if a == scheme + " TYPE1":
                    chal = True
                    c.sendall(
                        b"HTTP/1.1 %d No\r\n%s: %s TYPE2\r\nContent-Length: 0\r\n\r\n" % (code, H, scheme.encode())
                    )
                    continue
                if a.startswith(scheme + " TYPE3:") and chal:
                    user = a.split(":", 1)[1]
                if user:
                    d = ("secret of " + user).encode()
                    c.sendall(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (extra, len(d), d))
                else:
                    c.sendall(b"HTTP/1.1 %d No\r\n%s: %s\r\nContent-Length: 0\r\n\r\n" % (code, H, scheme.encode()))

        return b

    def case(name, scheme, steps, A="Authorization", proto="http", pool="", login=True, **k):
        del log[:]
        be = Backend(mk(scheme, **k))
        p = free_port()
        e = Eg(site(p, [be.port], proto, pool=pool)).start()
        try:
            con = lambda: tls(p) if proto == "https" else connect(p)
            s = con()
            rd = Reader(s)
            st = []
            for t in steps:
                s.sendall(
                    ("GET /a HTTP/1.1\r\nHost: a\r\n%s\r\n" % ("%s: %s %s\r\n" % (A, scheme, t) if t else "")).encode()
                )
                st.append(rd.response().status)
            check(st[-1] == 200, "%s: Alice can log in (%s)" % (name, st))
            r = ask(p, "GET /b HTTP/1.1\r\nHost: a\r\n\r\n", sock=con())
            check(b"alice" not in r.body, "%s: Bob is not taken for Alice (%d %r)" % (name, r.status, r.body))
            s.sendall(b"GET /a2 HTTP/1.1\r\nHost: a\r\n\r\n")
            r = rd.response()
            check(
                r and r.status == 200 and b"alice" in r.body,
                "%s: Alice stays logged in on her connection (%s)" % (name, r and r.status),
            )
            s.close()
            time.sleep(0.1)
            r = ask(p, "GET /c HTTP/1.1\r\nHost: a\r\n\r\n", sock=con())
            check(
                b"alice" not in r.body,
                "%s: after her connection ended, no client has her server connection (%d %r)"
                % (name, r.status, r.body),
            )
        finally:
            e.stop()

    case("a token at once, without a challenge (Kerberos)", "Negotiate", ["TYPE3:alice"], preempt=True)
    case("Persistent-Auth: true", "Negotiate", ["TYPE3:alice"], preempt=True, extra=b"Persistent-Auth: true\r\n")
    case("over TLS", "NTLM", ["", "TYPE1", "TYPE3:alice"], proto="https")
    case("keep_alive_idle_max = 0", "NTLM", ["", "TYPE1", "TYPE3:alice"], pool="keep_alive_idle_max = 0")
    case("407", "NTLM", ["", "TYPE1", "TYPE3:alice"], A="Proxy-Authorization", code=407)


main("servers that authenticate the connection, in other ways", f)
