"""Reports on rustls (SNI with an IP address or unusual characters is refused) and openssl clients: invalid
names.
"""

from report import *


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p = free_port()
    e = Eg(site(p, [be.port], "https")).start()
    try:
        for n in (
            "127.0.0.1",
            "::1",
            "my_host.test",
            "xn--bcher-kva.test",
            "a" * 63 + ".test",
            "a..b",
            "localhost:8443",
            "*.test",
        ):
            for v in ("-tls1_2", "-tls1_3"):
                r = subprocess.run(
                    ["openssl", "s_client", "-connect", "127.0.0.1:%d" % p, "-servername", n, v, "-quiet"],
                    input="GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                    capture_output=True,
                    text=True,
                    timeout=8,
                    errors="replace",
                )
                ok = "HTTP/1.1 200" in r.stdout or "verify return" in r.stderr
                a = re.search(r"alert [a-z ]+", r.stderr)
                RES.append((n, v, ok, a and a.group(0)))
        note(RES)
        for n, v, ok, a in RES:
            if n in ("a..b", "localhost:8443", "*.test", "::1"):
                continue  # invalid names: acceptance and refusal are both correct
            check(ok, "SNI %s %s is served (%s)" % (n, v, a))
        s = tls(p)
        s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        check(Reader(s).response().status == 200, "others too")
    finally:
        note(e.jlines()[:3])
        e.stop()


RES = []
main("odd server names", f)
