#!/usr/bin/env python3
"""Records handshakes between `openssl s_client` and `openssl s_server` for tests/sessions.rs.

Usage: record.py FOLDER

Each file of the folder is one connection: a line per piece that a side sent, `>` for the client and `<` for the
server, then the bytes in hexadecimal.
"""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def relay(listener, port, lines):
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", port))
    lock = threading.Lock()

    def pump(source, sink, mark):
        while True:
            try:
                piece = source.recv(65536)
                with lock:
                    if piece:
                        lines.append(f"{mark} {piece.hex()}")
                if not piece:
                    break
                sink.sendall(piece)
            except OSError:
                break
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threads = [threading.Thread(target=pump, args=ends) for ends in ((client, server, ">"), (server, client, "<"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def connect(folder, name, port, options):
    listener = socket.create_server(("127.0.0.1", 0))
    lines = []
    thread = threading.Thread(target=relay, args=(listener, port, lines))
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = ["openssl", "s_client", "-connect", address, "-servername", "a.test", *options]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.6)
    if client.poll() is None:
        client.stdin.write(b"Q\n")
        client.stdin.close()
    client.wait(10)
    thread.join()
    folder.joinpath(f"{name}.txt").write_text("\n".join(lines) + "\n")


def serve(work, options):
    port = free_port()
    command = ["openssl", "s_server", "-accept", str(port), "-cert", work / "c.pem", "-key", work / "k.pem", *options]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    return server, port


def main():
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9",
             "-subj", "/CN=a.test", "-keyout", work / "k.pem", "-out", work / "c.pem"],
            check=True, capture_output=True)
        session, early = str(work / "session"), work / "early"
        early.write_bytes(b"early data")
        refuse = ["-verify_return_error", "-verify", "1"]
        for server_options, connections in [
            (["-tls1_2", "-no_ticket"], [
                ("tls12_id_full", ["-no_ticket", "-sess_out", session]),
                ("tls12_id_resumed", ["-no_ticket", "-sess_in", session]),
            ]),
            (["-tls1_2"], [
                ("tls12_ticket_full", ["-sess_out", session]),
                ("tls12_ticket_resumed", ["-sess_in", session]),
                ("tls12_refused", refuse),
            ]),
            (["-tls1_2"], [("tls12_ticket_unknown", ["-sess_in", session])]),
            (["-tls1_3"], [
                ("tls13_full", ["-sess_out", session]),
                ("tls13_resumed", ["-sess_in", session]),
                ("tls13_refused", refuse),
                ("tls13_no_version", ["-tls1_2"]),
            ]),
            (["-tls1_3", "-groups", "P-256"], [
                ("tls13_retry_full", ["-groups", "X25519:P-256", "-sess_out", session]),
                ("tls13_retry_resumed", ["-groups", "X25519:P-256", "-sess_in", session]),
            ]),
            (["-tls1_3", "-early_data", "-max_early_data", "1000"], [
                ("tls13_early_full", ["-sess_out", session]),
                ("tls13_early_resumed", ["-sess_in", session, "-early_data", str(early)]),
            ]),
        ]:
            server, port = serve(work, server_options)
            for name, options in connections:
                connect(folder, name, port, options)
            server.terminate()
            server.wait()


main()
