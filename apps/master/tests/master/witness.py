"""Witness for tests, by C2SP tlog-witness: checks consistency by RFC 9162 section 2.1.4.2 and cosigns with openssl.

Usage: witness.py KEY.pem STATE NAME KEY_ID; prints its port. STATE keeps size and root.
"""

import base64
import hashlib
import http.server
import os
import struct
import subprocess
import sys
import tempfile
import time

KEY, STATE, NAME, KEY_ID = sys.argv[1:]


def node(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


def consistent(old, old_root, new, new_root, proof):
    if old == new:
        return not proof and old_root == new_root
    if old == 0:
        return not proof
    proof = list(proof)
    if old & (old - 1) == 0:
        proof.insert(0, old_root)
    if not proof:
        return False
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn >>= 1
        sn >>= 1
    fr = sr = proof[0]
    for c in proof[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = node(c, fr), node(c, sr)
            while not fn & 1 and fn:
                fn >>= 1
                sn >>= 1
        else:
            sr = node(sr, c)
        fn >>= 1
        sn >>= 1
    return fr == old_root and sr == new_root and sn == 0


def state():
    if not os.path.exists(STATE):
        return 0, b""
    with open(STATE) as file:
        size, root = file.read().split()
    return int(size), base64.b64decode(root)


def sign(message):
    with tempfile.NamedTemporaryFile() as file:
        file.write(message)
        file.flush()
        command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", KEY, "-in", file.name]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


class Witness(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status, answer = self.judge(body) if self.path == "/add-checkpoint" else (404, "")
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer.encode())))
        self.end_headers()
        self.wfile.write(answer.encode())

    def judge(self, body):
        head, note = body.split("\n\n", 1)
        lines = head.split("\n")
        claimed = int(lines[0].removeprefix("old "))
        text = note.split("\n\n")[0] + "\n"
        size, root = int(text.split("\n")[1]), base64.b64decode(text.split("\n")[2])
        known, known_root = state()
        if claimed > size:
            return 400, ""
        if claimed != known:
            return 409, f"{known}\n"
        if not consistent(known, known_root, size, root, [base64.b64decode(line) for line in lines[1:]]):
            return 422, ""
        with open(STATE, "w") as file:
            file.write(f"{size} {base64.b64encode(root).decode()}")
        now = int(time.time())
        signature = sign(f"cosignature/v1\ntime {now}\n{text}".encode())
        line = bytes.fromhex(KEY_ID) + struct.pack(">Q", now) + signature
        return 200, f"\u2014 {NAME} {base64.b64encode(line).decode()}\n"

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Witness)
print(server.server_port, flush=True)
server.serve_forever()
