# Client of one connection that requests, uploads and requests again. It may not open a second connection.
import http.client, random, ssl, sys, time
pem, address, requests = sys.argv[1], sys.argv[2], int(sys.argv[3])
pauses = random.Random(int(sys.argv[4]))
context = ssl.create_default_context(cafile=pem)
class Connection(http.client.HTTPSConnection):
    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname="shop.test")
connection = Connection(address, 9003, context=context, timeout=30)
connection.connect()
connection.auto_open = 0
body = bytes(((at * 0x9e3779b97f4a7c15) >> 56) & 255 for at in range(50000))
for number in range(requests):
    if pauses.random() < 0.05:
        time.sleep(pauses.random() * 0.04)
    if number % 10 == 9:
        connection.request("POST", "/take", body, {"Host": "shop.test"})
        wanted = "whole 50000"
    else:
        connection.request("GET", f"/n/{number}", headers={"Host": "shop.test"})
        wanted = str(number)
    said = connection.getresponse().read().decode()
    assert said == wanted, f"request {number}: {said[:100]!r}"
print("done", requests)
