"""haproxy#51, #345, #1278, nginx ("host not found in upstream"), localhost as ::1 (cryptpad#2299,
codecity#416): names of servers.
"""

from report import *


def f():
    d = tempfile.mkdtemp(prefix="evergate-report-")
    hosts = d + "/hosts"

    def put(t):
        open(hosts, "w").write("127.0.0.1 localhost\n" + t)

    put("127.0.0.1 one.test\n127.0.0.2 two.test\n")
    ok = lambda tag: (lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + tag)
    b1 = Backend(http=ok(b"1"))
    b2 = Backend(http=ok(b"2"), host="127.0.0.2", port=b1.port)
    old = subprocess.Popen

    def ns(a, *x, **k):
        return old(["unshare", "-m", "bash", "-c", 'mount --bind %s /etc/hosts && exec "$@"' % hosts, "x"] + a, *x, **k)

    p = free_port()
    cfg = lambda host, extra="": site(
        p, ['{ name = "s", address = "%s:%d" }' % (host, b1.port)], pool="retries = 0\n" + extra
    )
    e = Eg(cfg("one.test"))
    subprocess.Popen = ns
    e.start()
    subprocess.Popen = old
    get = lambda: ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", timeout=5)
    try:
        check(get().body == b"1", "a name of the hosts file")
        e.write(cfg("two.test"))
        e.cli("reload")
        check(get().body == b"2", "another name by a reload")
        put("127.0.0.1 two.test\n")
        check(get().body == b"2", "an address that changes counts from the next reload on")
        r = e.cli("reload")
        check(r.returncode == 0 and get().body == b"1", "reload: the new address")
        put("127.0.0.1 two.test\n127.0.0.2 two.test\n")
        e.cli("reload")
        check(get().body == b"1", "the address in use stays while the name has it")
        put("")
        r = e.cli("reload")
        check(
            r.returncode != 0 and get().body == b"1",
            "a name that is gone: the reload is refused, and the node keeps serving (%s)" % (r.stdout + r.stderr)[:150],
        )
        check(e.status()["state"] == "running", "it runs")
        put("::1 dual.test\n127.0.0.1 dual.test\n")
        e.write(cfg("dual.test", "[pools.health]\ninterval_ms = 200\ntimeout_ms = 150\n"))
        r = e.cli("reload")
        time.sleep(1)
        x = e.servers()[0]
        g = get()
        note(x, g and g.line)
        DUAL.append((x["address"], x["state"], g and g.status))
        check(
            g and g.status == 200,
            "a name with ::1 and 127.0.0.1, whose server listens on the second only, is served (%s %s, %s)"
            % (x["address"], x["state"], g and g.status),
        )
    finally:
        note(e.stderr()[-400:])
        e.stop()
        shutil.rmtree(d)


DUAL = []
main("names of servers", f)
