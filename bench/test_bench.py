"""Tests of the benchmark's assumptions about its tools: `python3 -B -m unittest discover bench`."""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
import tomllib
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))

from cases import AIMS, BESIDE, Aim, CLUSTER_NAMES, NAMES, WITHOUT_AIM
from children import BenchError
from cluster_cases import rank
from cluster_groups import GROUPS
from cluster_growth import plot
from cluster_load import Transfer, complete
from cluster_net import Shape, node_config, obstacle, settled, changes_between
from cluster_stream import HEAD, PERIOD, content
from configs import (
    ECHO_LISTENERS,
    LARGE_BODIES,
    LISTENERS,
    PASSED_THROUGH,
    PASSTHROUGH_LISTENERS,
    SMALL_BODIES,
    Material,
    Ports,
    Tuning,
    backend_config,
    evergate_config,
    haproxy_config,
    nginx_config,
)
from load import Target, parse_echo, parse_fetch, parse_h2load, parse_s_time, parse_wrk, percentile, read_latencies
from measure import Row, rows_of
from own_network import CONGESTION_CONTROL, MACHINES, obstacle as network_obstacle, own_network
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

    def test_latencies_count_while_all_connections_are_there(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.write_text("1000\t200\t9\n1100\t200\t7\n1150\t502\t8\n1200\t200\t5\n1300\t200\t4\n")
            self.assertEqual(read_latencies(log, 100), (5, 7))

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


    def test_echoes_count_with_their_payload(self) -> None:
        done = parse_echo('{"echoes": 3000, "seconds": 1.5}', 125)
        self.assertEqual((done.operations, done.body_bytes, done.seconds), (3000, 375_000, 1.5))
        self.assertRaises(BenchError, parse_echo, '{"echoes": 0, "seconds": 1.5}', 125)

    def test_fetched_connections_count_with_their_bodies(self) -> None:
        done = parse_fetch('{"connections": 300, "seconds": 1.5}', 1024)
        self.assertEqual((done.operations, done.body_bytes, done.seconds), (300, 307_200, 1.5))
        self.assertRaises(BenchError, parse_fetch, '{"connections": 0, "seconds": 1.5}', 1024)

    def test_a_name_replaces_the_address_in_urls(self) -> None:
        self.assertEqual(Target(1, "/1k").url, "https://127.0.0.1:1/1k")
        self.assertEqual(Target(1, "/1k", name=PASSED_THROUGH).url, "https://bench.example:1/1k")


class Configurations(unittest.TestCase):
    def test_listeners_lead_to_their_own_backends(self) -> None:
        material = Material(Path("/f"), 1001, 1002, echo_http=1003, echo_tcp=1004)
        for listeners, backends in ((LISTENERS, {1001}), (ECHO_LISTENERS, {1003, 1004})):
            ports = Ports({name: 2000 + index for index, name in enumerate(listeners)})
            config = tomllib.loads(evergate_config(material, ports))
            self.assertEqual([listener["name"] for listener in config["listeners"]], list(listeners))
            pools = {pool["name"]: pool["servers"][0]["address"] for pool in config["pools"]}
            found = {int(pools[listener["pool"]].split(":")[1]) for listener in config["listeners"]}
            self.assertEqual(found, backends)
            for text in (
                nginx_config(material, ports, SMALL_BODIES),
                haproxy_config(material, ports, SMALL_BODIES),
            ):
                for port in (*ports.by_listener.values(), *backends):
                    self.assertIn(f":{port}", text)


    def test_passed_through_connections_are_routed_by_name_only(self) -> None:
        material = Material(Path("/f"), 1001, 1002, tls=1005)
        ports = Ports({name: 2000 + index for index, name in enumerate(PASSTHROUGH_LISTENERS)})
        config = tomllib.loads(evergate_config(material, ports))
        (listener,), (rule,), (pool,) = config["listeners"], config["rules"], config["pools"]
        self.assertEqual((listener["protocol"], listener.get("pool")), ("passthrough", None))
        self.assertEqual((rule["listeners"], rule["route"]), ([listener["name"]], pool["name"]))
        self.assertEqual(pool["servers"][0]["address"], "127.0.0.1:1005")
        for text in (rule["when"], nginx_config(material, ports, SMALL_BODIES)):
            self.assertIn(PASSED_THROUGH, text)
        self.assertIn("listen 127.0.0.1:1005 ssl", backend_config(material))
        self.assertNotIn(" ssl ", backend_config(Material(Path("/f"), 1001, 1002)))

    def test_only_the_forced_contender_always_splices(self) -> None:
        material = Material(Path("/f"), 1001, 1002, tls=1005)
        for listeners in (LISTENERS, PASSTHROUGH_LISTENERS):
            ports = Ports({name: 2000 + index for index, name in enumerate(listeners)})
            for tuning, forced in ((LARGE_BODIES, False), (Tuning(True, force_splice=True), True)):
                self.assertEqual("option splice-response" in haproxy_config(material, ports, tuning), forced)


class Handshakes(unittest.TestCase):
    def test_server_hello_shows_whether_the_session_was_resumed(self) -> None:
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
        self.assertEqual(set(AIMS) | set(WITHOUT_AIM), set(NAMES) | set(BESIDE))
        self.assertIn("MISSED", table([Row("full_rsa", "us", 2.0, "nginx", 2.0)]))


def status(node: int, owned: int, **buckets: int) -> dict[str, Any]:
    """A node of a cluster of two as the admin API shows it."""
    rest = {"syncing": 0, "without_backup": 0, "recovering": 0, "backup": 1024 - owned, "catching_up": 0, "unowned": 0}
    names = ("views", "fenced", "state_dropped", "failovers", "handoffs", "channels_lost", "connections_lost")
    return {
        "node": node,
        "phase": "active",
        "view": {"epoch": 3, "members": [1, 2]},
        "buckets": {"owned": owned, **rest, **buckets},
        "counts": dict.fromkeys(names, 0),
    }


class Clusters(unittest.TestCase):
    def test_every_cluster_row_belongs_to_one_group(self) -> None:
        self.assertEqual([name for group in GROUPS for name in group.rows], list(CLUSTER_NAMES))

    def test_obstacles_to_clusters_are_named(self) -> None:
        self.assertIsNone(obstacle(True, "6.8.0-31-generic"))
        self.assertIsNone(obstacle(True, "7.0"))
        for root, release in ((False, "6.18"), (True, "6.1.0-13-amd64"), (True, "odd")):
            self.assertIn("needs", obstacle(root, release) or "")

    def test_connections_have_a_congestion_control_of_their_own(self) -> None:
        self.assertIsNone(network_obstacle("cubic", True, "reno cubic\n"))
        self.assertIn("root", network_obstacle("cubic", False, "reno cubic\n") or "")
        self.assertIn("only reno", network_obstacle("cubic", True, "reno\n") or "")
        machines = os.readlink("/proc/self/ns/net"), CONGESTION_CONTROL.read_text()
        with own_network("reno") as reason:
            found = os.readlink("/proc/self/ns/net"), CONGESTION_CONTROL.read_text()
        self.assertEqual((machines[0] != found[0], found[1].strip() == "reno"), (reason is None,) * 2)
        with own_network(MACHINES) as reason:
            self.assertEqual((os.readlink("/proc/self/ns/net"), reason), (machines[0], None))
        self.assertEqual((os.readlink("/proc/self/ns/net"), CONGESTION_CONTROL.read_text()), machines)

    def test_on_and_off_differ_in_the_cluster_only(self) -> None:
        material = Material(Path("/f"), 1, 2, "10.0.0.1")
        on, off = (tomllib.loads(node_config(material, Shape(2, flag, 1), 2)) for flag in (True, False))
        self.assertEqual([node["number"] for node in on["cluster"]["nodes"]], [1, 2])
        self.assertEqual((on["cluster"]["node"], on["cluster"]["weight"], on["cluster"]["backups"]), (2, 0, 1))
        del on["cluster"]
        self.assertEqual(on, off)

    def test_a_cluster_is_settled_when_every_bucket_has_its_owner_and_its_copy(self) -> None:
        one_owner, both = Shape(2, owners=1), Shape(2)
        self.assertTrue(settled([status(1, 1024), status(2, 0)], one_owner))
        self.assertTrue(settled([status(1, 512), status(2, 512)], both))
        for found in (
            [status(1, 1000), status(2, 24)],
            [status(1, 1024, without_backup=1), status(2, 0)],
            [status(1, 1024, syncing=1), status(2, 0)],
            [status(1, 1024, recovering=1), status(2, 0)],
            [status(1, 1024), status(2, 0) | {"phase": "fenced"}],
            [status(1, 1024), status(2, 0) | {"view": None}],
            [status(1, 1024), status(2, 0) | {"view": {"epoch": 2, "members": [1, 2]}}],
        ):
            self.assertFalse(settled(found, one_owner), found)
        self.assertFalse(settled([status(1, 1000), status(2, 24)], both))

    def test_changed_view_under_a_load_is_detected(self) -> None:
        before = [status(1, 1024), status(2, 0)]
        self.assertIsNone(changes_between(before, before))
        after = [status(1, 1024), status(2, 0)]
        after[1]["counts"]["views"] = 1
        self.assertEqual(changes_between(before, after), "node 2: views went from 0 to 1")

    def test_a_rank_is_a_value_that_was_measured(self) -> None:
        self.assertEqual(rank([float(value) for value in range(200, 0, -1)], 0.99), 198)
        self.assertEqual((rank([7.0], 0.99), rank([1.0, 2.0], 0.5)), (7, 1))
        self.assertRaises(BenchError, rank, [], 0.99)

    def test_a_transfer_knows_its_longest_gap_and_every_byte(self) -> None:
        pattern = content()
        transfer = Transfer(cast(ssl.SSLSocket, None), pattern, 0.0)
        transfer.take(HEAD[:10], 1.0)
        transfer.take(HEAD[10:] + pattern[:5], 1.1)
        transfer.mark(2.0)
        transfer.take(pattern[5:70_000], 2.25)
        transfer.take(pattern[70_000:PERIOD], 2.3)
        transfer.take(pattern[:3], 2.4)
        self.assertEqual((transfer.position, transfer.gap_s(2.5)), (PERIOD + 3, 0.25))
        self.assertEqual(transfer.gap_s(9.4), 7.0)
        self.assertRaises(ConnectionError, transfer.take, pattern[4:50], 9.5)

    def test_a_response_is_complete_with_its_last_byte(self) -> None:
        whole = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\n\r\nabc"
        self.assertTrue(complete(whole))
        self.assertFalse(any(complete(whole[:length]) for length in range(len(whole))))

    def test_a_figure_has_a_point_for_each_size(self) -> None:
        figure = plot({2: 400.0, 3: 410.0, 7: 500.0})
        self.assertEqual(xml.etree.ElementTree.fromstring(figure).tag, "{http://www.w3.org/2000/svg}svg")
        self.assertEqual(figure.count("<circle"), 3)

    def test_a_figure_without_a_peer_has_an_aim_too(self) -> None:
        row = Row("cluster_latency_us", "us added", 250.0)
        self.assertEqual((row.as_json()["peer"], row.as_json()["ratio"]), (None, None))
        self.assertIn("MISSED", table([row]))
        self.assertEqual(verdict(Aim(value=250), [row]), (True, "<= 250"))

    def test_an_aim_can_be_a_least_ratio(self) -> None:
        rows = [Row("cluster_bulk", "GB/CPU s", 0.95, "off", 1.0)]
        self.assertEqual(verdict(Aim(ratio_min=0.95), rows), (True, ">= 0.95x"))
        self.assertFalse(verdict(Aim(ratio_min=0.96), rows)[0])


class Rules(unittest.TestCase):
    def test_probes_of_a_rule_meet_a_prefix_rule(self) -> None:
        for probe in probes():
            if probe.rule is not None:
                self.assertEqual(when(probe.rule), f'path.path_prefix("/svc/{probe.rule}")')
        self.assertTrue(any(probe.is_matched_by(SMALL) for probe in probes()))
        self.assertEqual(sum(probe.is_matched_by(LARGE) for probe in probes()), len(probes()) // 2)


if __name__ == "__main__":
    unittest.main()
