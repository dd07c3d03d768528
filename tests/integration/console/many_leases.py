# SPDX-License-Identifier: Apache-2.0
"""A manager with 4 TiB and 10,000 leases, for a browser: the real console and the real answers of a small daemon, but for its
devices and leases, of which there are as many as nobody could grant here."""

import copy
import http.client
import http.server
import json
import threading
import urllib.parse

GRANULE = 2 << 20
PASSED_ON = ("Content-Type", "Content-Security-Policy", "Content-Encoding", "ETag", "Cache-Control")


class ManyLeases:
    def __init__(self, port, devices=8, device_bytes=512 << 30, leases=10_000):
        """`port`: of the daemon, which has one device and one lease at least."""
        self.daemon_port, self.devices, self.device_bytes, self.leases = port, devices, device_bytes, leases
        answered = {kind: self.ask(f"/api/v1/{kind}")[1] for kind in ("devices", "leases")}
        self.device = json.loads(answered["devices"])["devices"][0]
        self.lease = json.loads(answered["leases"])["leases"][0]
        self.made = [self.make_lease(number) for number in range(leases)]
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def ask(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon_port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def make_lease(self, number):
        """Of 2 to 200 MiB, with gaps in between, spread over all devices."""
        device, place = number % self.devices, number // self.devices
        share = self.device_bytes // (self.leases // self.devices + 1) // GRANULE * GRANULE
        return {"id": number + 1, "tenant": f"tenant-{number % 37}", "label": f"lease-{number}",
                "bytes": min(share, GRANULE * (1 + number * 7919 % 100)), "offset": place * share,
                "device": f"emu:d{device}", "phase": ("active", "revoking", "scrubbing")[number % 11 // 5]}

    def written(self, made):
        lease = copy.deepcopy(self.lease)
        extent = {**lease["extents"][0], "device": made["device"], "offset_bytes": made["offset"], "length_bytes": made["bytes"]}
        return {**lease, "id": made["id"], "tenant": made["tenant"], "label": made["label"], "bytes": made["bytes"],
                "phase": made["phase"], "extents": [extent]}

    def answer(self, path):
        """None: the daemon's."""
        where = urllib.parse.urlsplit(path)
        if where.path == "/api/v1/devices":
            return {"devices": [{**self.device, "serial": f"emu:d{one}", "capacity_bytes": self.device_bytes}
                                for one in range(self.devices)]}
        if where.path == "/api/v1/leases":
            asked = urllib.parse.parse_qs(where.query)
            after, limit = int(asked.get("after", ["0"])[0]), int(asked.get("limit", ["10000"])[0])
            return {"leases": [self.written(one) for one in self.made[after:after + limit]]}
        return None

    def handler(self):
        many = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                own = many.answer(self.path)
                if own is None:
                    answer, body = many.ask(self.path)
                    status, headers = answer.status, {name: answer.headers[name] for name in PASSED_ON if answer.headers[name]}
                else:
                    status, headers, body = 200, {"Content-Type": "application/json"}, json.dumps(own).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
