"""Textbook parts of verify.py: trees of RFC 6962, Ed25519 (RFC 8032), ECDSA on P-256 with SHA-256. Not for secrets."""
import functools, hashlib

class Bad(Exception): pass                      # bytes that no writer writes

def need(condition, text):
    if not condition: raise Bad(text)

# --- hashes and trees
def sha(data): return hashlib.sha256(data).digest()
def leaf_hash(data): return sha(b"\0" + data)
def node(left, right): return sha(b"\1" + left + right)

def root(leaves):
    while len(leaves) > 1:                      # pairs from the left; a lone last hash rises
        leaves = [node(*leaves[i:i + 2]) if i + 1 < len(leaves) else leaves[i] for i in range(0, len(leaves), 2)]
    return leaves[0]

def walk(leaf, index, size, path):
    """Root that an inclusion proof leads to, and the hashes of perfect subtrees (level, index) that it names."""
    need(index < size, "index is outside the tree")
    at, last, level, value, known = index, size - 1, 0, leaf, {(0, index): leaf}
    for sibling in path:
        need(last > 0, "proof has too many hashes")
        while at == last and not at & 1: at, last, level = at >> 1, last >> 1, level + 1
        if at & 1 or at + 2 << level <= size: known[level, at ^ 1] = sibling
        value = node(sibling, value) if at & 1 else node(value, sibling)
        at, last, level = at >> 1, last >> 1, level + 1
        if at + 1 << level <= size: known[level, at] = value
    need(last == 0, "proof has too few hashes")
    return value, known

def multi_root(begin, end, wanted, hashes):
    """Root of the leaves begin..end, from the wanted ones and the proof's hashes, which are taken from its front."""
    need(wanted or hashes, "proof has too few hashes")
    if not wanted: return hashes.popleft()
    if end - begin == 1: return wanted[begin]
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    left = multi_root(begin, middle, {i: h for i, h in wanted.items() if i < middle}, hashes)
    return node(left, multi_root(middle, end, {i: h for i, h in wanted.items() if i >= middle}, hashes))

# --- signatures
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
    (x1, y1), (x2, y2), c = a, b, D * a[0] * b[0] * a[1] * b[1]
    return (x1 * y2 + y1 * x2) * pow(1 + c, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - c, -1, P) % P

def ed_point(data):
    y, sign = int.from_bytes(data, "little") & (1 << 255) - 1, data[31] >> 7
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2: x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != x2 or (sign and not x): return None
    return (x if x & 1 == sign else P - x), y

@functools.lru_cache
def ed_valid(key, message, signature):
    s = int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or s >= Q: return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % Q
    point, base = ed_point(key), ed_point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    if point is None: return False
    x, y = point
    x, y = ed_add(times(s, base, ed_add, (0, 1)), times(k, (P - x, y), ed_add, (0, 1)))
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]

def ec_add(a, b):
    if a is None or b is None: return a or b
    if a[0] == b[0] and (a[1] + b[1]) % EP == 0: return None
    s = ((3 * a[0] ** 2 - 3) * pow(2 * a[1], -1, EP) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, EP)) % EP
    x = (s * s - a[0] - b[0]) % EP
    return x, (s * (a[0] - x) - a[1]) % EP

@functools.lru_cache
def ec_valid(key, message, der):
    x, y = int.from_bytes(key[1:33], "big"), int.from_bytes(key[33:], "big")
    if key[0] != 4 or x >= EP or y >= EP or (y * y - x**3 + 3 * x - EB) % EP or not 8 <= len(der) <= 72: return False
    r, s = int.from_bytes(der[4:4 + der[3]], "big"), int.from_bytes(der[6 + der[3]:], "big")
    body = b"".join(b"\2" + bytes([len(n)]) + n for n in (n.to_bytes(n.bit_length() // 8 + 1, "big") for n in (r, s)))
    if der != b"\x30" + bytes([len(body)]) + body or not (0 < r < EN and 0 < s < EN): return False
    w, e = pow(s, -1, EN), int.from_bytes(hashlib.sha256(message).digest(), "big")
    total = ec_add(times(e * w % EN, EG, ec_add, None), times(r * w % EN, (x, y), ec_add, None))
    return total is not None and total[0] % EN == r
