"""What the benchmark believes about its tools: `python3 -B -m unittest discover bench`."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases import AIMS, NAMES, Aim
from children import BenchError
from load import parse_h2load, parse_s_time, parse_wrk, percentile
from measure import Row, rows_of
from report import table, verdict
from rulesets import LARGE, SMALL, probes, when
from witness import AES_128_GCM, HELLO_RETRY, TLS_1_3, X25519, Hello, Witness, parse_server_hello

H2LOAD = """
finished in 1.00s, 7263.00 req/s, 9.17MB/s
requests: 7263 total, 7327 started, 7263 done, {succeeded} succeeded, {failed} failed, 0 errored, 0 timeout
status codes: 7263 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 9.17MB (9615216) total, 1.87MB (1960000) headers (space savings 0.00%), 7.09MB ({data}) data
"""
WRK = """
  2 threads and 16 connections
  {errors}
  1203 requests in 2.00s, 1.50MB read
"""
S_TIME = "114 connections in 2 real seconds, {read} bytes read per connection"


def server_hello(resumed: bool, random: bytes = bytes(32)) -> bytes:
    extensions = bytes.fromhex("002b00020304") + bytes.fromhex("00330024001d0020") + bytes(32)
    extensions += bytes.fromhex("002900020000") if resumed else b""
    body = bytes.fromhex("0303") + random + bytes([32]) + bytes(32) + bytes.fromhex("130100")
    body += len(extensions).to_bytes(2, "big") + extensions
    message = b"\x02" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message


class Tools(unittest.TestCase):
    def test_h2load_counts_what_succeeded(self) -> None:
        done = parse_h2load(H2LOAD.format(succeeded=7263, failed=0, data=7263 * 1024), 1024)
        self.assertEqual((done.operations, done.body_bytes, done.seconds), (7263, 7263 * 1024, 1.0))

    def test_h2load_fails_on_failed_requests_and_short_bodies(self) -> None:
        for text in (
            H2LOAD.format(succeeded=7262, failed=1, data=7263 * 1024),
            H2LOAD.format(succeeded=7263, failed=0, data=7263 * 1023),
            "could not connect",
        ):
            self.assertRaises(BenchError, parse_h2load, text, 1024)

    def test_wrk_fails_on_socket_errors_and_statuses(self) -> None:
        self.assertEqual(parse_wrk(WRK.format(errors=""), 2.0, 1024).operations, 1203)
        for errors in ("Socket errors: connect 0, read 3, write 0, timeout 0", "Non-2xx or 3xx responses: 5"):
            self.assertRaises(BenchError, parse_wrk, WRK.format(errors=errors), 2.0, 1024)

    def test_s_time_fails_on_error_pages(self) -> None:
        self.assertEqual(parse_s_time(S_TIME.format(read=1259), 1024), 114)
        self.assertRaises(BenchError, parse_s_time, S_TIME.format(read=309), 1024)

    def test_percentile_is_the_nearest_rank(self) -> None:
        self.assertEqual(percentile(tuple(range(1, 101)), 0.99), 99)
        self.assertEqual(percentile((7,), 0.99), 7)
        self.assertRaises(BenchError, percentile, (), 0.99)


class Handshakes(unittest.TestCase):
    def test_a_server_hello_says_whether_the_session_was_resumed(self) -> None:
        for resumed in (False, True):
            expected = Hello(TLS_1_3, AES_128_GCM, X25519, resumed, False)
            self.assertEqual(parse_server_hello(server_hello(resumed)), expected)

    def test_a_partial_server_hello_is_not_read(self) -> None:
        whole = server_hello(True)
        self.assertTrue(all(parse_server_hello(whole[:length]) is None for length in range(len(whole))))

    def test_something_else_is_refused(self) -> None:
        self.assertRaises(ValueError, parse_server_hello, b"\x15\x03\x03\x00\x02\x02\x28")

    def test_a_load_that_is_not_what_its_case_claims_fails(self) -> None:
        full, resumed, retry = (
            parse_server_hello(server_hello(*arguments))
            for arguments in ((False,), (True,), (False, HELLO_RETRY))
        )
        assert full and resumed and retry
        witness = Witness(0)
        witness.hellos.update({full: 16, resumed: 400})
        self.assertEqual(witness.expect("x", True, 16), "16 full, 400 resumed")
        self.assertRaises(BenchError, witness.expect, "x", False, 16)
        witness.hellos[full] += 100
        self.assertRaises(BenchError, witness.expect, "x", True, 16)
        witness.hellos.clear()
        self.assertRaises(BenchError, witness.expect, "x", False, 16)
        witness.hellos.update({full: 16, retry: 1})
        self.assertRaises(BenchError, witness.expect, "x", False, 16)


class Results(unittest.TestCase):
    def test_rows_are_medians_against_each_peer(self) -> None:
        rows = rows_of("x", "us", {"evergate": [1.0, 9.0, 2.0], "nginx": [4.0, 4.0, 5.0], "haproxy": [8.0]})
        self.assertEqual(
            [(row.peer, row.ours, row.ratio) for row in rows], [("nginx", 2, 0.5), ("haproxy", 2, 0.25)]
        )

    def test_an_aim_is_met_against_the_better_peer_only(self) -> None:
        rows = [Row("x", "us", 2.0, "nginx", 4.0), Row("x", "us", 2.0, "haproxy", 8.0)]
        self.assertEqual(verdict(Aim(0.5), rows), (True, "<= 0.50x"))
        self.assertFalse(verdict(Aim(0.49), rows)[0])
        self.assertFalse(verdict(Aim(0.5, 1.9), rows)[0])

    def test_every_aim_belongs_to_a_case_and_shows_in_the_table(self) -> None:
        self.assertEqual(set(AIMS), set(NAMES))
        self.assertIn("MISSED", table([Row("full_rsa", "us", 2.0, "nginx", 2.0)]))


class Rules(unittest.TestCase):
    def test_probes_of_a_rule_meet_a_prefix_rule(self) -> None:
        for probe in probes():
            if probe.rule is not None:
                self.assertEqual(when(probe.rule), f'path.path_prefix("/svc/{probe.rule}")')
        self.assertTrue(any(probe.is_matched_by(SMALL) for probe in probes()))
        self.assertEqual(sum(probe.is_matched_by(LARGE) for probe in probes()), len(probes()) // 2)


if __name__ == "__main__":
    unittest.main()
