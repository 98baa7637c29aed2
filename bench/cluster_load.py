"""The client of the stall case: many idle TLS connections, and some that receive an endless body.

`cluster_load.py ADDRESS HTTPS_PORT STREAM_PORT IDLE TRANSFERS`, then a line for each command on standard input,
answered by a line of JSON:

- `mark`: clears the results. From now on it measures the longest time without a byte of each transfer, and sends one
  more request on idle connections, 200 a second, regardless of the answers.
- `report`: `{"gaps_ms": [..], "asked_ms": [..], "broken": [..]}` since the mark. The gap of a silent transfer lasts
  until now.
- `check`: ends the transfers and sends a request on every idle connection: `{"alive": N, "broken": [..]}`.

Every byte of the transfers is compared with the expected one.
"""

from __future__ import annotations

import gc
import json
import resource
import select
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import idle
from cluster_stream import PERIOD, content

TIMEOUT_S = 20.0
BROKEN_SHOWN = 20
ASKED_PER_S = 200
ASKED_AT_ONCE = 20
PIECE = 65_536
STREAM_REQUEST = b"GET /endless HTTP/1.1\r\nHost: bench.example\r\n\r\n"


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def connect(context: ssl.SSLContext, address: str, port: int) -> ssl.SSLSocket:
    raw = socket.create_connection((address, port), timeout=TIMEOUT_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw)


class Transfer:
    """One body that is received. `longest_s` is the longest time without a byte since the mark."""

    def __init__(self, sock: ssl.SSLSocket, pattern: bytes, now: float) -> None:
        self.sock = sock
        self.pattern = pattern
        self.position: int | None = None
        """Next position in the body; None within the head."""
        self.head = b""
        self.last = now
        self.longest_s = 0.0

    def take(self, data: bytes, now: float) -> None:
        """Records the gap before these bytes and compares them; raises if one differs."""
        self.longest_s = max(self.longest_s, now - self.last)
        self.last = now
        if self.position is None:
            self.head += data
            head, end, data = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(head.split(b"\r\n")[0].decode(errors="replace"))
            self.position = 0
        start = self.position % PERIOD
        if data != self.pattern[start : start + len(data)]:
            raise ConnectionError(f"another byte than sent, at {self.position} or soon after")
        self.position += len(data)

    def mark(self, now: float) -> None:
        self.last, self.longest_s = now, 0.0

    def gap_s(self, now: float) -> float:
        return max(self.longest_s, now - self.last)


@dataclass
class Asking:
    """A request under way."""

    sock: ssl.SSLSocket
    since: float
    answer: bytes = b""


class Client:
    """All connections."""

    def __init__(self, address: str, https: int, stream: int, idle_count: int, transfers: int) -> None:
        context = tls_context()
        pattern = content()
        self.poll = select.epoll()
        self.answers = select.epoll()
        """Polled between any two pieces of transfers: reading 200 of those takes longer than the measured times."""
        self.idle: list[ssl.SSLSocket] = []
        self.broken: list[str] = []
        for _ in range(idle_count):
            connection = connect(context, address, https)
            idle.request(connection)
            self.idle.append(connection)
        self.transfers: dict[int, Transfer] = {}
        for _ in range(transfers):
            connection = connect(context, address, stream)
            connection.sendall(STREAM_REQUEST)
            connection.setblocking(False)
            self.transfers[connection.fileno()] = Transfer(connection, pattern, time.monotonic())
            self.poll.register(connection, select.EPOLLIN)
        self.poll.register(sys.stdin, select.EPOLLIN)
        self.poll.register(self.answers, select.EPOLLIN)
        self.next_idle = 0
        self.asking: dict[int, Asking] = {}
        self.ask_at: float | None = None
        """Time of the next request on an idle connection."""
        self.asked_ms: list[float] = []

    def receive(self, transfer: Transfer) -> None:
        descriptor = transfer.sock.fileno()
        try:
            while True:
                data = transfer.sock.recv(PIECE)
                if not data:
                    raise ConnectionError("it ended")
                transfer.take(data, time.monotonic())
                if not transfer.sock.pending():
                    return
        except ssl.SSLWantReadError:
            return
        except OSError as error:
            self.broken.append(f"transfer after {transfer.position} bytes: {error or type(error).__name__}")
            self.poll.unregister(descriptor)
            del self.transfers[descriptor]

    def ask_if_due(self) -> None:
        if self.ask_at is not None and time.monotonic() >= self.ask_at:
            self.ask_at += 1 / ASKED_PER_S
            self.ask()

    def ask(self) -> None:
        """Sends a request on the next idle connection; `receive_answer` reads the answer."""
        if not self.idle:
            return
        sock = self.idle[self.next_idle % len(self.idle)]
        self.next_idle += 1
        if sock.fileno() in self.asking:
            return  # its last answer is outstanding
        sock.setblocking(False)
        self.asking[sock.fileno()] = Asking(sock, time.monotonic())
        self.answers.register(sock, select.EPOLLIN)
        try:
            sock.sendall(idle.REQUEST)
        except OSError as error:
            self.give_up(sock.fileno(), error)

    def receive_answer(self, descriptor: int) -> None:
        asking = self.asking[descriptor]
        try:
            more = asking.sock.recv(PIECE)
            if not more:
                raise ConnectionError("it ended")
        except ssl.SSLWantReadError:
            return
        except OSError as error:
            self.give_up(descriptor, error)
            return
        asking.answer += more
        if complete(asking.answer):
            self.asked_ms.append((time.monotonic() - asking.since) * 1e3)
            self.answers.unregister(asking.sock)
            del self.asking[descriptor]

    def receive_all(self, wait_s: float = 0) -> None:
        for descriptor, _ in self.answers.poll(wait_s):
            self.receive_answer(descriptor)

    def give_up(self, descriptor: int, error: OSError) -> None:
        self.broken.append(f"idle connection: {error or type(error).__name__}")
        lost = self.asking.pop(descriptor).sock
        self.answers.unregister(lost)
        self.idle.remove(lost)

    def command(self, line: str) -> dict[str, object]:
        now = time.monotonic()
        if line == "mark":
            for transfer in self.transfers.values():
                transfer.mark(now)
            self.asked_ms, self.broken = [], []
            self.ask_at = now
            return {}
        if line == "report":
            gaps = [transfer.gap_s(now) * 1e3 for transfer in self.transfers.values()]
            asked = self.asked_ms + [(now - asking.since) * 1e3 for asking in self.asking.values()]
            return {"gaps_ms": gaps, "asked_ms": asked, "broken": self.broken[:BROKEN_SHOWN]}
        for transfer in self.transfers.values():
            self.poll.unregister(transfer.sock)
            transfer.sock.close()
        self.transfers = {}
        return self.check()

    def check(self) -> dict[str, object]:
        """Sends a request on each idle connection; waits until all have answered or `TIMEOUT_S` passes without an
        answer."""
        self.asked_ms, self.broken, self.ask_at = [], [], None
        everything = len(self.idle)
        left = [sock for sock in self.idle if sock.fileno() not in self.asking]
        received_at = time.monotonic()
        while (left or self.asking) and time.monotonic() - received_at < TIMEOUT_S:
            for sock in left[:ASKED_AT_ONCE]:
                self.next_idle = self.idle.index(sock)
                self.ask()
            del left[:ASKED_AT_ONCE]
            before = len(self.asking)
            self.receive_all(0.005)
            if len(self.asking) < before:
                received_at = time.monotonic()
        silent = [f"idle connection: no answer within {TIMEOUT_S:.0f} s"] * len(self.asking)
        broken = self.broken + silent
        return {
            "alive": everything - len(broken),
            "broken_count": len(broken),
            "broken": broken[:BROKEN_SHOWN],
        }

    def run(self) -> None:
        own = sys.stdin.fileno()
        while True:
            for descriptor, _ in self.poll.poll(None if self.ask_at is None else 1 / ASKED_PER_S):
                if descriptor in self.transfers:
                    self.receive(self.transfers[descriptor])
                    self.receive_all()
                    self.ask_if_due()
                elif descriptor == self.answers.fileno():
                    self.receive_all()
                elif descriptor == own:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    print(json.dumps(self.command(line.strip())), flush=True)
            self.ask_if_due()


def complete(answer: bytes) -> bool:
    """Whether a whole response with a Content-Length has come."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    return len(body) >= int(fields[b"content-length"])


def main() -> None:
    address = sys.argv[1]
    https, stream, idle_count, transfers = (int(argument) for argument in sys.argv[2:6])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, idle_count + transfers + 100)), hard))
    gc.disable()
    client = Client(address, https, stream, idle_count, transfers)
    print(json.dumps({"ready": len(client.idle) + len(client.transfers)}), flush=True)
    with suppress(KeyboardInterrupt):
        client.run()


if __name__ == "__main__":
    main()
