"""Opens TLS connections that do one request each, then keeps them: `idle.py PORT COUNT`.

Prints `ready` when all are idle. After a line on standard input every fiftieth connection does another request; it
prints `alive` or the error. Otherwise a proxy that closed idle connections would seem to need little memory.
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys

REQUEST = b"GET /1k HTTP/1.1\r\nHost: bench.example\r\n\r\n"
SAMPLE_EVERY = 50


def request(connection: ssl.SSLSocket) -> None:
    """One request; reads exactly its response."""
    connection.sendall(REQUEST)
    head = b""
    while b"\r\n\r\n" not in head:
        more = connection.recv(16384)
        if not more:
            raise ConnectionError("the connection was closed")
        head += more
    lines, _, body = head.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in lines.split(b"\r\n")[1:])
    missing = int(fields[b"content-length"]) - len(body)
    if not lines.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(lines.split(b"\r\n")[0].decode(errors="replace"))
    while missing > 0:
        more = connection.recv(missing)
        if not more:
            raise ConnectionError("the connection was closed within a body")
        missing -= len(more)


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 100)), hard))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connections = []
    for _ in range(count):
        raw = socket.create_connection(("127.0.0.1", port), timeout=10)
        # Like browsers; otherwise the request may wait for the acknowledgement of the handshake's last message.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = context.wrap_socket(raw)
        request(connection)
        connections.append(connection)
    print("ready", flush=True)
    for _ in sys.stdin:
        for connection in connections[::SAMPLE_EVERY]:
            request(connection)
        print("alive", flush=True)


if __name__ == "__main__":
    main()
