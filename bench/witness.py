"""A TCP relay that reads the TLS handshakes of a load.

A ServerHello is sent in the clear: it names the version, the cipher suite and the group, and its `pre_shared_key`
extension shows that the session was resumed (RFC 8446, 4.1.3 and 4.2.11). Before a case is measured its load goes
through the witness for a moment, so that no row relies on the claims of a proxy or a tool.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Self

from children import BenchError

HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
SUPPORTED_VERSIONS, PRE_SHARED_KEY, KEY_SHARE = 43, 41, 51
TLS_1_3, AES_128_GCM, X25519 = 0x0304, 0x1301, 29
HEAD_BYTES_MAX = 4096


@dataclass(frozen=True)
class Hello:
    """Choices of a ServerHello."""

    version: int
    suite: int
    group: int | None
    resumed: bool
    retry: bool


def parse_server_hello(stream: bytes) -> Hello | None:
    """Reads the first message of a server; None while it is incomplete. Raises ValueError if it is something else."""
    if len(stream) < 5:
        return None
    if stream[0] != 22:
        raise ValueError(f"record of type {stream[0]} instead of a handshake")
    length = int.from_bytes(stream[3:5], "big")
    if len(stream) < 5 + length:
        return None
    message = stream[5 : 5 + length]
    if message[0] != 2:
        raise ValueError(f"handshake message {message[0]} instead of a ServerHello")
    version = int.from_bytes(message[4:6], "big")
    retry = message[6:38] == HELLO_RETRY
    at = 39 + message[38]
    suite = int.from_bytes(message[at : at + 2], "big")
    at += 3
    end = at + 2 + int.from_bytes(message[at : at + 2], "big")
    at += 2
    group, resumed = None, False
    while at + 4 <= end:
        kind, size = (
            int.from_bytes(message[at : at + 2], "big"),
            int.from_bytes(message[at + 2 : at + 4], "big"),
        )
        body = message[at + 4 : at + 4 + size]
        if kind == SUPPORTED_VERSIONS:
            version = int.from_bytes(body, "big")
        elif kind == KEY_SHARE:
            group = int.from_bytes(body[:2], "big")
        elif kind == PRE_SHARED_KEY:
            resumed = True
        at += 4 + size
    return Hello(version, suite, group, resumed, retry)


class Witness:
    """Relays connections to a port and counts the handshakes it saw."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port = 0
        self.hellos: Counter[Hello | str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(5):
            raise BenchError("the handshake witness does not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        # Loads end in the middle of connections; the complaints of asyncio about it are not errors.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._relay, "127.0.0.1", 0, backlog=1024)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        server.close()
        self._loop.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError as error:
            self.hellos[f"connect: {error}"] += 1
            writer.close()
            return
        await asyncio.gather(self._copy(reader, to_server, False), self._copy(from_server, writer, True))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, look: bool) -> None:
        seen = b""
        try:
            while data := await source.read(65536):
                if look:
                    seen += data
                    look = not self._note(seen)
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # either side closed; the load tool reports errors
        finally:
            sink.close()

    def _note(self, seen: bytes) -> bool:
        """Counts the ServerHello when it is complete; returns whether no more bytes are needed."""
        try:
            hello = parse_server_hello(seen)
        except (ValueError, IndexError) as error:
            self.hellos[f"unreadable: {error}"] += 1
            return True
        if hello is None:
            return len(seen) > HEAD_BYTES_MAX
        self.hellos[hello] += 1
        return True

    def expect(self, label: str, resumed: bool, clients: int) -> str:
        """Raises unless handshakes match the case; returns a summary. The first handshake of a client is full."""
        total = sum(self.hellos.values())
        good = full = 0
        for hello, count in self.hellos.items():
            if not isinstance(hello, Hello) or hello.retry:
                continue
            if (hello.version, hello.suite, hello.group) == (TLS_1_3, AES_128_GCM, X25519):
                good += count
                full += 0 if hello.resumed else count
        if total == 0 or good != total:
            raise BenchError(
                f"{label}: not all handshakes are TLS 1.3, AES-128-GCM, X25519: {dict(self.hellos)}"
            )
        if resumed and (total < 3 * clients or full > clients + total // 50):
            raise BenchError(
                f"{label}: {full} of {total} handshakes of {clients} clients were full instead of resumed"
            )
        if not resumed and full != total:
            raise BenchError(f"{label}: {total - full} of {total} handshakes were resumed instead of full")
        return f"{full} full, {total - full} resumed"
