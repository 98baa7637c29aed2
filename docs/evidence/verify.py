#!/usr/bin/env python3
"""Verifies a store or a bundle of evergate-audit: an independent reading of docs/reference/evidence-format.md.
Usage: verify.py DIR --trust FILE [--expect-checkpoint FILE]     exit code 0 proved, 1 findings, 2 could not run
It needs Python 3.11 and its standard library. It prints one JSON object as `evergate-audit verify --json` does, with
one finding of a kind for each file. It leaves out counters, clocks of packets and open connections, and is slow."""
import base64, functools, hashlib, json, pathlib, re, struct, sys
from collections import Counter, deque, namedtuple
from primitives import Bad, ec_valid, ed_valid, leaf_hash, multi_root, need, node, root, sha, walk

FINDINGS, CHECKED, KEYS, TRUST, BUNDLE = [], Counter(), [], {}, "connection files format recorder version".split()
ROOTS, NODES = {}, {}                           # (origin, size) and (origin, level, index) -> (hash, path)
class Torn(Bad): pass                           # bytes that end early
def find(kind, path, detail, offset=None):
    if all((kind, path) != (f["kind"], f["path"]) for f in FINDINGS):
        FINDINGS.append({"kind": kind, "path": path, "offset": offset, "detail": detail})
def u32(data, at): return int.from_bytes(data[at:at + 4], "big")
def u64(data, at): return int.from_bytes(data[at:at + 8], "big")
def canonical(value): return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
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
    need(digest.hex() == key_id and len(key) == {1: 33, 2: 92, 4: 33}.get(key[0]), "no vkey: " + text)
    return name, digest, key[0], key[-65:] if key[0] == 2 else key[1:]
def parse_checkpoint(data):
    """Origin, size, root, signed text and signature lines (name, key id, signature) of exactly these bytes."""
    try: text = data.decode()
    except UnicodeDecodeError: raise Bad("note is not UTF-8")
    m = re.fullmatch(r"(([^\s+]+)\n(0|[1-9][0-9]*)\n(\S+)\n)\n((?:\u2014 [^\s+]+ [A-Za-z0-9+/=]+\n)+)", text)
    need(m and int(m[3]) < 1 << 64 and not re.search("[\x00-\x09\x0b-\x1f]", text), "no checkpoint of three lines")
    raw = [(line.split(" ")[1], unbase64(line.split(" ")[2])) for line in m[5].splitlines()]
    need(len({(name, key[:4]) for name, key in raw}) == len(raw) and all(len(key) > 4 for _, key in raw), "a bad line")
    return m[2], int(m[3]), unbase64(m[4], 32), m[1].encode(), [(name, key[:4], key[4:]) for name, key in raw]
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
    for where in (path, other) if known != value else (): find("fork", where, f"two roots of size {size}")
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
        m = re.fullmatch(rb"c2sp\.org/tlog-proof@v1\nindex (0|[1-9][0-9]*)((?:\n[\x21-\x7e]+){0,64})", top)
        need(m, "no tlog-proof")
        checkpoint, path_hashes = parse_checkpoint(note), [unbase64(line, 32) for line in m[2].decode().split()]
        value, known = walk(leaf, int(m[1]), checkpoint[1], path_hashes)
        need(value == checkpoint[2], "proof leads to another root")
    except Bad as error: find("receipt", path, str(error), offset); return None
    if not accept(checkpoint, path, offset): return None
    other = next(filter(None, [learn((checkpoint[0], *place), value, path) for place, value in known.items()]), None)
    for where in (path, other) if other else (): find("fork", where, "two proofs contradict each other")
    return None if other else int(m[1])
def log_size(origin): return max((size for name, size in ROOTS if name == origin), default=0)
def expect(origin, size, wanted):
    """Finding unless the log extends this checkpoint from outside."""
    peaks = [NODES.get((origin, level, (size >> level) - 1), (None,))[0] for level in range(64) if size >> level & 1]
    value = ROOTS.get((origin, size), (None,))[0]
    if value is None and all(peaks): value = functools.reduce(lambda right, left: node(left, right), peaks)
    if value != wanted:
        find("older" if log_size(origin) < size else "fork" if value else "unproved", "checkpoint", "not extended")
# --- records and segments
def option(code, value): return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
def block(kind, body):
    size = struct.pack("<I", len(body) + -len(body) % 4 + 12)
    return struct.pack("<I", kind) + size + body + bytes(-len(body) % 4) + size
def edge_blocks(what, mark):
    """Blocks before the first record (MARK 3), or behind the last one (MARK 4), from the mark's object."""
    if what == 4:
        counts, times = {4: "received", 5: "missed", 7: "dropped"}, divmod(int(mark["time_ns"]), 1 << 32)
        options = b"".join(option(code, struct.pack("<Q", mark[key])) for code, key in counts.items())
        return b"", block(5, struct.pack("<III", 0, *times) + options + bytes(4))
    name = f"evergate-audit, recorder {mark['recorder']}, segment {mark['segment']}".encode()
    rule = option(11, b"\0" + mark["filter"].encode()) if mark["filter"] else b""
    head, tail = struct.pack("<HHI", mark["link_type"], 0, mark["snaplen"]), option(9, b"\x09") + rule + bytes(4)
    return b"".join([block(0x0a0d0d0a, struct.pack("<IHHq", 0x1a2b3c4d, 1, 0, -1) + option(4, name) + bytes(4)),
                     *(block(1, head + option(2, name.encode()) + tail) for name in mark["interfaces"])]), b""
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
        if len(data) - at < 8: raise Torn("file ends within a block")
        kind, total = struct.unpack_from("<II", data, at)
        need(kind in (6, 0xbad) and 12 <= total <= (16 << 20) + 128, "no block of a segment")
        if len(data) - at < total: raise Torn("file ends within a block")
        whole = data[at:at + total]
        if kind == 6: record, lost = packet_record(whole, lost), 0
        else:
            record = whole[16:16 + u32(whole, 20)]
            need(len(record) > 16 and block(kind, struct.pack("<I", 32473) + b"EVG1" + record) == whole, "no record")
            need(record[1] == 1 and (start or record[0] == 6 and record[16] == 3), "no begin, or an unknown version")
            if record[0] == 2: lost += u64(record, 20)
            if record[0] == 6 and record[16] in (3, 4):
                try: before, behind = edge_blocks(record[16], json.loads(record[19:]))
                except (ValueError, KeyError, TypeError, AttributeError, struct.error): raise Bad("mark is damaged")
        need(data[start:at] == before, "blocks before the record differ"); at += total
        if data[at:at + len(behind)] != behind: raise Torn("end") if behind.startswith(data[at:]) else Bad("end")
        at, ended = at + len(behind), bool(behind)
        CHECKED["records"] += 1
        if record[0] == 1: CHECKED.update(packets=1, packet_bytes=len(record) - 52)
        if record[0] == 2 and record[16] != 5: CHECKED["declared_lost"] += u64(record, 20)
        yield start, record
# --- statements, stores, bundles
S = namedtuple("S", "kind version zero received_ms recorder batch first last first_ns last_ns packets bytes root"
               " previous seen written dropped if_rx if_missed part parts emergency_ms")
def statement(raw):
    need(len(raw) == 212, "no statement")
    s = S(*struct.unpack(">BBHQ32s7Q32s32s5QHHI", raw))
    need(s[:3] == (1, 1, 0) and 0 < s.first <= s.last and s.first_ns <= s.last_ns and s.part < s.parts
         and s.packets <= s.last - s.first + 1 and s.written + s.dropped <= s.seen, "statement contradicts itself")
    return s
def read_receipts(data, number, recorder, receipts):
    """Adds the statements as logged of a .proofs file to `receipts`, by batch."""
    at, path = 0, f"segments/{number:010}.proofs"
    while at < len(data):
        end, raw = at + 4 + u32(data, at), data[at + 5:at + 217]
        try:
            need(at + 217 < end <= len(data) and data[at + 4] == 1, "no frame of a receipt")
            place = receipt(data[at + 217:end], leaf_hash(raw), path, at)
            if place is not None:
                s, last = statement(raw), receipts[max(receipts)] if receipts else (b"", 0, -1)
                need(s.recorder == recorder and s.batch > max(receipts, default=0) and place > last[2], "out of order")
                receipts[s.batch] = raw, number, place
        except Bad as error: find("receipt", path, str(error), at)
        at = max(end, at + 5)
def outbox(files):
    """Logged entries of deletions, by the number of the segment."""
    gone, names = {}, sorted(name for name in files if re.fullmatch(r"outbox/.*\.receipt", name))
    for path, raw, split in ((name, files[name], 4 + u32(files[name], 0)) for name in names):
        is_logged = receipt(raw[split:], leaf_hash(raw[4:split]), path) is not None
        if is_logged and raw[4] == 8: gone[u64(raw, 48)] = raw[4:split]
    return gone
def description(text, stored):
    """Recorder, partition and installation of store.json; of the first statement where it is damaged."""
    try:
        info = json.loads(text)
        need(list(info) == "format version recorder installation part parts".split() and canonical(info) + b"\n" == text
             and (info["format"], info["version"]) == ("evergate-audit store", 1), "another form of store.json")
        return bytes.fromhex(info["recorder"]), struct.pack(">HH", info["part"], info["parts"]), info["installation"]
    except (ValueError, TypeError, struct.error, Bad) as error: find("description", "store.json", str(error))
    return stored[12:44], stored[204:208], None
def deletion(entry, recorder, number, content):
    """Range of the records that a logged entry of kind 8 deleted, and that the declaration has."""
    need(entry[:4] == b"\x08\1\0\0", "the segment is missing, and no logged deletion declares it")
    owner, segment, length, digest, first, last = struct.unpack_from(">32sQQ32sQQ", entry, 12)
    form = {"bytes": length, "first_seq": first, "last_seq": last, "recorder": owner.hex(),
            "rule": entry[109:].decode(), "segment": segment, "sha256": digest.hex()}
    need((owner, segment, canonical(form)) == (recorder, number, content), "it is not the deletion that the log has")
    CHECKED["deleted_segments"] += 1
    return first, last
def store(files):
    """Every segment with its receipts, then every statement with the records of its batch."""
    stored, checkpoint, gone = files.get("statements", b""), files.get("checkpoint"), outbox(files)
    leaves, receipts = {}, {}
    recorder, part, installation = description(files.get("store.json", b""), stored)
    last, seq = max((int(name[9:19]) for name in files if re.match(r"segments/\d{10}\.\w", name)), default=0), 0
    if not last: find("missing", "segments", "the store has no segments")
    for number in range(1, last + 1):
        stem = f"segments/{number:010}."
        path = stem + ("pcapng" if stem + "pcapng" in files or stem + "deleted.json" not in files else "deleted.json")
        read_receipts(files.get(stem + "proofs", b""), number, recorder, receipts)
        try:
            for offset, record in segment(files.get(stem + "pcapng", b"")):
                if u64(record, 8) <= seq: find("sequence", path, f"a record follows record {seq}", offset)
                else: seq = u64(record, 8); leaves[seq] = leaf_hash(record), number
                begin = json.loads(record[19:]) if record[0] == 6 and record[16] == 3 else None
                need(not begin or (begin["segment"], begin["recorder"]) == (number, recorder.hex()), "another segment")
            if stem + "pcapng" in files: CHECKED["segments"] += 1; gone.pop(number, None)
            else: gone[number] = deletion(gone.pop(number, b""), recorder, number, files.get(stem + "deleted.json"))
        except (Bad, ValueError, KeyError, AttributeError) as error:
            kind = "torn_tail" if isinstance(error, Torn) and number == last else "segment"
            find(kind if stem + "pcapng" in files else "missing", path, str(error))
    end = batches(stored, receipts, leaves, recorder + part, gone.values())
    CHECKED["unsigned"] = sum(seq > end for seq in leaves)
    if CHECKED["unsigned"]: find("unsigned", f"segments/{last:010}.pcapng", "records at the end have no statement")
    if checkpoint is None and receipts: find("missing", "checkpoint", "the file is missing")
    try:
        parsed = parse_checkpoint(checkpoint) if checkpoint is not None else ("",) * 5
        newest = log_size(parsed[0])
        if parsed[0] and accept(parsed, "checkpoint") and parsed[1] < newest: find("older", "checkpoint", "too old")
    except Bad as error: find("signature", "checkpoint", str(error))
    if receipts and installation is not None and all(installation != origin for origin, _ in ROOTS):
        find("description", "store.json", "installation is not the log of the receipts")
def batches(stored, receipts, leaves, facts, gone):
    """Each statement against its receipt, the one before, and the root of its records; the last record of them."""
    n, previous, end, time, lacking = 1, bytes(32), 0, 0, None
    while n in receipts or (n - 1) * 212 < len(stored):
        raw, logged, number = stored[n * 212 - 212:n * 212], *receipts.get(n, (None, 1))[:2]
        if logged:                              # what is logged prevails
            if raw != logged[:4] + bytes(8) + logged[12:]: find("statement", "statements", f"batch {n} differs")
            raw = logged[:4] + bytes(8) + logged[12:]
            if lacking: find("receipt", lacking, f"batches before {n} have no receipt")
            if u64(logged, 4) < time: find("time", f"segments/{number:010}.proofs", "time of receipt goes back")
            time, lacking = u64(logged, 4), None; CHECKED["acknowledged"] += 1
        s = S(*struct.unpack(">BBHQ32s7Q32s32s5QHHI", raw.ljust(212, b"\0")))
        try: need((statement(raw).received_ms, s.recorder + raw[204:208], s.batch, s.first, s.previous)
                  == (0, facts, n, end + 1, previous), "it does not follow the one before")
        except Bad as error: find("statement", "statements", f"batch {n}: {error}", n * 212 - 212)
        n, previous, end = n + 1, sha(raw), s.last
        inside = [leaves.get(seq) for seq in range(s.first, s.last + 1)] if s.last - s.first <= len(leaves) else [None]
        home = inside[0][1] if inside and inside[0] else number
        if not logged: lacking = lacking or f"segments/{home:010}.proofs"
        elif home != number: find("receipt", f"segments/{number:010}.proofs", f"batch {n - 1} begins elsewhere")
        if inside and all(inside):
            CHECKED["batches"] += 1
            for where in {where for _, where in inside} if root([leaf for leaf, _ in inside]) != s.root else ():
                find("root", f"segments/{where:010}.pcapng", f"root of batch {n - 1} differs")
        elif not any(len(span) == 2 and span[0] <= s.last and s.first <= span[1] for span in gone):
            lost = next((seq for seq in range(s.first, s.last) if seq not in leaves), s.last)
            home = leaves.get(max((q for q in leaves if q < lost), default=0), (0, 0))[1]
            other = leaves.get(min((q for q in leaves if q > lost), default=0), (0, home + 1))[1]
            for where in {home, other} - {0}: find("sequence", f"segments/{where:010}.pcapng", f"{lost} is missing")
    if lacking: find("unacknowledged", lacking, "batches at the end have no receipt")
    return end
def bundle(files):
    """Records of one connection, each a wanted leaf of a batch whose statement is logged."""
    text, data, at, leaves, before = files.get("manifest.json", b"{}"), files.get("batches.bin", b""), 0, {}, 0
    try:
        manifest = json.loads(text)
        connection, named, form, recorder, version = (manifest.get(key) for key in BUNDLE)
        need(len(manifest) == 5 and canonical(dict(sorted(manifest.items()))) + b"\n" == text
             and (form, version) == ("evergate-audit bundle", 1), "another form of manifest")
    except (ValueError, Bad) as error: return find("description", "manifest.json", str(error))
    for name in sorted(set(files) - {"manifest.json"} | set(named)):
        if name not in files or sha(files[name]).hex() != named.get(name):
            find("description", name, "it is not the file that the manifest names")
    try:
        for _, record in segment(files.get("session.pcapng", b"")):
            leaves[u64(record, 8)] = leaf_hash(record)
            if record[0] == 1: need(record[32:48] == struct.pack(">QQ", connection, before + 1), "a hole")
            before += record[0] == 1
            if record[0] == 3 and record[24]: need(u64(record, 88) == before, "fewer packets than counted"); before = -1
        need(before == -1, "the connection's last record is missing")
        while at < len(data):
            s, wanted, to = statement(data[at:at + 212]), u32(data, at + 220), at + 224 + 4 * u32(data, at + 220)
            indexes = [u32(data, place) for place in range(at + 224, to, 4)]
            hashes = deque(data[place:place + 32] for place in range(to + 4, to + 4 + 32 * u32(data, to), 32))
            proof, leaf, count = f"proofs/{s.batch}.tlog-proof", leaf_hash(data[at:at + 212]), s.last - s.first + 1
            receipt(files.get(proof, b""), leaf, proof)
            need(s.recorder.hex() == recorder and u64(data, at + 212) == count, "batch of another Recorder")
            at, value = to + 4 + 32 * len(hashes), {i: leaves.pop(s.first + i, b"") for i in indexes}
            need(multi_root(0, count, value, hashes) == s.root and not hashes, f"batch {s.batch} has another root")
        need(not leaves, "records that no batch proves")
    except (Bad, KeyError, TypeError, struct.error) as error: find("root", "session.pcapng", str(error))
def main(folder, options):
    try:
        TRUST.update(json.loads(pathlib.Path(options["--trust"]).read_bytes()))
        KEYS.extend(parse_vkey(key) for key in TRUST["logs"] + TRUST.get("witnesses", []))
        expected = [parse_checkpoint(pathlib.Path(p).read_bytes()) for k, p in options.items() if k != "--trust"]
        files = {str(p.relative_to(folder)): p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}
        need(any(re.match("store.json|segments/|manifest.json|session.pcapng", name) for name in files), "no evidence")
    except (OSError, ValueError, KeyError, Bad) as error: print(f"verify.py: {error}", file=sys.stderr); return 2
    (bundle if {"manifest.json", "session.pcapng"} & set(files) else store)(files)
    for checkpoint in expected: expect(*checkpoint[:3])
    print(json.dumps({"ok": not FINDINGS, "findings": FINDINGS, "checked": CHECKED}))
    return bool(FINDINGS)
if __name__ == "__main__": sys.exit(main(sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))))
