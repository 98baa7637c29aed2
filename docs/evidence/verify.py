#!/usr/bin/env python3
"""Verifies a store or a bundle of evergate-audit: an independent reading of docs/reference/evidence-format.md.

Usage: verify.py DIR --trust FILE [--expect-checkpoint FILE]

Python 3.11 and its standard library only. It prints the findings as JSON, as `evergate-audit verify --json` does. Exit
codes: 0 proved, 1 findings, 2 could not run. It is slow and keeps files in memory: it is meant to be read.
"""
import base64, hashlib, json, pathlib, re, struct, sys
from collections import deque

DIR, LEAD_NS, BACK_NS, BLOCK_MAX = None, 10**10, 10**9, (16 << 20) + 128
FINDINGS, CHECKED, ONCE, TRUST = [], {k: 0 for k in (
    "segments deleted_segments records packets packet_bytes declared_lost connections unexplained batches acknowledged"
    " unacknowledged unsigned log_size first_ns last_ns").split()}, set(), {}
CHECKED["lost"] = {}

class Bad(Exception): pass                              # bytes that no writer writes
class Torn(Exception): pass                             # bytes that end early

def find(kind, path, detail, offset=None, once=False):
    if not (once and (kind, path) in ONCE):
        ONCE.add((kind, path))
        FINDINGS.append({"kind": kind, "path": path, **({} if offset is None else {"offset": offset}), "detail": detail})

def need(condition, text):
    if not condition: raise Bad(text)

# --- hashes and trees (RFC 6962) ---------------------------------------------------------------------------------------
sha = lambda data: hashlib.sha256(data).digest()
leaf_hash, node = lambda data: sha(b"\0" + data), lambda left, right: sha(b"\1" + left + right)
split = lambda n: 1 << (n - 1).bit_length() - 1        # largest power of two below n

def root(leaves):
    while len(leaves) > 1:                              # pairs from the left; a lone last hash rises
        leaves = [node(*leaves[i:i + 2]) if i + 1 < len(leaves) else leaves[i] for i in range(0, len(leaves), 2)]
    return leaves[0] if leaves else sha(b"")

def walk(leaf, index, size, path):
    """Root that an inclusion proof leads to, and the hashes of perfect subtrees (level, index) that it names."""
    need(index < size, "index is outside the tree")
    at, last, level, value, known = index, size - 1, 0, leaf, {(0, index): leaf}
    for sibling in path:
        need(last > 0, "proof has too many hashes")
        while at == last and not at & 1: at, last, level = at >> 1, last >> 1, level + 1
        if at & 1: known[level, at - 1], value = sibling, node(sibling, value)
        else:
            if at + 2 << level <= size: known[level, at + 1] = sibling
            value = node(value, sibling)
        at, last, level = at >> 1, last >> 1, level + 1
        if at + 1 << level <= size: known[level, at] = value
    need(last == 0, "proof has too few hashes")
    return value, known

def multi_root(begin, end, wanted, hashes):
    """Root of the leaves begin..end, from the wanted ones and the proof's hashes, which are taken from its front."""
    inside = [i for i in wanted if begin <= i < end]
    if not inside:
        need(hashes, "proof has too few hashes")
        return hashes.popleft()
    if end - begin == 1: return wanted[begin]
    middle = begin + split(end - begin)
    return node(multi_root(begin, middle, {i: wanted[i] for i in inside}, hashes),
                multi_root(middle, end, {i: wanted[i] for i in inside}, hashes))

# --- signatures: Ed25519 (RFC 8032) and ECDSA on P-256 with SHA-256 -----------------------------------------------------
P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P

def ed_add(a, b):
    (x1, y1, z1, t1), (x2, y2, z2, t2) = a, b
    a, b, c, d = (y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2), 2 * t1 * t2 * D, 2 * z1 * z2
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P

def times(n, point, add, zero):
    total = zero
    for bit in bin(n)[2:]:
        total = add(total, total)
        if bit == "1": total = add(total, point)
    return total

def ed_point(data):
    y = int.from_bytes(data, "little"); sign, y = y >> 255, y & (1 << 255) - 1
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2: x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != x2 or (x == 0 and sign): return None
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P

ED_BASE = ed_point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))

def ed_valid(key, message, signature):
    a, s = ed_point(key), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or a is None or s >= Q: return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % Q
    minus = (P - a[0], a[1], 1, P - a[3])
    x, y, z, _ = ed_add(times(s, ED_BASE, ed_add, (0, 1, 1, 0)), times(k, minus, ed_add, (0, 1, 1, 0)))
    x, y = x * pow(z, -1, P) % P, y * pow(z, -1, P) % P
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]

EP, EN = 2**256 - 2**224 + 2**192 + 2**96 - 1, 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551
EB = 0x5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b
EG = (0x6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296,
      0x4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5)

def ec_add(a, b):
    if a is None or b is None: return a or b
    if a[0] == b[0] and (a[1] + b[1]) % EP == 0: return None
    s = ((3 * a[0] ** 2 - 3) * pow(2 * a[1], -1, EP) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, EP)) % EP
    x = (s * s - a[0] - b[0]) % EP
    return x, (s * (a[0] - x) - a[1]) % EP

def ec_valid(point, message, der):
    x, y = int.from_bytes(point[1:33], "big"), int.from_bytes(point[33:], "big")
    if point[0] != 4 or x >= EP or (y * y - x**3 + 3 * x - EB) % EP: return False
    number = lambda n: (lambda raw: b"\2" + bytes([len(raw)]) + raw)(n.to_bytes(n.bit_length() // 8 + 1, "big"))
    try: r = int.from_bytes(der[4:4 + der[3]], "big"); s = int.from_bytes(der[6 + der[3]:], "big")
    except IndexError: return False
    body = number(r) + number(s)
    if der != b"\x30" + bytes([len(body) & 255]) + body or not (0 < r < EN and 0 < s < EN): return False
    w, e = pow(s, -1, EN), int.from_bytes(sha(message), "big")
    total = ec_add(times(e * w % EN, EG, ec_add, None), times(r * w % EN, (x, y), ec_add, None))
    return total is not None and total[0] % EN == r

# --- signed notes, checkpoints, receipts (C2SP) -------------------------------------------------------------------------
def unbase64(text):
    try: data = base64.b64decode(text, validate=True)
    except ValueError: raise Bad("no base64")
    need(base64.b64encode(data).decode() == text, "base64 is not canonical")
    return data

def is_name(name): return bool(name) and not re.search(r"[\s+\x00-\x1f\x7f-\x9f]", name)

def parse_vkey(text):
    name, key_id, key = text.split("+", 2)
    key = unbase64(key)
    hashed = key[1:] if key[0] == 2 else name.encode() + b"\n" + key
    need(is_name(name) and sha(hashed)[:4].hex() == key_id and key[0] in (1, 2, 4), "no vkey: " + text)
    return name, sha(hashed)[:4], key[0], key[-65:] if key[0] == 2 else key[1:]

def parse_note(data):
    """Text and signature lines [(name, id, signature)] of exactly these bytes."""
    need(len(data) <= 1 << 16, "note is too long")
    try: text = data.decode()
    except UnicodeDecodeError: raise Bad("note is not UTF-8")
    need(text.endswith("\n") and not re.search("[\x00-\x09\x0b-\x1f]", text), "no plain text with a last line end")
    need("\n\n" in text, "no blank line before signatures")
    body, _, lines = text.rpartition("\n\n")
    signatures = []
    for line in lines.removesuffix("\n").split("\n"):
        need(m := re.fullmatch(r"— (\S+) ([A-Za-z0-9+/=]+)", line), "no signature line")
        raw = unbase64(m[2])
        need(is_name(m[1]) and len(raw) > 4 and (m[1], raw[:4]) not in [s[:2] for s in signatures], "bad line")
        signatures.append((m[1], raw[:4], raw[4:]))
    need(len(signatures) <= 64, "too many signatures")
    return body + "\n", signatures

def parse_checkpoint(data):
    text, signatures = parse_note(data)
    lines = text.split("\n")
    need(len(lines) == 4 and is_name(lines[0]) and len(lines[0].encode()) < 256, "no checkpoint of three lines")
    need(re.fullmatch("0|[1-9][0-9]*", lines[1]) and int(lines[1]) < 1 << 64, "no tree size")
    need(len(unbase64(lines[2])) == 32, "no root")
    return {"origin": lines[0], "size": int(lines[1]), "root": unbase64(lines[2]), "text": text, "lines": signatures}

class Log:
    """What checkpoints and proofs state about the trusted logs. Two that contradict each other are a fork."""
    roots, nodes = {}, {}                               # (origin, size) and (origin, level, index) -> (hash, path)

    def accept(self, c, path, offset=None):
        try: signers = self.signers(c, path)
        except Bad as error: find("signature", path, str(error), offset); return False
        other = self.roots.setdefault((c["origin"], c["size"]), (c["root"], path))
        if other[0] != c["root"]:
            find("fork", path, f"two roots of size {c['size']}", offset)
            find("fork", other[1], f"two roots of size {c['size']}", once=True)
            return False
        return True

    def signers(self, c, path):
        text, logs, witnesses = c["text"].encode(), 0, 0
        for name, key_id, signature in c["lines"]:
            key = next((k for k in TRUST["keys"] if k[:2] == (name, key_id)), None)
            if key is None: continue
            message = text
            if key[2] == 4:
                message = b"cosignature/v1\ntime %d\n" % int.from_bytes(signature[:8], "big") + text
                signature = signature[8:]
            need((ec_valid if key[2] == 2 else ed_valid)(key[3], message, signature), f"wrong signature of {name}")
            logs += key[2] != 4 and name == c["origin"]; witnesses += key[2] == 4
        need(logs, "no signature of a trusted key of " + c["origin"])
        known = {key[:2] for key in TRUST["keys"]}
        if any(line[:2] not in known for line in c["lines"]): find("signature", path, "unknown key", once=True)
        if witnesses < TRUST["threshold"]: find("witness", path, "too few witnesses", once=True)

    def learn(self, place, value, path):
        while (other := self.nodes.setdefault(place, (value, path)))[0] == value:
            origin, level, index = place
            sibling = self.nodes.get((origin, level, index ^ 1))
            if sibling is None or (origin, level + 1, index >> 1) in self.nodes and other[1] != path: return None
            value = node(sibling[0], value) if index & 1 else node(value, sibling[0])
            place = origin, level + 1, index >> 1
        return other[1]

    def size(self, origin): return max((s for o, s in self.roots if o == origin), default=0)

    def receipt(self, text, leaf, path, offset=None):
        """Place in the log of a leaf that the receipt proves, or None and a finding."""
        try:
            head, _, note = text.partition(b"\n\n")
            lines = head.decode("ascii", "replace").split("\n")
            need(lines[0] == "c2sp.org/tlog-proof@v1" and len(lines) > 1 and len(lines) <= 66, "no tlog-proof")
            need(m := re.fullmatch("index (0|[1-9][0-9]*)", lines[1]), "no index")
            path_hashes = [unbase64(line) for line in lines[2:]]
            need(all(len(h) == 32 for h in path_hashes), "no hash")
            try: checkpoint = parse_checkpoint(note)
            except Bad as error: raise Bad(str(error))
            value, known = walk(leaf, int(m[1]), checkpoint["size"], path_hashes)
            need(value == checkpoint["root"], "proof leads to another root")
        except Bad as error: find("receipt", path, str(error), offset); return None
        if not self.accept(checkpoint, path, offset): return None
        for place, value in known.items():
            if other := self.learn((checkpoint["origin"], *place), value, path):
                find("fork", path, "proof contradicts another one", offset)
                find("fork", other, "proof contradicts a later one", once=True)
                return None
        return int(m[1])

    def expect(self, c, path):
        """Finding unless the log extends the expected checkpoint c."""
        size, places = c["size"], [l for l in range(64) if c["size"] >> l & 1]
        peaks = [self.nodes.get((c["origin"], l, (size >> l) - 1)) for l in places]
        value = self.roots.get((c["origin"], size), (None,))[0]
        if value is None and peaks and all(peaks):
            value = peaks[0][0]
            for peak in peaks[1:]: value = node(peak[0], value)
        if value != c["root"]:
            kind = "older" if self.size(c["origin"]) < size else "fork" if value else "unproved"
            find(kind, path, "not proved to extend the expected checkpoint")

LOG = Log()
