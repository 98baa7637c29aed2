"""Variants of openssl#8068 and rustls#2709: long key updates on a WebSocket, a TLS relay and a server
connection.
"""

from report import *


def keys(p, n, first, per=16, cmd=b"k"):
    pr = subprocess.Popen(
        ["openssl", "s_client", "-connect", "127.0.0.1:%d" % p, "-servername", "localhost", "-tls1_3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out = b""
    fd = pr.stdout.fileno()
    os.set_blocking(fd, False)

    def rd(pat, k, t=5):
        nonlocal out
        end = time.time() + t
        while time.time() < end:
            if out.count(pat) >= k:
                return True
            select.select([fd], [], [], 0.2)
            try:
                x = os.read(fd, 65536)
            except BlockingIOError:
                continue
            if x == b"":
                return False
            out += x
        return False

    rd(b"read R BLOCK", 1, 3)
    got = 0
    try:
        if first:
            pr.stdin.write(first)
            pr.stdin.flush()
            rd(b"101 S", 1)
        for i in range(n):
            pr.stdin.write(cmd + b"\n")
            pr.stdin.flush()
            if not rd(b"KEYUPDATE", i + 1, 3):
                break
            if (i + 1) % per == 0:
                pr.stdin.write(b"echo-%d\n" % (i + 1))
                pr.stdin.flush()
                if not rd(b"echo-%d" % (i + 1), 1):
                    break
                got = i + 1
    except OSError as x:
        note(x)
    pr.kill()
    pr.wait()
    return got


def f():
    def b(c, n, be):
        d = c.recv(4096)
        if d.startswith(b"GET"):
            c.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        else:
            c.sendall(d)
        while True:
            d = c.recv(4096)
            if not d:
                return
            c.sendall(d)

    be = Backend(b)
    for name, proto, first in (
        (
            "a WebSocket",
            "https",
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        ),
        ("a TLS relay", "tls", None),
    ):
        p = free_port()
        e = Eg(site(p, [be.port], proto)).start()
        try:
            g = keys(p, 1200, first)
            time.sleep(0.3)
            check(
                g >= 1180,
                "%s: %d of 1200 KeyUpdates, data after every 16th; %s"
                % (name, g, [(l.get("reason"), l["status"]) for l in e.jlines()]),
            )
            note(e.status()["reasons"])
        finally:
            e.stop()
    # A server that updates keys, behind a relay without TLS.
    d = tempfile.mkdtemp(prefix="evergate-report-")
    certificate(d)
    q, p = free_port(), free_port()
    sv = subprocess.Popen(
        ["openssl", "s_server", "-accept", "127.0.0.1:%d" % q, "-cert", d + "/c", "-key", d + "/k", "-tls1_3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(0.5)
    e = Eg(site(p, [q], "tcp", pool="[pools.tls]\nverify = false\n")).start()
    got = 0
    try:
        s = connect(p, 3)
        s.sendall(b"hello\n")
        time.sleep(0.5)
        out = b""
        try:
            for i in range(1200):
                sv.stdin.write(b"k\n")
                sv.stdin.flush()
                time.sleep(0.004)
                if (i + 1) % 16 == 0:
                    time.sleep(0.02)
                    sv.stdin.write(b"data-%d\n" % (i + 1))
                    sv.stdin.flush()
                    while b"data-%d\n" % (i + 1) not in out:
                        x = s.recv(4096)
                        if not x:
                            raise OSError("end")
                        out += x
                    got = i + 1
        except OSError as x:
            note(x)
        time.sleep(0.3)
        check(
            got >= 1180,
            "a server's connection: %d of 1200; %s" % (got, [(l.get("reason"), l["status"]) for l in e.jlines()]),
        )
    finally:
        e.stop()
        sv.kill()
        sv.wait()
        shutil.rmtree(d)


main("tunnels whose clients change keys for long", f)
