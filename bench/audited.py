#!/usr/bin/env -S python3 -B
"""Audited listeners: keys of epochs for a configuration, and a Recorder that acknowledges everything.

`bench/audited.py SOCKET` is that Recorder.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

LOG = "bench.invalid/2026"
ED25519 = b"\x01"


def openssl(*arguments: str, data: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout


def point() -> bytes:
    """The public key of a new pair of P-256, uncompressed."""
    key = openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-outform", "DER")
    return openssl("pkey", "-inform", "DER", "-pubout", "-outform", "DER", data=key)[-65:]


def table(folder: Path) -> str:
    """Writes the file of epochs and answers the configuration's table. No private key of an epoch is kept."""
    key = folder / "log.key"
    openssl("genpkey", "-algorithm", "ED25519", "-out", str(key))
    public = ED25519 + openssl("pkey", "-in", str(key), "-pubout", "-outform", "DER")[-32:]
    key_id = hashlib.sha256(LOG.encode() + b"\n" + public).digest()[:4]

    def text_of(value: bytes) -> str:
        return base64.b64encode(value).decode()

    hour = int(time.time()) // 3600
    lines = [f"{epoch} {text_of(point())} {text_of(point())}" for epoch in (hour, hour + 1)]
    text = "evergate-audit/epochs@v1\n" + "".join(f"{line}\n" for line in lines)
    signed = folder / "epochs.text"
    signed.write_text(text)
    signature = openssl("pkeyutl", "-sign", "-rawin", "-inkey", str(key), "-in", str(signed))
    (folder / "epochs").write_text(f"{text}\n\u2014 {LOG} {text_of(key_id + signature)}\n")
    return f"""
[audit]
epochs = "{folder}/epochs"
log_key = "{LOG}+{key_id.hex()}+{text_of(public)}"
feed = "{folder}/feed.sock"
"""


def receive(stream: socket.socket) -> None:
    """Acknowledges the last message of each read."""
    buffer = b""
    while data := stream.recv(1 << 20):
        buffer += data
        at, newest = 0, 0
        while at + 4 <= len(buffer) and at + 4 + (length := int.from_bytes(buffer[at : at + 4], "big")) <= len(buffer):
            if buffer[at + 4] != 1:  # HELLO
                newest = int.from_bytes(buffer[at + 5 : at + 13], "big")
            at += 4 + length
        buffer = buffer[at:]
        if newest:
            stream.sendall(struct.pack(">IBQ", 9, 1, newest))


def main() -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=receive, args=(stream,), daemon=True).start()


if __name__ == "__main__":
    main()
