"""TLS sessions with known content, on loopback: a server, and Python and OpenSSL as clients.

Usage: sessions.py FOLDER. Writes FOLDER/keys.log (RFC 9850) and FOLDER/sessions.json: for each session the port of the
client, and the messages that the server received and sent.
"""

import base64
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading

SUITES = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
OLD_SUITES = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"]
LIMIT_S = 30


def body_of(length: int, seed: str) -> bytes:
    """Bytes that look random and depend on their seed."""
    out = bytearray()
    block = hashlib.sha256(seed.encode()).digest()
    while len(out) < length:
        out += block
        block = hashlib.sha256(block).digest()
    return bytes(out[:length])


class Server:
    """Server of HTTP/1.1 that notes what it receives and sends."""

    def __init__(self, folder: str):
        self.sessions = {}
        self.lock = threading.Lock()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, peer = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection, peer[1]), daemon=True).start()

    def serve(self, connection: socket.socket, port: int):
        connection.settimeout(LIMIT_S)
        session = {"port": port, "messages": []}
        with self.lock:
            self.sessions[port] = session
        try:
            with self.context.wrap_socket(connection, server_side=True) as tls:
                session["version"] = tls.version()
                session["suite"] = tls.cipher()[0]
                session["resumed"] = tls.session_reused
                with tls.makefile("rwb") as stream:
                    while self.exchange(stream, session):
                        pass
                try:
                    tls.unwrap()
                except (ssl.SSLError, OSError):
                    pass
        except (ssl.SSLError, OSError) as error:
            session["error"] = str(error)
        session["ended"] = True

    def exchange(self, stream, session) -> bool:
        line = stream.readline()
        if not line:
            return False
        method, target, _ = line.decode().split(" ", 2)
        headers = {}
        while (field := stream.readline().strip()):
            name, value = field.decode().split(":", 1)
            headers[name.strip().lower()] = value.strip()
        request = stream.read(int(headers.get("content-length", 0)))
        _, kind, length = target.split("?")[0].split("/")
        body = b"" if method == "HEAD" else body_of(int(length), target)
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nSet-Cookie: sid=hidden; Path=/\r\n"
        if kind == "chunked":
            stream.write((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
            for at in range(0, len(body), 5000):
                chunk = body[at:at + 5000]
                stream.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            stream.write(b"0\r\n\r\n")
        elif kind == "close":
            stream.write((head + "Connection: close\r\n\r\n").encode() + body)
        else:
            stream.write((head + f"Content-Length: {length}\r\n\r\n").encode() + body)
        stream.flush()
        session["messages"].append({
            "method": method,
            "target": target,
            "request": base64.b64encode(request).decode(),
            "response": base64.b64encode(body).decode(),
        })
        return kind != "close"


def request(method: str, target: str, body: bytes = b"") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: shop.example\r\n"
    head += "Authorization: Basic aGlkZGVu\r\nCookie: sid=hidden\r\n"
    if body:
        head += f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def read_response(stream, is_head: bool):
    headers = {}
    while (line := stream.readline().strip()):
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if is_head:
        return
    if "content-length" in headers:
        stream.read(int(headers["content-length"]))
    elif "transfer-encoding" in headers:
        while (size := int(stream.readline(), 16)):
            stream.read(size + 2)
        stream.readline()
    else:
        stream.read()


def python_session(server: Server, keys: str, requests, version=None, session=None):
    """A session of Python's ssl; answers what resumes it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.keylog_filename = keys
    if version:
        context.maximum_version = version
    if session:
        context = session[0]
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as connection:
        resumed = session[1] if session else None
        with context.wrap_socket(connection, server_hostname="shop.example", session=resumed) as tls:
            with tls.makefile("rwb") as stream:
                for method, target, body in requests:
                    stream.write(request(method, target, body))
                    stream.flush()
                    read_response(stream, method == "HEAD")
            again = (context, tls.session)
            try:
                tls.unwrap()
            except (ssl.SSLError, OSError):
                pass
            return again


def openssl_session(server: Server, keys: str, arguments, lines):
    """A session of `openssl s_client`. A line of bytes is sent; after a request its whole response is awaited."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-servername", "shop.example",
               "-keylogfile", keys] + arguments
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    received = bytearray()
    arrived = threading.Condition()

    def read():
        while (chunk := os.read(client.stdout.fileno(), 65536)):
            with arrived:
                received.extend(chunk)
                arrived.notify()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def wait(part: bytes, begin: int):
        with arrived:
            if not arrived.wait_for(lambda: part in received[begin:], LIMIT_S):
                raise TimeoutError(f"{command}: no {part[:20]!r}")

    wait(b"---\n", 0)
    for line, expected in lines:
        begin = len(received)
        client.stdin.write(line)
        client.stdin.flush()
        wait(expected, begin)
    client.stdin.close()
    client.wait(LIMIT_S)
    reader.join(LIMIT_S)


def get(target: str):
    """A request, and the end of its response."""
    return request("GET", target), body_of(int(target.split("/")[2]), target)[-40:]


def main():
    folder = sys.argv[1]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-subj", "/CN=shop.example",
                    "-days", "2"], check=True, stderr=subprocess.DEVNULL)
    server, keys = Server(folder), f"{folder}/keys.log"
    form = b"user=ann&password=hidden&note=" + body_of(3000, "form").hex().encode()
    usual = [("GET", "/bytes/100", b""), ("POST", "/bytes/3000", form), ("HEAD", "/bytes/77", b""),
             ("GET", "/chunked/20000", b""), ("GET", "/bytes/0", b"")]
    for suite in SUITES:
        openssl_session(server, keys, ["-tls1_3", "-ciphersuites", suite], [get(f"/bytes/{200_000 + len(suite)}"),
                                                                          get("/bytes/10")])
    for suite in OLD_SUITES:
        openssl_session(server, keys, ["-tls1_2", "-cipher", suite], [get("/bytes/50000"), get("/bytes/10")])
    # KeyUpdates: K asks the server for one as well.
    updates = [(b"K\n", b"KEYUPDATE"), get("/bytes/40000"), (b"k\n", b"KEYUPDATE"), get("/bytes/9"),
               (b"K\n", b"KEYUPDATE"), (b"K\n", b"KEYUPDATE"), get("/bytes/100000")]
    openssl_session(server, keys, ["-tls1_3"], updates)
    # The server does not take the first group: a HelloRetryRequest.
    server.context.set_ecdh_curve("secp384r1")
    openssl_session(server, keys, ["-tls1_3", "-groups", "X25519:P-384"], [get("/bytes/500")])
    openssl_session(server, keys, ["-tls1_2"], [get("/bytes/500")])
    for version in [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2]:
        first = python_session(server, keys, usual, version)
        python_session(server, keys, usual, version, first)
        python_session(server, keys, usual[:2], version, first)
    python_session(server, keys, [("GET", "/bytes/250000", b""), ("GET", "/close/30000", b"")])
    python_session(server, keys, [("GET", "/chunked/220000", b"")])
    python_session(server, keys, [("POST", "/bytes/12?token=hidden", b"x=" + b"y" * 210_000)])
    python_session(server, keys, [("GET", f"/bytes/{n}", b"") for n in range(0, 3000, 100)])
    python_session(server, keys, [("POST", "/chunked/70000", body_of(65_000, "post"))], ssl.TLSVersion.TLSv1_2)
    sessions = sorted(server.sessions.values(), key=lambda session: session["port"])
    with open(f"{folder}/sessions.json", "w", encoding="utf-8") as file:
        json.dump(sessions, file)


main()
