"""varnish#4413, envoy#1979, #6815, caddy#6452, nginx#929: persistent connections that the server closes."""

from report import *


def f():
    st = {"mode": "ok", "seen": []}

    def b(c, n, be):
        r = Reader(c)
        k = 0
        while True:
            q = r.request()
            if q is None:
                return
            st["seen"].append((n, k, q.method, q.target))
            if st["mode"] == "die" and k > 0:
                return rst(c)  # executed without an answer, on a persistent connection
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%03d" % n)
            k += 1
            if st["mode"] == "fin":
                time.sleep(0.05)
                c.shutdown(socket.SHUT_WR)
                time.sleep(0.2)
                return
            if st["mode"] == "junk":
                time.sleep(0.05)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
                time.sleep(1)
                return

    be = Backend(b)
    p = free_port()
    e = Eg(site(p, [be.port])).start()
    try:
        # Closed by the server while idle: the node notices before it reuses the connection.
        st["mode"] = "fin"
        for m in ("GET", "POST"):
            for i in range(5):
                r = ask(p, "%s /f HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % m)
                check(r and r.status == 200, "%s after a FIN on the idle connection: 200 (%s)" % (m, r and r.status))
                time.sleep(0.15)
        st["mode"] = "junk"
        for i in range(4):
            r = ask(p, "GET /j HTTP/1.1\r\nHost: a\r\n\r\n")
            check(r and r.body != b"evil", "unsolicited bytes on an idle connection answer no request")
            time.sleep(0.2)
        # Executed, and the answer lost.
        for m, body in (
            ("POST", "Content-Length: 0\r\n\r\n"),
            ("POST", "\r\n"),
            ("PATCH", "Content-Length: 1\r\n\r\nx"),
        ):
            time.sleep(0.3)
            st["mode"] = "ok"
            r = ask(p, "GET /w HTTP/1.1\r\nHost: a\r\n\r\n")
            time.sleep(0.1)
            st["mode"] = "die"
            st["seen"].clear()
            r = ask(p, "%s /once HTTP/1.1\r\nHost: a\r\n%s" % (m, body))
            n = len([1 for x in st["seen"] if x[3] == "/once"])
            note(m, r and r.status, st["seen"])
            check(n == 1, "%s is sent once although its kept connection died (%d times, %s)" % (m, n, r and r.status))
        time.sleep(0.3)
        st["mode"] = "ok"
        ask(p, "GET /w HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.1)
        st["mode"] = "die"
        st["seen"].clear()
        r = ask(p, "GET /again HTTP/1.1\r\nHost: a\r\n\r\n")
        check(r and r.status == 200, "GET is tried again (%s)" % (r and r.status))
        time.sleep(0.3)
        st["mode"] = "ok"
        ask(p, "GET /w HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.1)
        st["mode"] = "die"
        st["seen"].clear()
        r = ask(p, "PUT /again HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
        check(r and r.status == 200, "PUT with a body is tried again (%s)" % (r and r.status))
    finally:
        e.stop()


main("requests on kept connections that end", f)
