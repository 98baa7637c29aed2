#!/usr/bin/env python3
"""Verifies a store or a bundle of evergate-audit: an independent reading of docs/reference/evidence-format.md.

Usage: verify.py DIR --trust FILE [--expect-checkpoint FILE]

Python 3.11 and its standard library only. It prints the findings as JSON, as `evergate-audit verify --json` does. Exit
codes: 0 proved, 1 findings, 2 could not run. It is slow and keeps all records in memory: it is meant to be read.
"""
import base64, hashlib, json, pathlib, re, struct, sys
from collections import Counter, deque, namedtuple
from functools import reduce

FINDINGS, CHECKED, KEYS, TRUST = [], Counter(), [], {}
ROOTS, NODES = {}, {}                           # (origin, size) and (origin, level, index) -> (hash, path)

class Bad(Exception): pass                      # bytes that no writer writes
class Torn(Bad): pass                           # bytes that end early

def find(kind, path, detail, offset=None):
    if all((kind, path) != (f["kind"], f["path"]) for f in FINDINGS):      # one finding of a kind for each file
        FINDINGS.append({"kind": kind, "path": path, "offset": offset, "detail": detail})

def need(condition, text):
    if not condition: raise Bad(text)

def u64(data, at): return int.from_bytes(data[at:at + 8], "big")

# --- hashes and trees (RFC 6962)
def sha(data): return hashlib.sha256(data).digest()
def leaf_hash(data): return sha(b"\0" + data)
def node(left, right): return sha(b"\1" + left + right)

def root(leaves):
    while len(leaves) > 1:                      # pairs from the left; a lone last hash rises
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
    if not wanted:
        need(hashes, "proof has too few hashes")
        return hashes.popleft()
    if end - begin == 1: return wanted[begin]
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    left = multi_root(begin, middle, {i: h for i, h in wanted.items() if i < middle}, hashes)
    return node(left, multi_root(middle, end, {i: h for i, h in wanted.items() if i >= middle}, hashes))

# --- signatures: Ed25519 (RFC 8032), ECDSA on P-256 with SHA-256
P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
EP, EN = 2**256 - 2**224 + 2**192 + 2**96 - 1, 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551
EB = 0x5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b
EG = (0x6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296,
      0x4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5)

def times(n, point, add, zero):
    total = zero
    for bit in bin(n)[2:]:
        total = add(total, total)
        if bit == "1": total = add(total, point)
    return total

def ed_add(a, b):
    (x1, y1), (x2, y2) = a, b
    c = D * x1 * x2 * y1 * y2
    return (x1 * y2 + y1 * x2) * pow(1 + c, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - c, -1, P) % P

def ed_point(data):
    need(len(data) == 32, "no point")
    y, sign = int.from_bytes(data, "little") & (1 << 255) - 1, data[31] >> 7
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2: x = x * pow(2, (P - 1) // 4, P) % P
    need(y < P and x * x % P == x2 and (x or not sign), "no point")
    return (x if x & 1 == sign else P - x), y

def ed_valid(key, message, signature):
    s = int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or s >= Q: return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % Q
    (x, y), base = ed_point(key), ed_point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    x, y = ed_add(times(s, base, ed_add, (0, 1)), times(k, (P - x, y), ed_add, (0, 1)))
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]

def ec_add(a, b):
    if a is None or b is None: return a or b
    if a[0] == b[0] and (a[1] + b[1]) % EP == 0: return None
    s = ((3 * a[0] ** 2 - 3) * pow(2 * a[1], -1, EP) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, EP)) % EP
    x = (s * s - a[0] - b[0]) % EP
    return x, (s * (a[0] - x) - a[1]) % EP

def ec_valid(key, message, der):
    x, y = int.from_bytes(key[1:33], "big"), int.from_bytes(key[33:], "big")
    need(key[0] == 4 and x < EP and y < EP and (y * y - x**3 + 3 * x - EB) % EP == 0, "no point")
    if len(der) < 8 or len(der) > 72: return False
    r, s = int.from_bytes(der[4:4 + der[3]], "big"), int.from_bytes(der[6 + der[3]:], "big")
    raw = [n.to_bytes(n.bit_length() // 8 + 1, "big") for n in (r, s)]
    body = b"".join(b"\2" + bytes([len(n)]) + n for n in raw)
    if der != b"\x30" + bytes([len(body)]) + body or not (0 < r < EN and 0 < s < EN): return False
    w, e = pow(s, -1, EN), int.from_bytes(sha(message), "big")
    total = ec_add(times(e * w % EN, EG, ec_add, None), times(r * w % EN, (x, y), ec_add, None))
    return total is not None and total[0] % EN == r

# --- signed notes, checkpoints, receipts (C2SP)
def unbase64(text, length=None):
    try: data = base64.b64decode(text, validate=True)
    except ValueError: raise Bad("no base64")
    need(base64.b64encode(data).decode() == text and length in (None, len(data)), "base64 is not canonical")
    return data

def parse_vkey(text):
    name, key_id, key = text.split("+", 2)
    key = unbase64(key)
    digest = sha(key[1:] if key[0] == 2 else name.encode() + b"\n" + key)[:4]
    need(digest.hex() == key_id and key[0] in (1, 2, 4), "no vkey: " + text)
    return name, digest, key[0], key[-65:] if key[0] == 2 else key[1:]

def parse_checkpoint(data):
    """Origin, size, root, signed text and signature lines (name, key id, signature) of exactly these bytes."""
    try: text = data.decode()
    except UnicodeDecodeError: raise Bad("note is not UTF-8")
    m = re.fullmatch(r"((\S+)\n(0|[1-9][0-9]*)\n(\S+)\n)\n((?:\u2014 [^\s+]+ [A-Za-z0-9+/=]+\n)+)", text)
    need(m and int(m[3]) < 1 << 64 and "+" not in m[2] and not re.search("[\\x00-\\x09\\x0b-\\x1f]", text),
         "no checkpoint of three lines with signatures, each with its line end")
    lines = [(name, raw[:4], raw[4:]) for name, raw in
             ((line.split(" ")[1], unbase64(line.split(" ")[2])) for line in m[5].splitlines())]
    need(len({line[:2] for line in lines}) == len(lines) and all(line[2] for line in lines), "signature lines")
    return m[2], int(m[3]), unbase64(m[4], 32), m[1].encode(), lines

def accept(checkpoint, path, offset=None):
    """Whether a trusted log signed; findings about signatures, witnesses, and other roots of the same size."""
    origin, size, value, text, lines = checkpoint
    logs = witnesses = 0
    try:
        for name, key_id, signature in lines:
            key = next((key for key in KEYS if key[:2] == (name, key_id)), None)
            if key is None: find("signature", path, "signature of an unknown key"); continue
            message, valid = text, ec_valid if key[2] == 2 else ed_valid
            if key[2] == 4:                     # a witness signs the time as well
                message, signature = b"cosignature/v1\ntime %d\n" % u64(signature, 0) + text, signature[8:]
            need(valid(key[3], message, signature), "wrong signature of " + name)
            logs, witnesses = logs + (key[2] != 4 and name == origin), witnesses + (key[2] == 4)
        need(logs, "no signature of a trusted key of " + origin)
    except Bad as error: find("signature", path, str(error), offset); return False
    if witnesses < TRUST.get("witness_threshold", 0): find("witness", path, "too few trusted witnesses signed")
    known, other = ROOTS.setdefault((origin, size), (value, path))
    if known != value:
        for where in (path, other): find("fork", where, f"two roots of size {size}")
    return known == value

def learn(place, value, path):
    """Adds the hash of a subtree, and those that it completes; the path of a proof with another hash, or None."""
    while place not in NODES:
        origin, level, index = place
        NODES[place], sibling = (value, path), NODES.get((origin, level, index ^ 1))
        if sibling is None: return None
        value = node(sibling[0], value) if index & 1 else node(value, sibling[0])
        place = origin, level + 1, index >> 1
    return NODES[place][1] if NODES[place][0] != value else None

def receipt(text, leaf, path, offset=None):
    """Place in the log of the leaf that a tlog-proof proves; None with a finding if it does not."""
    try:
        top, _, note = text.partition(b"\n\n")
        lines = top.decode("ascii", "replace").split("\n")
        m = re.fullmatch("index (0|[1-9][0-9]*)", lines[1]) if len(lines) > 1 else None
        need(lines[0] == "c2sp.org/tlog-proof@v1" and m and len(lines) <= 66, "no tlog-proof")
        checkpoint = parse_checkpoint(note)
        value, known = walk(leaf, int(m[1]), checkpoint[1], [unbase64(line, 32) for line in lines[2:]])
        need(value == checkpoint[2], "proof leads to another root")
    except Bad as error: find("receipt", path, str(error), offset); return None
    if not accept(checkpoint, path, offset): return None
    for place, value in known.items():
        if other := learn((checkpoint[0], *place), value, path):
            for where in (path, other): find("fork", where, "two proofs contradict each other")
            return None
    return int(m[1])

def log_size(origin): return max((size for name, size in ROOTS if name == origin), default=0)

def expect(checkpoint, path):
    """Finding unless the log extends this checkpoint from outside."""
    origin, size, wanted = checkpoint[:3]
    peaks = [NODES.get((origin, level, (size >> level) - 1), (None,))[0] for level in range(64) if size >> level & 1]
    value = ROOTS.get((origin, size), (None,))[0]
    if value is None and all(peaks): value = reduce(lambda right, left: node(left, right), peaks)
    if value != wanted:
        kind = "older" if log_size(origin) < size else "fork" if value else "unproved"
        find(kind, path, f"the log is not proved to extend the checkpoint of size {size}")

# --- records and segments
def option(code, value): return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
def block(kind, body):
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

def edge_blocks(what, mark):
    """Blocks before the first record (MARK 3), or behind the last one (MARK 4), from the mark's object."""
    if what == 4:
        times, counts = divmod(int(mark["time_ns"]), 1 << 32), ((4, "received"), (5, "missed"), (7, "dropped"))
        options = b"".join(option(code, struct.pack("<Q", mark[key])) for code, key in counts)
        return b"", block(5, struct.pack("<III", 0, *times) + options + bytes(4))
    name = f"evergate-audit, recorder {mark['recorder']}, segment {mark['segment']}".encode()
    blocks = block(0x0a0d0d0a, struct.pack("<IHHq", 0x1a2b3c4d, 1, 0, -1) + option(4, name) + bytes(4))
    rule = option(11, b"\0" + mark["filter"].encode()) if mark["filter"] else b""
    head = struct.pack("<HHI", mark["link_type"], 0, mark["snaplen"])
    return blocks + b"".join(block(1, head + option(2, name.encode()) + option(9, b"\x09") + rule + bytes(4))
                             for name in mark["interfaces"]), b""

def packet_record(data, lost):
    """Record of a packet's block, if the block is the one that the record has."""
    _, total, interface, high, low, captured, wire = struct.unpack_from("<7I", data.ljust(80, b"\0"))
    need(total >= 80 and captured <= total - 80 and interface < 1 << 16, "block has an invalid length")
    content, seq, ours = data[28:28 + captured], struct.unpack_from("<Q", data, total - 48)[0], data[-28:-8]
    tail = option(2, struct.pack("<I", 1 | (ours[17] & 8) << 6 | (ours[17] & 16) << 7))
    tail += (option(4, struct.pack("<Q", lost)) if lost else b"") + option(5, struct.pack("<Q", seq))
    tail += option(2989, struct.pack("<I", 32473) + b"EVG1" + ours) + bytes(4)
    need(block(6, data[8:28] + content + bytes(-captured % 4) + tail) == data, "block differs from its record")
    head = struct.pack(">BBHIQQII", 1, 1, interface, 52 + captured, seq, high << 32 | low, wire, captured)
    return head + ours + content

def segment(data):
    """Yields (offset, record) of a segment; raises Bad or Torn at the first block that is not a record's."""
    at = lost = ended = 0
    while at < len(data):
        start, before, behind = at, b"", b""
        need(not ended, "bytes behind the end")
        while start == 0 and data[at:at + 4] not in (b"", b"\xad\x0b\0\0"):                  # section and interfaces
            at += max(12, int.from_bytes(data[at + 4:at + 8], "little"))
        if at + 8 > len(data): raise Torn("file ends within a block")
        kind, total = struct.unpack_from("<II", data, at)
        need(kind in (6, 0xbad) and 12 <= total <= (16 << 20) + 128, "no block of a segment")
        if at + total > len(data): raise Torn("file ends within a block")
        whole = data[at:at + total]
        if kind == 6: record, lost = packet_record(whole, lost), 0
        else:
            record = whole[16:16 + int.from_bytes(whole[20:24], "big")]
            need(len(record) > 16 and block(kind, struct.pack("<I", 32473) + b"EVG1" + record) == whole, "no record")
            need(record[1] == 1 and (start or record[0] == 6 and record[16] == 3), "no begin, or an unknown version")
            if record[0] == 2: lost += u64(record, 20)
            if record[0] == 6 and record[16] in (3, 4):
                try: before, behind = edge_blocks(record[16], json.loads(record[19:]))
                except (ValueError, KeyError, TypeError, AttributeError, struct.error): raise Bad("mark is damaged")
        need(data[start:at] == before, "blocks before the record differ")
        at += total
        if data[at:at + len(behind)] != behind: raise Torn("end") if behind.startswith(data[at:]) else Bad("end")
        at, ended = at + len(behind), bool(behind)
        yield start, record

# --- statements, stores, bundles
S = namedtuple("S", "kind version zero received_ms recorder batch first last first_ns last_ns packets bytes root previous"
               " seen written dropped if_rx if_missed part parts emergency_ms")
def statement(raw):
    need(len(raw) == 212, "no statement")
    s = S(*struct.unpack(">BBHQ32s7Q32s32s5QHHI", raw))
    need(s[:3] == (1, 1, 0) and 0 < s.first <= s.last and s.first_ns <= s.last_ns and s.part < s.parts
         and s.packets <= s.last - s.first + 1 and s.written + s.dropped <= s.seen, "statement contradicts itself")
    return s

def count(record):
    CHECKED["records"] += 1
    if record[0] == 1: CHECKED.update(packets=1, packet_bytes=len(record) - 52)
    if record[0] == 2 and record[16] != 5: CHECKED["declared_lost"] += u64(record, 20)

def receipts_of(data, path, recorder, order, gone):
    """Statements as logged in a .proofs file, by batch. `order` is the last batch and its place in the log."""
    at, found = 0, {}
    while at < len(data):
        end, split = at + 4 + int.from_bytes(data[at:at + 4], "big"), at + 217
        try:
            need(at + 5 < end <= len(data) and data[at + 4] in (1, 2), "no frame of a receipt")
            if data[at + 4] == 2: split = at + 7 + int.from_bytes(data[at + 5:at + 7], "big")
            raw = data[at + (5 if data[at + 4] == 1 else 7):split]
            place = receipt(data[split:end], leaf_hash(raw), path, at)
            if data[at + 4] == 2 and place is not None: need(raw[:4] == b"\x08\1\0\0", "other"); gone[path] = raw
            elif place is not None:
                s = statement(raw)
                need(s.recorder == recorder and s.batch > order[0] and place > order[1], "receipt is out of order")
                found[s.batch], order[:] = raw, (s.batch, place)
        except Bad as error: find("receipt", path, str(error), at)
        at = max(end, at + 5)
    return found

def description(text, stored):
    """Recorder, partition and installation of store.json; of the first statement where it is damaged."""
    try:
        info = json.loads(text)
        need(list(info) == "format version recorder installation part parts".split() and info["version"] == 1
             and info["format"] == "evergate-audit store", "unknown format of store.json")
        need(json.dumps(info, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" == text, "another form")
        return bytes.fromhex(info["recorder"]), struct.pack(">HH", info["part"], info["parts"]), info["installation"]
    except (ValueError, KeyError, TypeError, struct.error, Bad) as error: find("description", "store.json", str(error))
    return stored[12:44], stored[204:208], None

def store(files):
    """Every segment with its receipts, then every statement with the records of its batch."""
    stored, checkpoint, leaves, receipts, gone = files.get("statements", b""), files.get("checkpoint"), {}, {}, []
    recorder, part, installation = facts = description(files.get("store.json", b""), stored)
    numbers = [int(name[9:19]) for name in files if re.fullmatch(r"segments/\d{10}\.(pcapng|proofs|deleted\.json)", name)]
    order, seq, last, logged = [0, -1], 0, max(numbers, default=0), {}
    if not last: find("missing", "segments", "the store has no segments")
    for number in range(1, last + 1):
        stem = f"segments/{number:010}."
        found = receipts_of(files.get(stem + "proofs", b""), stem + "proofs", recorder, order, logged)
        receipts |= {batch: (raw, number) for batch, raw in found.items()}
        try:
            for offset, record in segment(files.get(stem + "pcapng", b"")):
                count(record)
                if u64(record, 8) <= seq: find("sequence", stem + "pcapng", f"a record follows record {seq}", offset)
                else: seq = u64(record, 8); leaves[seq] = leaf_hash(record), number
                begin = json.loads(record[19:]) if record[0] == 6 and record[16] == 3 else None
                need(not begin or (begin["segment"], begin["recorder"]) == (number, recorder.hex()), "another segment")
            if stem + "pcapng" not in files:
                entry, size = logged.get(stem + "proofs", b""), ">32sQQ32sQQ"
                need(entry, "the segment is missing, and no logged deletion declares it")
                owner, segment_number, length, digest, first, end = struct.unpack_from(size, entry, 12)
                need((owner, segment_number) == (recorder, number), "deletion of another segment")
                form = {"bytes": length, "first_seq": first, "last_seq": end, "recorder": owner.hex(),
                        "rule": entry[109:].decode(), "segment": number, "sha256": digest.hex()}
                if json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode() != files.get(stem + "deleted.json"):
                    find("missing", stem + "deleted.json", "it is not the deletion that the log has")
                gone.append((first, end)); CHECKED["deleted_segments"] += 1
        except (Bad, ValueError, KeyError, AttributeError) as error:
            kind = "torn_tail" if isinstance(error, Torn) and number == last else "segment"
            find(kind if stem + "pcapng" in files else "missing", stem + "pcapng", str(error))
    end = batches(stored, receipts, leaves, recorder, part, gone)
    CHECKED.update(segments=sum(name.endswith(".pcapng") for name in files), unsigned=sum(seq > end for seq in leaves))
    if CHECKED["unsigned"]: find("unsigned", f"segments/{last:010}.pcapng", "records at the end have no statement")
    try:
        need(checkpoint is not None or not receipts, "the file is missing")
        if checkpoint is not None:
            parsed = parse_checkpoint(checkpoint); newest = log_size(parsed[0])
            if accept(parsed, "checkpoint") and parsed[1] < newest: find("older", "checkpoint", "older than the receipts")
    except Bad as error: find("signature" if checkpoint is not None else "missing", "checkpoint", str(error))
    if receipts and installation is not None and all(installation != origin for origin, _ in ROOTS):
        find("description", "store.json", "installation is not the log of the receipts")

def batches(stored, receipts, leaves, recorder, part, gone):
    """Each statement against its receipt, the one before, and the root of its records; the last record of them."""
    n, previous, end, time, lacking = 1, bytes(32), 0, 0, None
    while n in receipts or n * 212 <= len(stored) + 211 * (len(stored) % 212 > 0):
        raw, at = stored[n * 212 - 212:n * 212], n * 212 - 212
        if n in receipts:                       # what is logged prevails
            logged, number = receipts[n]
            if raw != logged[:4] + bytes(8) + logged[12:]: find("statement", "statements", f"batch {n} differs", at)
            raw = logged[:4] + bytes(8) + logged[12:]
            if lacking: find("receipt", lacking, f"batches before {n} have no receipt")
            if u64(logged, 4) < time: find("time", f"segments/{number:010}.proofs", "time of receipt goes back")
            time, lacking = u64(logged, 4), None; CHECKED["acknowledged"] += 1
        try:
            s = statement(raw)
            need(s.received_ms == 0 and s.recorder == recorder and raw[204:208] == part, "statement of another store")
            need((s.batch, s.first, s.previous) == (n, end + 1, previous), "statement does not follow the one before")
        except Bad as error:
            find("statement", "statements", f"batch {n}: {error}", at)
            if len(raw) < 212: break
            s = S(*struct.unpack(">BBHQ32s7Q32s32s5QHHI", raw))
        n, previous, end = n + 1, sha(raw), s.last
        inside = [leaves.get(seq) for seq in range(s.first, s.last + 1)] if s.last - s.first <= len(leaves) else [None]
        home = inside[0][1] if inside and inside[0] else receipts.get(n - 1, (0, 1))[1]
        if n - 1 not in receipts: lacking = lacking or f"segments/{home:010}.proofs"; continue
        if home != number: find("receipt", f"segments/{number:010}.proofs", f"batch {n - 1} begins in another segment")
        if inside and all(inside):
            CHECKED["batches"] += 1
            if root([leaf for leaf, _ in inside]) == s.root: continue
            for where in {where for _, where in inside}: find("root", f"segments/{where:010}.pcapng", "root differs")
        elif not any(first <= s.last and s.first <= last for first, last in gone):
            lost = next((seq for seq in range(s.first, s.last) if seq not in leaves), s.last)
            for seq in (max((q for q in leaves if q < lost), default=0), min((q for q in leaves if q > lost), default=0)):
                if seq: find("sequence", f"segments/{leaves[seq][1]:010}.pcapng", f"records around {lost} are missing")
    if lacking: find("unacknowledged", lacking, "batches at the end have no receipt")
    return end

def bundle(files):
    """Records of one connection, each a wanted leaf of a batch whose statement is logged."""
    manifest, data, at, leaves, before = json.loads(files.get("manifest.json", b"{}")), files.get("batches.bin", b""), 0, {}, 0
    if json.dumps(manifest, separators=(",", ":")).encode() + b"\n" != files.get("manifest.json") or set(manifest) != set(
            "connection files format recorder version".split()) or manifest["version"] != 1 or manifest["format"] != \
            "evergate-audit bundle": find("description", "manifest.json", "another form"); manifest = {"files": {}, "recorder": ""}
    for name in sorted(set(files) | set(manifest["files"])):
        if name != "manifest.json" and sha(files.get(name, b"")).hex() != manifest["files"].get(name):
            find("description" if name in files else "missing", name, "it is not the file that the manifest names")
    try:
        for offset, record in segment(files.get("session.pcapng", b"")):
            count(record); leaves[u64(record, 8)] = leaf_hash(record)
            if record[0] == 1:
                need((u64(record, 32), u64(record, 40)) == (manifest.get("connection"), before + 1), "hole in the packets")
                before += 1
            if record[0] == 3 and record[24]: need(u64(record, 88) == before, "fewer packets than counted"); before = -1
        need(before == -1, "the connection's last record is missing")
    except Bad as error: find("connection", "session.pcapng", str(error))
    try:
        while at < len(data):
            s, wanted = statement(data[at:at + 212]), struct.unpack_from(">I", data, at + 220)[0]
            indexes = struct.unpack_from(f">{wanted}I", data, at + 224); to = at + 224 + 4 * wanted
            hashes = deque(data[i:i + 32] for i in range(to + 4, to + 4 + 32 * struct.unpack_from(">I", data, to)[0], 32))
            proof, name = f"proofs/{s.batch}.tlog-proof", leaf_hash(data[at:at + 212])
            receipt(files.get(proof, b""), name, proof); at = to + 4 + 32 * len(hashes)
            need(s.recorder.hex() == manifest["recorder"] and u64(data, to - 4 * wanted - 12) == s.last - s.first + 1, "other")
            value = multi_root(0, s.last - s.first + 1, {i: leaves.pop(s.first + i, b"") for i in indexes}, hashes)
            need(value == s.root and not hashes, f"records and hashes of batch {s.batch} do not lead to its root")
    except (Bad, struct.error) as error: find("root", "batches.bin", str(error))
    if leaves: find("root", "session.pcapng", "records that no batch proves")

def main(folder, trust, expected=None):
    try:
        TRUST.update(json.loads(pathlib.Path(trust).read_bytes()))
        KEYS.extend(parse_vkey(key) for key in TRUST["logs"] + TRUST.get("witnesses", []))
        expected = parse_checkpoint(pathlib.Path(expected).read_bytes()) if expected else None
        base = pathlib.Path(folder)
        files = {str(p.relative_to(base)): p.read_bytes() for p in base.rglob("*") if p.is_file()}
        need({"store.json", "manifest.json", "session.pcapng"} & set(files) or (base / "segments").exists(), "neither store nor bundle")
    except (OSError, ValueError, KeyError, Bad) as error: print(f"verify.py: {error}", file=sys.stderr); return 2
    (bundle if {"manifest.json", "session.pcapng"} & set(files) else store)(files)
    if expected: expect(expected, "checkpoint")
    print(json.dumps({"ok": not FINDINGS, "findings": FINDINGS, "checked": CHECKED}))
    return bool(FINDINGS)

if __name__ == "__main__":
    options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    sys.exit(main(sys.argv[1], options.get("--trust", ""), options.get("--expect-checkpoint")))
