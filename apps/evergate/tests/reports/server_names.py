"""Names that browsers request and that the DNS has, although RFC 1123 allows no hyphen there; and names
with a port, which faulty clients send.
"""

from report import *


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p = free_port()
    e = Eg(site(p, [be.port], "https")).start()

    def hello(n):
        n = n.encode()
        ext = (
            struct.pack(">HHHBH", 0, len(n) + 5, len(n) + 3, 0, len(n))
            + n
            + bytes.fromhex("002b0003020304")
            + bytes.fromhex("000a00040002001d")
            + bytes.fromhex("000d000a00080403080408050806")
            + bytes.fromhex("003300260024001d0020")
            + os.urandom(32)
        )
        b = b"\x03\x03" + os.urandom(32) + b"\x00\x00\x02\x13\x01\x01\x00" + struct.pack(">H", len(ext)) + ext
        h = b"\x01" + struct.pack(">I", len(b))[1:] + b
        s = connect(p, 3)
        s.sendall(b"\x16\x03\x01" + struct.pack(">H", len(h)) + h)
        d = s.recv(7)
        s.close()
        return d

    try:
        for n in (
            "a.w.test",
            "-a.w.test",
            "a-.w.test",
            "a_b.w.test",
            "_dmarc.w.test",
            "1.w.test",
            "--a.w.test",
            "a--b.w.test",
            "a.w.test:443",
            "w.test/",
            "[a.w.test]",
        ):
            d = hello(n)
            RES.append((n, d[:1] == b"\x16", d.hex()))
            if n[-1] not in "/3":
                check(d[:1] == b"\x16", "SNI %s is served (%s)" % (n, d.hex()))
        note(RES)
    finally:
        note([(l.get("reason"), l.get("detail")) for l in e.jlines()][-12:])
        e.stop()


RES = []
main("server names that are in use", f)
