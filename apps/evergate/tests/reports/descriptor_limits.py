"""haproxy#18, #2519: descriptors or connections are exhausted, and accept must not spin."""

from report import *

import resource


def cpu(pid):
    f = open("/proc/%d/stat" % pid).read().rsplit(") ", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p = free_port()
    e = Eg(site(p, [be.port]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (110, hard))
    old = subprocess.Popen

    def lim(*a, **k):
        return old(["bash", "-c", 'ulimit -n 110; exec "$@"', "x"] + a[0], *a[1:], **k)

    subprocess.Popen = lim
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    e.start()
    subprocess.Popen = old
    try:
        ss = []
        for i in range(200):
            try:
                ss.append(connect(p, 2))
            except OSError:
                break
        time.sleep(0.5)
        c0 = cpu(e.proc.pid)
        time.sleep(2)
        c = cpu(e.proc.pid) - c0
        check(c < 0.3, "with all descriptors in use it does not spin (%.2f s of 2)" % c)
        served = 0
        for s in ss[:20]:
            try:
                s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                r = Reader(s).response()
                served += bool(r and r.status == 200)
            except OSError:
                pass
        check(served >= 15, "those that are in are served (%d of 20)" % served)
        check(e.cli("status").returncode == 0, "the operator's commands work")
        [s.close() for s in ss]
        check(
            until(lambda: (lambda r: r and r.status == 200)(ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", timeout=3)), 5),
            "afterwards requests are served",
        )
    finally:
        e.stop()


main("descriptors that run out", f)
