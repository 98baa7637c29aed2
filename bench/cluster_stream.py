"""A server of endless bodies: `cluster_stream.py ADDRESS PORT BYTES_PER_SECOND`.

Each connection receives one response, at a rate that the kernel paces: there is always more to send, and the machine is
not saturated. The byte at each position is known (`content`), so that a client can detect repeated, late and lost
bytes.
"""

from __future__ import annotations

import select
import socket
import sys

# Longer than any segment, record or buffer, and a multiple of none.
PERIOD = 1_000_003
LENGTH = 1 << 40
CHUNK = 65_536
NOT_SENT_MAX = 65_536
SO_MAX_PACING_RATE = 47
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n".encode()


def content() -> bytes:
    """One period, and one more so that every chunk is a slice of it."""
    state, period = 1, bytearray()
    while len(period) < PERIOD:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        period += state.to_bytes(8, "little")
    del period[PERIOD:]
    return bytes(period + period)


class Sending:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = b""
        self.head = HEAD
        self.position = 0

    def step(self, pattern: memoryview) -> bool:
        """Sends as much as possible, once; false while the request is incomplete."""
        if b"\r\n\r\n" not in self.request:
            more = self.sock.recv(4096)
            if not more:
                raise ConnectionError
            self.request += more
            if b"\r\n\r\n" not in self.request:
                return False
        if self.head:
            self.head = self.head[self.sock.send(self.head) :]
            return True
        start = self.position % PERIOD
        self.position += self.sock.send(pattern[start : start + CHUNK])
        return True


def main() -> None:
    address, port, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    pattern = memoryview(content())
    listener = socket.create_server((address, port), backlog=1024)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    live: dict[int, Sending] = {}
    print("ready", flush=True)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_MAX)
                live[sock.fileno()] = Sending(sock)
                poll.register(sock, select.EPOLLIN)
                continue
            sending = live[descriptor]
            try:
                if sending.step(pattern):
                    poll.modify(descriptor, select.EPOLLOUT)
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(descriptor)
                del live[descriptor]
                sending.sock.close()


if __name__ == "__main__":
    main()
