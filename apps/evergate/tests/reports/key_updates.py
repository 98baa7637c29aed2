"""openssl#8068, rustls#2709: long connections update their keys often. hs-tls#539: endless key updates
without data must end.
"""

from report import *


def client(p, n, per, kk):
    """Number of answers to requests, one after each `per` of n KeyUpdates of `openssl s_client`."""
    pr = subprocess.Popen(
        ["openssl", "s_client", "-connect", "127.0.0.1:%d" % p, "-servername", "localhost", "-tls1_3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out = b""
    fd = pr.stdout.fileno()
    os.set_blocking(fd, False)

    def rd(pat, t=5):
        nonlocal out
        end = time.time() + t
        while time.time() < end:
            select.select([fd], [], [], 0.2)
            try:
                x = os.read(fd, 65536)
            except BlockingIOError:
                x = None
            if x == b"":
                return False
            if x:
                out += x
            if out.count(pat[0]) >= pat[1]:
                return True
        return False

    rd((b"read R BLOCK", 1), 3)
    got = 0
    try:
        for i in range(n):
            pr.stdin.write(kk + b"\n")
            pr.stdin.flush()
            if not rd((b"KEYUPDATE", i + 1), 3):
                break
            if (i + 1) % per == 0:
                pr.stdin.write(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % i)
                pr.stdin.flush()
                if not rd((b"HTTP/1.1 200 OK", got + 1)):
                    break
                got += 1
    except OSError as x:
        note(x)
    note(n, got, out[-300:])
    pr.kill()
    pr.wait()
    return got


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p = free_port()
    e = Eg(site(p, [be.port], "https")).start()
    try:
        for kk in (b"k", b"K"):
            g = client(p, 8, 1, kk)
            check(g == 8, "%s: a request after each of 8 KeyUpdates (%d)" % (kk.decode(), g))
            g = client(p, 100, 10, kk)
            check(g == 10, "%s: 100 KeyUpdates with requests between them (%d of 10)" % (kk.decode(), g))
            g = client(p, N, 20, kk)
            check(
                g == N // 20, "%s: %d KeyUpdates with requests between them (%d of %d)" % (kk.decode(), N, g, N // 20)
            )
        g = client(p, 60, 60, b"k")
        check(g == 0, "60 in a row without data are cut off")
        note(e.lines()[-3:], e.status()["reasons"])
    finally:
        e.stop()


N = 1300
main("KeyUpdates", f)
