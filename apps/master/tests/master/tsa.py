"""Time-stamp authority for tests: answers by `openssl ts -reply` in the current folder, or refuses.

Usage: tsa.py grant|refuse; prints its port.
"""

import http.server
import subprocess
import sys


class Authority(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        query = self.rfile.read(int(self.headers["Content-Length"]))
        with open("query.tsq", "wb") as file:
            file.write(query if sys.argv[1] == "grant" else query[:20])
        with open("serial", "w") as file:
            file.write("01\n")
        command = ["openssl", "ts", "-reply", "-queryfile", "query.tsq", "-config", "tsa.cnf", "-section", "tsa_config"]
        command += ["-signer", "tsa.pem", "-inkey", "tsa.key", "-out", "reply.tsr"]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        with open("reply.tsr", "rb") as file:
            reply = file.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/timestamp-reply")
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Authority)
print(server.server_port, flush=True)
server.serve_forever()
