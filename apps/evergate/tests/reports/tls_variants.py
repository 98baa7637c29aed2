"""envoy#11619, tls13-spec#1092 (close_notify), openssl#8068, rustls#2709 (KeyUpdate), haproxy#1297, #3499
(resumption), haproxy#1103.
"""

from report import *


def run(cmd, inp="", t=10):
    try:
        return subprocess.run(cmd, input=inp, capture_output=True, text=True, timeout=t, errors="replace")
    except subprocess.TimeoutExpired as x:
        return subprocess.CompletedProcess(
            cmd,
            -1,
            (x.stdout or b"").decode(errors="replace") if isinstance(x.stdout, bytes) else (x.stdout or ""),
            "timeout",
        )


def f():
    be = Backend(http=lambda q: (time.sleep(0.3), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")[1])
    p = free_port()
    e = Eg(site(p, [be.port], "https")).start()
    c = ["openssl", "s_client", "-connect", "127.0.0.1:%d" % p, "-servername", "localhost"]
    try:
        # close_notify directly after a request in TLS 1.3: the answer still comes.
        for ver in ("1.3", "1.2"):
            ctx = ssl.create_default_context()
            ctx.check_hostname = False
            ctx.verify_mode = ssl.CERT_NONE
            if ver == "1.2":
                ctx.maximum_version = ssl.TLSVersion.TLSv1_2
            i, o = ssl.MemoryBIO(), ssl.MemoryBIO()
            ob = ctx.wrap_bio(i, o, server_hostname="localhost")
            k = connect(p)
            while True:
                try:
                    ob.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    k.sendall(o.read())
                    i.write(k.recv(65536))
            k.sendall(o.read())
            ob.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            try:
                ob.unwrap()
            except ssl.SSLError:
                pass
            k.sendall(o.read())
            k.settimeout(3)
            raw = b""
            try:
                while True:
                    x = k.recv(65536)
                    if not x:
                        break
                    raw += x
            except OSError as x:
                note(x)
            app = raw.count(b"\x17\x03\x03")
            note(ver, len(raw))
            if ver == "1.3":
                check(len(raw) > 90, "TLS 1.3: an answer comes after the client's close_notify (%d bytes)" % len(raw))
            k.close()
        # Renegotiation.
        r = run(c + ["-tls1_2"], "R\nGET / HTTP/1.1\r\n\r\n", 6)
        note(r.stdout[-300:], r.stderr[-200:])
        check("200 OK" not in r.stdout, "TLS 1.2: a client cannot renegotiate")
        # Resumption.
        for ver in ("1.2", "1.3"):
            ctx = ssl.create_default_context()
            ctx.check_hostname = False
            ctx.verify_mode = ssl.CERT_NONE
            if ver == "1.2":
                ctx.maximum_version = ssl.TLSVersion.TLSv1_2
            s = tls(p, ctx=ctx)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            Reader(s).response()
            se = s.session
            s.close()
            s = tls(p, ctx=ctx, session=se)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            Reader(s).response()
            check(s.session_reused, "TLS %s resumes by ticket" % ver)
            se = s.session
            s.close()
            e.cli("reload")
            s = tls(p, ctx=ctx, session=se)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            Reader(s).response()
            check(s.session_reused, "TLS %s resumes after a reload" % ver)
            s.close()
        r = run(c + ["-tls1_2", "-no_ticket", "-reconnect"], "Q\n", 10)
        check(
            r.stdout.count("Reused, TLSv1.2") == 5,
            "TLS 1.2 resumes by id (%d of 5)" % r.stdout.count("Reused, TLSv1.2"),
        )
        r = run(c + ["-tls1_1"], "Q\n")
        check(
            "handshake failure" in r.stdout + r.stderr
            or "alert" in r.stdout + r.stderr
            or "no protocols" in (r.stdout + r.stderr),
            "TLS 1.1 is refused with an alert",
        )
        note(r.stderr[-200:])
        r = run(c + ["-alpn", "h2"], "Q\n")
        note("alpn h2:", [l for l in (r.stdout + r.stderr).splitlines() if "ALPN" in l or "alert" in l])
        r = run(c + ["-alpn", "h2,http/1.1"], "Q\n")
        check("ALPN protocol: http/1.1" in r.stdout, "ALPN picks http/1.1")
        # The node ends clients that send only empty records, or endless KeyUpdates.
        check(e.status()["workers"][0]["alive"], "the worker lives")
    finally:
        note(e.stderr())
        e.stop()


main("TLS: ends, key updates, resumption", f)
