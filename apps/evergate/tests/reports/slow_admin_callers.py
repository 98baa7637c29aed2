"""Reports on envoy, haproxy (#151, #156) and traefik: slow or idle callers of the metrics and health address
and of the admin socket; standard streams without a reader.
"""

from report import *


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p, m = free_port(), free_port()
    e = Eg(
        site(p, [be.port], rest='[admin]\nsocket = "{dir}/a.sock"\nmetrics_listen = "127.0.0.1:%d"\n' % m), admin=False
    ).start()

    def healthy(t):
        t0 = time.time()
        try:
            r = ask(m, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", timeout=t)
            return r and r.status, time.time() - t0
        except OSError as x:
            return repr(x), time.time() - t0

    try:
        check(healthy(3)[0] == 200, "/healthz is 200")
        for name, first in (
            ("send nothing", b""),
            ("send half a head", b"GET /metrics HTTP/1.1\r\nHo"),
            ("do not read", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
        ):
            ss = []
            for i in range(80):
                s = connect(m, 5, rcvbuf=2048)
                s.sendall(first) if first else None
                ss.append(s)
            time.sleep(0.3)
            st, t = healthy(6)
            check(st == 200 and t < 3, "80 callers that %s: /healthz answers within 3 s (%s, %.1f s)" % (name, st, t))
            r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            check(r.status == 200, "traffic is served")
            [s.close() for s in ss]
            time.sleep(0.3)
        ss = []
        for i in range(80):
            s = socket.socket(socket.AF_UNIX)
            s.connect(e.sock)
            ss.append(s)
        t = time.time()
        r = e.cli("status")
        k = time.time() - t
        r = r if r.returncode == 0 else e.cli("status")
        check(
            r.returncode == 0,
            "80 idle callers of the admin socket: the first or second status command is answered "
            "(%d, first after %.1f s)"
            % (r.returncode, k),
        )
        [s.close() for s in ss]
    finally:
        e.stop()
    # Standard output and standard error without a reader.
    p = free_port()
    d = tempfile.mkdtemp(prefix="evergate-report-")
    open(d + "/c.toml", "w").write(site(p, [be.port]) + '[admin]\nsocket = "%s/a.sock"\n' % d)
    pr = subprocess.Popen([BIN, "run", d + "/c.toml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: os.path.exists(d + "/a.sock"), 5)
        time.sleep(0.3)
        ok = 0
        t = time.time()
        s = connect(p)
        rd = Reader(s)
        for i in range(3000):
            s.sendall(b"GET /" + b"q" * 400 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            r = rd.response()
            ok += bool(r and r.status == 200)
        check(
            ok == 3000,
            "3000 requests while no process reads the log on standard output (%d, %.1f s)" % (ok, time.time() - t),
        )
        for i in range(60):
            pr.send_signal(signal.SIGHUP)
            time.sleep(0.01)
        r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        check(r.status == 200, "and 60 reloads")
        pr.send_signal(signal.SIGTERM)
        try:
            pr.wait(6)
            check(pr.returncode == 0, "it ends within its time (%s)" % pr.returncode)
        except subprocess.TimeoutExpired:
            check(False, "it does not end")
    finally:
        if pr.poll() is None:
            pr.kill()
            pr.wait()
        shutil.rmtree(d)


main("slow callers of the node's own servers, logs without a reader", f)
