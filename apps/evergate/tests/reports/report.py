"""Shared parts of the cases: an evergate process, servers, clients, and checks."""

import sys, os, socket, ssl, subprocess, tempfile, threading, time, json, shutil, signal, re, struct, select

BIN = sys.argv[1] if len(sys.argv) > 1 else "evergate"
VERBOSE = "-v" in sys.argv
NAME = os.path.basename(sys.argv[0])


def note(*a):
    if VERBOSE or "-n" in sys.argv:
        print("  #", *a, flush=True)


# Below the ports that the kernel gives to clients (32768 and above by default): no outgoing connection takes one of
# these between the choice and the listener. Cases that run at once have consecutive process ids, thus other blocks.
PORT_MIN, PORT_BLOCK, PORT_BLOCKS = 10240, 64, 350
ports_tried = 0


def free_port():
    global ports_tried
    for _ in range(PORT_BLOCK):
        p = PORT_MIN + os.getpid() % PORT_BLOCKS * PORT_BLOCK + ports_tried % PORT_BLOCK
        ports_tried += 1
        s = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
        try:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("", p))
            return p
        except OSError:
            continue
        finally:
            s.close()
    raise RuntimeError("no free port among %d" % PORT_BLOCK)


class Eg:
    """One evergate process with a configuration text; `{dir}` stands for its folder."""

    def __init__(self, cfg, admin=True, logs=True, args=(), env=None):
        self.dir = tempfile.mkdtemp(prefix="evergate-report-")
        self.cfg = cfg
        self.file = os.path.join(self.dir, "c.toml")
        self.sock = os.path.join(self.dir, "a.sock")
        self.log = os.path.join(self.dir, "access.json")
        self.err = os.path.join(self.dir, "err")
        self.admin, self.logs = admin, logs
        self.write(cfg)
        self.proc = None
        self.args = list(args)
        self.env = env
        self.pids = []

    def write(self, cfg):
        t = cfg.replace("{dir}", self.dir)
        if self.logs:
            t += '\n[logs]\naccess = "%s"\n' % self.log
        if self.admin is True:
            t += '\n[admin]\nsocket = "%s"\n' % self.sock
        open(self.file, "w").write(t)

    def start(self, wait=15):
        self.errf = open(self.err, "ab")
        e = dict(os.environ)
        e.update(self.env or {})
        self.proc = subprocess.Popen([BIN, "run", self.file] + self.args, stdout=self.errf, stderr=self.errf, env=e)
        end = time.time() + wait
        while time.time() < end:
            if "info: ready:" in self.stderr():
                return self
            if self.proc.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError("did not start: " + self.stderr())

    def stderr(self):
        try:
            return open(self.err, errors="replace").read()
        except OSError:
            return ""

    def cli(self, *a, timeout=60):
        return subprocess.run([BIN, *a, "--socket", self.sock], capture_output=True, text=True, timeout=timeout)

    def status(self):
        return json.loads(self.cli("status", "--json").stdout)

    def servers(self):
        return json.loads(self.cli("servers", "list", "--json").stdout)["servers"]

    def metrics(self):
        return self.cli("metrics").stdout

    def metric(self, name, default=0.0):
        t = 0.0
        seen = False
        for l in self.metrics().splitlines():
            if l.startswith(name + " ") or l.startswith(name + "{"):
                t += float(l.rsplit(" ", 1)[1])
                seen = True
        return t if seen else default

    def lines(self, n=None, wait=3):
        end = time.time() + wait
        while True:
            try:
                out = [l for l in open(self.log, "rb").read().split(b"\n") if l]
            except OSError:
                out = []
            if n is None or len(out) >= n or time.time() > end:
                return out
            time.sleep(0.02)

    def jlines(self, n=None, wait=3):
        return [json.loads(l) for l in self.lines(n, wait)]

    def fds(self, pid=None):
        return len(os.listdir("/proc/%d/fd" % (pid or self.proc.pid)))

    def rss(self, pid=None):
        return int(re.search(r"VmRSS:\s+(\d+)", open("/proc/%d/status" % (pid or self.proc.pid)).read()).group(1))

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
        for p in self.pids:
            try:
                os.kill(p, signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)


def certificate(folder, *more):
    """Creates a self-signed certificate and its key in this folder: files c and k."""
    args = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=s".split()
    files = ["-keyout", folder + "/k", "-out", folder + "/c"]
    subprocess.run(["openssl", *args, *files, *more], capture_output=True)


def server_context():
    """TLS context of a server on 127.0.0.1, with a self-signed certificate for its address."""
    d = tempfile.mkdtemp(prefix="evergate-report-")
    certificate(d, "-addext", "subjectAltName=IP:127.0.0.1")
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ctx.load_cert_chain(d + "/c", d + "/k")
    shutil.rmtree(d)
    return ctx


class Backend:
    """Server that calls handler(sock, n, self) for connection n, from 0, or http(req)->bytes for each request."""

    def __init__(self, handler=None, http=None, host="127.0.0.1", port=0, tls=None, backlog=128, family=socket.AF_INET):
        self.l = socket.socket(family)
        self.l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.l.bind((host, port))
        self.l.listen(backlog)
        self.port = self.l.getsockname()[1]
        self.handler, self.http, self.tls = handler, http, tls
        self.n = 0
        self.reqs = []
        self.errors = []
        self.conns = []
        self.t = threading.Thread(target=self.loop, daemon=True)
        self.t.start()

    def loop(self):
        while True:
            try:
                c, _ = self.l.accept()
            except OSError:
                return
            n = self.n
            self.n += 1
            self.conns.append(c)
            threading.Thread(target=self.one, args=(c, n), daemon=True).start()

    def one(self, c, n):
        try:
            if self.tls:
                c = self.tls.wrap_socket(c, server_side=True)
            if self.handler:
                self.handler(c, n, self)
            else:
                r = Reader(c)
                while True:
                    q = r.request()
                    if q is None:
                        break
                    self.reqs.append(q)
                    a = self.http(q)
                    if a is None:
                        break
                    c.sendall(a)
        except Exception as e:
            self.errors.append(repr(e))
        finally:
            try:
                c.close()
            except OSError:
                pass

    def close(self):
        try:
            self.l.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.l.close()


class Msg:
    pass


class Reader:
    def __init__(self, s):
        self.s, self.b, self.eof = s, b"", False

    def more(self):
        try:
            d = self.s.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            self.eof = "reset"
            return False
        except ssl.SSLEOFError:
            self.eof = "ragged"
            return False
        except ssl.SSLError as x:
            if "EOF" in str(x):
                self.eof = "ragged"
                return False
            raise
        if not d:
            self.eof = self.eof or "fin"
            return False
        self.b += d
        return True

    def exchange(self, data):
        """Sends `data` and reads as many bytes, both from this thread: an SSL object serves one thread at a time."""
        timeout, left = self.s.gettimeout(), memoryview(data)
        end = time.time() + timeout
        self.s.setblocking(False)
        try:
            while len(self.b) < len(data) and time.time() < end:
                moved = False
                try:
                    if left:
                        left = left[self.s.send(left[:65536]) :]
                        moved = True
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
                try:
                    if not self.more():
                        break
                    moved = True
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
                if not moved:
                    select.select([self.s], [self.s] if left else [], [], 1)
        finally:
            self.s.settimeout(timeout)
        return self.b

    def head(self):
        while b"\r\n\r\n" not in self.b:
            if not self.more():
                return None
        h, self.b = self.b.split(b"\r\n\r\n", 1)
        return h

    def exact(self, n):
        while len(self.b) < n:
            if not self.more():
                return None
        d, self.b = self.b[:n], self.b[n:]
        return d

    def line(self):
        while b"\r\n" not in self.b:
            if not self.more():
                return None
        l, self.b = self.b.split(b"\r\n", 1)
        return l

    def chunked(self, m):
        out = b""
        m.trailers = []
        while True:
            l = self.line()
            if l is None:
                m.complete = False
                return out
            try:
                n = int(l.split(b";")[0], 16)
            except ValueError:
                m.complete = False
                m.bad = l
                return out
            if n == 0:
                while True:
                    l = self.line()
                    if l is None:
                        m.complete = False
                        return out
                    if l == b"":
                        return out
                    m.trailers.append(l)
            d = self.exact(n)
            if d is None:
                m.complete = False
                return out + self.b
            out += d
            if self.line() != b"":
                m.complete = False
                return out

    def parse(self, h):
        m = Msg()
        ls = h.split(b"\r\n")
        m.raw = h
        m.line = ls[0].decode("latin1")
        m.complete = True
        m.trailers = []
        m.h = [
            (a.decode("latin1").strip(), b.decode("latin1").strip())
            for a, b in (l.split(b":", 1) for l in ls[1:] if b":" in l)
        ]
        m.get = lambda k, d=None: next((v for n, v in m.h if n.lower() == k.lower()), d)
        m.all = lambda k: [v for n, v in m.h if n.lower() == k.lower()]
        m.names = [n.lower() for n, _ in m.h]
        return m

    def request(self, body=True):
        h = self.head()
        if h is None:
            return None
        m = self.parse(h)
        m.method, m.target = (m.line.split(" ") + ["", ""])[:2]
        m.body = b""
        if body:
            self.body(m)
        return m

    def body(self, m):
        if (m.get("transfer-encoding") or "").lower() == "chunked":
            m.body = self.chunked(m)
        elif m.get("content-length"):
            m.body = self.exact(int(m.get("content-length")))
            if m.body is None:
                m.complete = False
                m.body = self.b

    def response(self, method="GET", interim=None):
        while True:
            h = self.head()
            if h is None:
                return None
            m = self.parse(h)
            m.status = int(m.line.split(" ")[1])
            m.body = b""
            if 100 <= m.status < 200 and m.status != 101:
                if interim is not None:
                    interim.append(m)
                continue
            break
        if method == "HEAD" or m.status in (204, 304, 101):
            return m
        if (m.get("transfer-encoding") or "").lower().endswith("chunked"):
            m.body = self.chunked(m)
        elif m.get("content-length") is not None:
            m.body = self.exact(int(m.get("content-length")))
            if m.body is None:
                m.complete = False
                m.body = self.b
                self.b = b""
        else:
            while self.more():
                pass
            m.body, self.b = self.b, b""
            if self.eof != "fin":
                m.complete = False
        return m


def connect(port, timeout=10, host="127.0.0.1", rcvbuf=None):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.settimeout(timeout)
    if rcvbuf:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    s.connect((host, port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def tls(port, timeout=10, sni="localhost", ver=None, ctx=None, session=None, alpn=None):
    c = ctx or ssl.create_default_context()
    if ctx is None:
        c.check_hostname = False
        c.verify_mode = ssl.CERT_NONE
    if alpn:
        c.set_alpn_protocols(alpn)
    if ver == "1.2":
        c.maximum_version = ssl.TLSVersion.TLSv1_2
    return c.wrap_socket(connect(port, timeout), server_hostname=sni, session=session, suppress_ragged_eofs=False)


def ask(port, data, method="GET", timeout=10, sock=None, host="127.0.0.1"):
    s = sock or connect(port, timeout, host)
    try:
        s.sendall(data if isinstance(data, bytes) else data.encode("latin1"))
        return Reader(s).response(method)
    finally:
        if sock is None:
            s.close()


def rst(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def until(f, wait=5, step=0.03):
    end = time.time() + wait
    while time.time() < end:
        v = f()
        if v:
            return v
        time.sleep(step)
    return f()


def site(port, servers, proto="http", listener="", pool="", rest=""):
    """Configuration of a listener on 127.0.0.1:port and a pool of servers (ports or tables)."""
    sv = ", ".join(('{ address = "127.0.0.1:%d" }' % x) if isinstance(x, int) else x for x in servers)
    cert = (
        '\n[[certificates]]\nname = "c"\nself_signed = ["localhost", "a.test", "*.w.test"]\n'
        if proto in ("https", "tls")
        else ""
    )
    return (
        '[node]\nworkers = 1\n[[listeners]]\nname = "l"\naddress = "127.0.0.1:%d"\nprotocol = "%s"\npool = "p"\n%s\n'
        '%s\n[[pools]]\nname = "p"\nservers = [%s]\n%s\n%s\n'
        % (port, proto, listener, cert, sv, pool, rest)
    )


CHECKS = []


def check(ok, text):
    CHECKS.append((bool(ok), text))
    return bool(ok)


def main(title, f):
    try:
        f()
    except Exception as e:
        import traceback

        if VERBOSE:
            traceback.print_exc()
        check(False, "exception %r" % e)
    bad = [t for o, t in CHECKS if not o]
    for o, t in CHECKS:
        if not o or VERBOSE:
            print(("ok   " if o else "WRONG ") + t)
    print("%d of %d checks hold" % (len(CHECKS) - len(bad), len(CHECKS)))
    print(("RIGHT: " if not bad else "WRONG: ") + title + ("" if not bad else " -- " + "; ".join(bad)))
    sys.stdout.flush()
    os._exit(0 if not bad else 1)
