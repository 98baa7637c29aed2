"""Reports on haproxy (#1281), nginx ("cannot assign requested address") and envoy: exhausted ports, servers
that do not answer SYNs, bursts, and quick restarts.
"""

from report import *


def sh(c):
    return subprocess.run(c, shell=True, capture_output=True, text=True)


def f():
    ns = "egr-p%d" % (os.getpid() % 10000)
    sh(
        "ip netns add %s && ip -n %s link set lo up && "
        "ip -n %s route add blackhole 10.9.9.9/32; "
        "ip netns exec %s sysctl -qw net.ipv4.ip_local_port_range='40000 40019'"
        % (ns, ns, ns, ns)
    )
    code = """
import sys, os
setns = os.setns if hasattr(os, "setns") else __import__("ctypes").CDLL(None).setns
setns(os.open("/run/netns/%s", os.O_RDONLY), 0x40000000)
""" % ns
    exec(code)  # this process enters the namespace
    try:
        hold = threading.Event()

        def b(c, n, be):
            r = Reader(c)
            while True:
                q = r.request()
                if q is None:
                    return
                if q.target == "/hold":
                    hold.wait(8)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        be = Backend(b, port=8081)
        p = 8443

        # Clients use other addresses and ports, so that only the ports towards the server run out.
        def con(i, t=9):
            s = socket.socket()
            s.settimeout(t)
            s.bind(("127.0.%d.%d" % (1 + i // 200, 1 + i % 200), 20000 + i))
            s.connect(("127.0.0.1", p))
            return s

        e = Eg(site(p, [8081], pool="retries = 0\nconnect_timeout_ms = 2000")).start()
        try:
            ss = [con(i) for i in range(40)]
            t = time.time()
            for s in ss:
                s.sendall(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
            time.sleep(0.8)
            hold.set()
            st = []
            for s in ss:
                r = Reader(s).response()
                st.append(r and r.status)
                s.close()
            check(
                set(st) == {200, 502} and time.time() - t < 4,
                "20 ports for 40 requests: the others get 502 at once (%s)" % {x: st.count(x) for x in set(st)},
            )
            l = [x for x in e.jlines(40) if x["status"] == 502]
            check(
                l and l[0]["reason"] == "connect_failed" and "assign" in (l[0].get("detail") or ""),
                "the log names what is missing (%s, %s)" % (l and l[0].get("reason"), l and l[0].get("detail")),
            )
            time.sleep(0.3)
            s = con(41)
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            r = Reader(s).response()
            check(r and r.status == 200, "afterwards all is well")
        finally:
            e.stop()
        p = 8444
        sh("sysctl -qw net.ipv4.ip_local_port_range='32768 60999'")
        full = socket.socket()
        full.bind(("127.0.0.1", 8090))
        full.listen(0)
        fill = []
        for i in range(4):
            x = socket.socket()
            x.setblocking(False)
            x.connect_ex(("127.0.0.1", 8090))
            fill.append(x)  # a server whose queue is full drops SYNs
        e = Eg(site(p, [8090, 8081], pool='policy = "round_robin"\nconnect_timeout_ms = 400')).start()
        try:
            st, t = [], time.time()
            for m in ("GET", "POST") * 3:
                r = ask(p, "%s / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % m)
                st.append(r and r.status)
            check(st == [200] * 6, "a server that answers no SYN is passed over, for POST too (%s)" % st)
            check(time.time() - t < 4, "within its connect timeout (%.1f s)" % (time.time() - t))
            # A burst.
            t = time.time()
            ss = [connect(p, 9) for i in range(600)]
            check(time.time() - t < 3, "600 connects at once (%.1f s)" % (time.time() - t))
            [s.close() for s in ss]
            lq = sh("ss -ltnH '( sport = :%d )'" % p).stdout.split()
            check(int(lq[2]) >= 1024, "the listener's queue is long (%s)" % lq[2])
            for k in range(3):
                s = connect(p)
                s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                Reader(s).response()
                e.proc.kill()
                e.proc.wait()
                e.err += "x"
                e.start()
                r = ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                check(r and r.status == 200, "a restart at once after kill -9, over what is left of sockets and files")
        finally:
            e.stop()
    finally:
        sh("ip netns del " + ns)


main("ports, queues, restarts", f)
