"""keepalived#160, #166, #20, #14, #1927 (a frozen master and its neighbours' caches), cilium#41244:
nodes that die, freeze and return.
"""

from report import *


def sh(c, ok=False):
    r = subprocess.run(c, shell=True, capture_output=True, text=True)
    if r.returncode and not ok:
        raise RuntimeError(c + ": " + r.stderr)
    return r.stdout


class Cluster:
    """Cluster in network namespaces egr-*: a client, a server, two nodes and a switch.

    The inside network is 10.97.1.0/24, the outside network 10.97.2.0/24.
    """

    def __init__(self, rest="", cluster="", pool=""):
        self.rest, self.clu, self.pool = rest, cluster, pool
        self.dir = tempfile.mkdtemp(prefix="evergate-report-cl-")
        self.procs = {}
        self.helpers = []
        self.tag = "egr-%d" % (os.getpid() % 10000)
        self.ns = {k: "%s-%s" % (self.tag, k) for k in "csw12"}

    def up(self):
        n = self.ns
        for k in n.values():
            sh("ip netns add " + k)
            sh("ip -n %s link set lo up" % k)
        w = n["w"]
        for br, a in (("in", "10.97.1.254"), ("out", "10.97.2.254")):
            sh(
                "ip -n %s link add %s type bridge && ip -n %s addr add %s/24 dev %s && ip -n %s link set %s up"
                % (w, br, w, a, br, w, br)
            )

        def plug(k, br, a):
            sh("ip -n %s link add %s%s type veth peer name %s netns %s" % (w, br, k, br, n[k]))
            sh("ip -n %s link set %s%s master %s up" % (w, br, k, br))
            sh("ip -n %s addr add %s/24 dev %s && ip -n %s link set %s up" % (n[k], a, br, n[k], br))

        plug("c", "out", "10.97.2.200")
        plug("s", "in", "10.97.1.200")
        for k in "12":
            plug(k, "in", "10.97.1.%s" % k)
            plug(k, "out", "10.97.2.%s" % k)
        sh("umask 077; %s cluster key > %s/key" % (BIN, self.dir))
        sh(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s/k.pem -out %s/c.pem "
            "-days 9 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
            % (self.dir, self.dir)
        )
        sh("mkdir %s/bpf && mount -t bpf bpf %s/bpf" % (self.dir, self.dir))
        for k in "12":
            open(self.dir + "/%s.toml" % k, "w").write("""[node]
workers = 1
[cluster]
name = "%s"
node = %s
key_file = "key"
addresses = ["10.97.2.100"]
server_source = ["10.97.1.100"]
inside_interface = "in"
outside_interface = "out"
witness = ["10.97.1.254", "10.97.2.254"]
timing = "virtual_machine"
flows_max = 4096
pins = "%s/bpf/n%s"
%s
[[cluster.nodes]]
number = 1
inside = "10.97.1.1"
outside = "10.97.2.1"
[[cluster.nodes]]
number = 2
inside = "10.97.1.2"
outside = "10.97.2.2"
[[listeners]]
name = "web"
address = "10.97.2.100:443"
protocol = "https"
pool = "p"
[[certificates]]
name = "c"
chain = "c.pem"
key = "k.pem"
[[pools]]
name = "p"
servers = [{ address = "10.97.1.200:8080" }]
%s
%s
[logs]
access = "%s/access%s.json"
[admin]
socket = "%s/%s.sock"
""" % (self.tag, k, self.dir, k, self.clu, self.pool, self.rest, self.dir, k, self.dir, k))

    def start(self, k, wait=True):
        f = open(self.dir + "/err" + k, "ab")
        # `ip netns exec` would mount a new /sys, without the folder of the filter's tables.
        self.procs[k] = subprocess.Popen(
            ["nsenter", "--net=/run/netns/" + self.ns[k], BIN, "run", self.dir + "/%s.toml" % k], stdout=f, stderr=f
        )
        if wait:
            until(lambda: self.st(k) and self.st(k)["phase"] == "active", 15, 0.1)

    def st(self, k):
        r = subprocess.run(
            [BIN, "cluster", "status", "--json", "--socket", self.dir + "/%s.sock" % k], capture_output=True, text=True
        )
        try:
            return json.loads(r.stdout)
        except ValueError:
            return None

    def settled(self, t=20):
        return until(
            lambda: all(
                (s := self.st(k))
                and s["phase"] == "active"
                and s["view"]
                and len(s["view"]["members"]) == 2
                and s["buckets"]["without_backup"] == 0
                and s["buckets"]["syncing"] == 0
                and s["buckets"]["owned"] > 0
                for k in "12"
            ),
            t,
            0.1,
        )

    def kill(self, k):
        self.procs[k].kill()
        self.procs[k].wait()

    def err(self, k):
        return open(self.dir + "/err" + k, errors="replace").read()

    def helper(self, k, code):
        p = subprocess.Popen(
            ["nsenter", "--net=/run/netns/" + self.ns[k], sys.executable, "-u", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.helpers.append(p)
        return p

    def down(self):
        for p in list(self.procs.values()) + self.helpers:
            if p.poll() is None:
                p.send_signal(signal.SIGCONT)
                p.kill()
                p.wait()
        time.sleep(0.2)
        for k in self.ns.values():
            sh("ip netns del " + k, True)
        sh("umount %s/bpf" % self.dir, True)
        shutil.rmtree(self.dir, ignore_errors=True)


SERVER = """
import socket, threading, time
l = socket.socket(); l.setsockopt(1, 2, 1); l.bind(("10.97.1.200", 8080)); l.listen(200)
def one(c):
    b = b""
    try:
        while True:
            while b"\\r\\n\\r\\n" not in b:
                d = c.recv(65536)
                if not d: return
                b += d
            h, b = b.split(b"\\r\\n\\r\\n", 1)
            if b"GET /ws" in h:
                c.sendall(b"HTTP/1.1 101 S\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
                while True:
                    d = c.recv(65536)
                    if not d: return
                    c.sendall(d)
            c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    except OSError: pass
    finally: c.close()
while True:
    c, _ = l.accept(); threading.Thread(target=one, args=(c,), daemon=True).start()
"""
CLIENT = """
import socket, ssl, sys, time, threading, json
ctx = ssl.create_default_context(); ctx.check_hostname = False; ctx.verify_mode = ssl.CERT_NONE
def con(t=3):
    s = socket.create_connection(("10.97.2.100", 443), t); s.setsockopt(6, 1, 1)
    return ctx.wrap_socket(s, server_hostname="localhost")
ws = []
for i in range(8):
    s = con(10)
    s.sendall(b"GET /ws HTTP/1.1\\r\\nHost: a\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
    s.recv(4096); ws.append(s)
res = {"ok": 0, "bad": [], "gap": 0.0, "ws": 0, "wsbad": [], "wsgap": 0.0}; stop = False
def fresh():
    last = time.time()
    while not stop:
        t = time.time()
        try:
            s = con(); s.sendall(b"GET / HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n"); d = s.recv(4096)
            if d.startswith(b"HTTP/1.1 200"):
                res["ok"] += 1; res["gap"] = max(res["gap"], time.time() - last); last = time.time()
            else: res["bad"].append(repr(d[:40]))
            s.close()
        except Exception as x: res["bad"].append(repr(x)[:60])
        time.sleep(0.01)
def tun(s):
    last = time.time()
    while not stop:
        try:
            s.sendall(b"m" * 100); n = 0
            while n < 100:
                d = s.recv(100 - n)
                if not d: raise OSError("end")
                n += len(d)
            res["ws"] += 1; res["wsgap"] = max(res["wsgap"], time.time() - last); last = time.time()
        except Exception as x: res["wsbad"].append(repr(x)[:60]); return
        time.sleep(0.02)
ts = [threading.Thread(target=fresh) for i in range(2)] + [threading.Thread(target=tun, args=(s,)) for s in ws]
[t.start() for t in ts]; print("on", flush=True)
for line in sys.stdin:
    if line.strip() == "stop": break
    print(json.dumps(res), flush=True); res["gap"] = res["wsgap"] = 0.0
stop = True; [t.join() for t in ts]; print(json.dumps(res), flush=True)
"""


def command(p, w):
    p.stdin.write(w + "\n")
    p.stdin.flush()
    return json.loads(p.stdout.readline())


def f():
    c = Cluster()
    try:
        c.up()
        c.helper("s", SERVER)
        c.start("1")
        c.start("2")
        check(c.settled(), "two nodes are one cluster")
        note(c.err("1")[-600:])
        cl = c.helper("c", CLIENT)
        cl.stdout.readline()
        time.sleep(1)
        r = command(cl, "get")
        note(r)
        mac = lambda: sh("ip -n %s neigh show 10.97.2.100" % c.ns["c"]).split("lladdr ")[-1].split()[0]
        m0 = mac()
        check(r["ok"] > 5 and not r["bad"] and not r["wsbad"], "all is served")
        c.kill("1")
        time.sleep(2)
        r = command(cl, "get")
        note(r)
        check(
            not r["wsbad"] and r["wsgap"] < 1.5,
            "node 1 killed: WebSockets stay open (longest pause %.2f s, %s)" % (r["wsgap"], r["wsbad"]),
        )
        check(
            len(r["bad"]) <= 1 and r["gap"] < 3.5,
            "new clients are served (%s, longest gap %.2f)" % (r["bad"], r["gap"]),
        )
        c.start("1")
        check(c.settled(30), "node 1 is back")
        time.sleep(1)
        r = command(cl, "get")
        note(r)
        check(
            not r["wsbad"] and r["wsgap"] < 1.5 and r["gap"] < 3.5,
            "no client notices (%.2f, %.2f, %s)" % (r["wsgap"], r["gap"], r["bad"]),
        )
        # A virtual machine that a snapshot freezes for three seconds.
        k = "2"
        c.procs[k].send_signal(signal.SIGSTOP)
        time.sleep(3)
        c.procs[k].send_signal(signal.SIGCONT)
        time.sleep(2)
        r = command(cl, "get")
        note(r)
        check(
            not r["wsbad"] and r["wsgap"] < 1.5 and r["gap"] < 3.5,
            "node 2 frozen for 3 s: no client notices (%.2f, %.2f, %s %s)"
            % (r["wsgap"], r["gap"], r["bad"], r["wsbad"]),
        )
        check(c.settled(30), "and it is back")
        time.sleep(1)
        r = command(cl, "get")
        check(not r["wsbad"], "with its connections (%s)" % r["wsbad"])
        # Cables of the node, one after the other.
        for br in ("out", "in"):
            sh("ip -n %s link set %s1 down" % (c.ns["w"], br))
            time.sleep(2.5)
            r = command(cl, "get")
            note(br, r)
            check(
                not r["wsbad"] and r["wsgap"] < 2,
                "node 1 without its %sside cable: WebSockets stay open (%.2f, %s)" % (br, r["wsgap"], r["wsbad"]),
            )
            sh("ip -n %s link set %s1 up" % (c.ns["w"], br))
            check(c.settled(40), "and back")
            time.sleep(0.5)
            r = command(cl, "get")
            check(not r["wsbad"], "with its connections (%s)" % r["wsbad"])
        check(mac() == m0, "the client's neighbour entry is the same all the time (%s)" % m0)
        r = subprocess.run(
            [BIN, "node", "drain", "--wait", "20", "--socket", c.dir + "/1.sock"], capture_output=True, text=True
        )
        time.sleep(0.5)
        x = command(cl, "get")
        check(
            r.returncode == 0 and not x["wsbad"] and x["gap"] < 2.5,
            "node 1 drained: no client notices (%s, %.2f)" % (x["wsbad"], x["gap"]),
        )
        x = command(cl, "stop")
        note(x)
        check(
            x["ok"] > 100 and not x["wsbad"] and len(x["bad"]) <= 2,
            "in all %d visits, %d failed; %d messages, %d tunnels broken"
            % (x["ok"], len(x["bad"]), x["ws"], len(x["wsbad"])),
        )
    finally:
        note(c.err("1")[-800:], "\n", c.err("2")[-800:]) if "-n" in sys.argv else None
        c.down()


main("a cluster whose nodes die, freeze and come back", f)
