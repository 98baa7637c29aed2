"""TLS sessions with a server that has an RSA key. Usage: server_key.py FOLDER.

Writes server.key (PKCS#8), server-pkcs1.key, other.key and keys.log (RFC 9850) to FOLDER. Prints the client's port of
each session by its name, as JSON.
"""

import json
import socket
import ssl
import subprocess
import sys
import threading

LIMIT_S = 30
NO_EXTENDED_MASTER_SECRET = 1  # SSL_OP_NO_EXTENDED_MASTER_SECRET of OpenSSL 3
SESSIONS = {
    "gcm128": "AES128-GCM-SHA256",
    "gcm256": "AES256-GCM-SHA384",
    "plain128": "AES128-GCM-SHA256",
    "plain256": "AES256-GCM-SHA384",
    "client": "AES128-GCM-SHA256",
    "ecdhe": "ECDHE-RSA-AES128-GCM-SHA256",
    "cbc": "AES128-SHA",
    "tls13": None,
    "late": "AES128-GCM-SHA256",
}


def run(*command):
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def make_keys(folder: str):
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/server.key", "-out",
        f"{folder}/server.pem", "-subj", "/CN=shop.example", "-days", "2")
    run("openssl", "rsa", "-in", f"{folder}/server.key", "-traditional", "-out", f"{folder}/server-pkcs1.key")
    run("openssl", "genrsa", "-out", f"{folder}/other.key", "2048")


def listen(folder: str, asks_certificate: bool) -> int:
    """Starts a server; answers its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/server.pem", f"{folder}/server.key")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.options |= ssl.OP_NO_TICKET
    if asks_certificate:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(f"{folder}/server.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, context), daemon=True).start()
    return listener.getsockname()[1]


def serve(listener: socket.socket, context: ssl.SSLContext):
    while True:
        connection, _ = listener.accept()
        connection.settimeout(LIMIT_S)
        try:
            with context.wrap_socket(connection, server_side=True) as tls:
                while tls.recv(1000):
                    tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
                tls.unwrap()
        except (ssl.SSLError, OSError):
            pass


def visit(port: int, context: ssl.SSLContext, session=None):
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        own = connection.getsockname()[1]
        with context.wrap_socket(connection, session=session) as tls:
            tls.sendall(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")
            tls.recv(1000)
            answer = own, tls.session, tls.session_reused
            tls.unwrap()
            return answer


def main():
    folder = sys.argv[1]
    make_keys(folder)
    port, asking = listen(folder, False), listen(folder, True)
    ports = {}
    for name, suite in SESSIONS.items():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.keylog_filename = f"{folder}/keys.log"
        if suite:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(f"{suite}:@SECLEVEL=0")
        if name.startswith("plain"):
            context.options |= NO_EXTENDED_MASTER_SECRET
        if name == "client":
            context.load_cert_chain(f"{folder}/server.pem", f"{folder}/server.key")
        ports[name], session, _ = visit(asking if name == "client" else port, context)
        if name == "gcm128":
            ports["resumed"], _, is_resumed = visit(port, context, session)
            assert is_resumed
    print(json.dumps(ports))


main()
