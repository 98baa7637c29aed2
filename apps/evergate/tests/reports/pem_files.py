"""Reports on caddy (#3161), traefik and haproxy: common forms of keys and chains, large chains, and unusual
server names (rustls).
"""

from report import *


def sh(c):
    subprocess.run(c, shell=True, check=True, capture_output=True)


def f():
    d = tempfile.mkdtemp(prefix="evergate-report-")
    S = "-nodes -days 9 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    sh(
        "cd %s && openssl req -x509 -newkey rsa:2048 -keyout rsa.key -out rsa.pem %s && "
        "openssl rsa -in rsa.key -traditional -out pkcs1.key && "
        "openssl ecparam -name prime256v1 -genkey -out params.key && "
        "openssl req -x509 -key params.key -out params.pem %s && "
        "openssl ecparam -name secp384r1 -genkey -noout -out p384.key && "
        "openssl req -x509 -key p384.key -out p384.pem %s && "
        "openssl ecparam -name secp521r1 -genkey -noout -out p521.key && "
        "openssl req -x509 -key p521.key -out p521.pem %s && openssl genpkey -algorithm ed25519 -out ed.key && "
        "openssl req -x509 -key ed.key -out ed.pem %s"
        % (d, S, S, S, S, S)
    )
    sh(
        "cd %s && openssl req -x509 -newkey rsa:4096 -keyout rsa4.key -out rsa4.pem %s && "
        "openssl x509 -in rsa.pem -text > text.pem && sed 's/$/\\r/' rsa.pem > crlf.pem && "
        "sed 's/$/\\r/' rsa.key > crlf.key && cat rsa.pem rsa.key > comb.pem && cat rsa.key rsa.pem > comb2.pem && "
        "(printf '\\357\\273\\277'; cat rsa.pem) > bom.pem && "
        "openssl rsa -in rsa.key -aes128 -passout pass:x -out enc.key && "
        "openssl x509 -in rsa.pem -outform der -out der.pem && "
        "(cat rsa.pem; for i in $(seq 40); do cat rsa4.pem; done) > big.pem && : > empty.pem"
        % (d, S)
    )
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def one(name, chain, key, ok=True):
        p = free_port()
        c = (
            '[node]\nworkers = 1\n[[listeners]]\nname = "l"\naddress = "127.0.0.1:%d"\nprotocol = "https"\n'
            'pool = "p"\n[[pools]]\nname = "p"\nservers = [{ address = "127.0.0.1:%d" }]\n'
            '[[certificates]]\nname = "c"\nchain = "%s/%s"\nkey = "%s/%s"\n'
            % (p, be.port, d, chain, d, key)
        )
        e = Eg(c)
        try:
            try:
                e.start()
            except RuntimeError as x:
                note(name, str(x)[-300:].replace("\n", " "))
                check(not ok, "%s: %s" % (name, "refused, and said why" if not ok else "refused: " + str(x)[-260:]))
                return
            got = []
            for v in ("1.2", "1.3"):
                try:
                    got.append(ask(p, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", sock=tls(p, ver=v)).status)
                except Exception as x:
                    got.append(repr(x)[:80])
            check((got == [200, 200]) == ok, "%s: served with TLS 1.2 and 1.3 (%s)" % (name, got))
        finally:
            e.stop()

    for a in (
        ("RSA, PKCS 8", "rsa.pem", "rsa.key"),
        ("RSA, PKCS 1", "rsa.pem", "pkcs1.key"),
        ("EC with parameters in front", "params.pem", "params.key"),
        ("P-384", "p384.pem", "p384.key"),
        ("Ed25519", "ed.pem", "ed.key"),
        ("RSA 4096", "rsa4.pem", "rsa4.key"),
        ("text in front of the certificate", "text.pem", "rsa.key"),
        ("CRLF line ends", "crlf.pem", "crlf.key"),
        ("chain and key in one file", "comb.pem", "comb.pem"),
        ("key first in one file", "comb2.pem", "comb2.pem"),
        ("a chain of 60 KB", "big.pem", "rsa.key"),
        ("a byte order mark", "bom.pem", "rsa.key"),
    ):
        one(*a)
    for a in (
        ("P-521", "p521.pem", "p521.key", True),
        ("an encrypted key", "rsa.pem", "enc.key", False),
        ("DER", "der.pem", "rsa.key", False),
        ("an empty file", "empty.pem", "rsa.key", False),
        ("another key", "rsa.pem", "params.key", False),
    ):
        one(*a)
    shutil.rmtree(d)


main("certificates and keys in many forms", f)
