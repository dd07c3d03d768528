# SPDX-License-Identifier: Apache-2.0
"""nginx: files, gzip and a proxy between two of its servers, several requests at once, over a reload."""

import http.client
import os
import random
import signal
import socket
import threading
import time

from devlib.apps.registry import App
from devlib.apps.side import Side, digest

THREADS = 4
CONFIGURATION = """
daemon off; {user} worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; default_type text/plain;
  gzip on; gzip_types *; gzip_comp_level 5; gzip_buffers 64 16k; output_buffers 4 256k; sendfile off;
  proxy_buffers 64 32k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k;
  server {{ listen unix:{folder}/front.sock; location / {{ proxy_pass http://unix:{folder}/back.sock:/; }} }}
  server {{ listen unix:{folder}/back.sock; root {folder}/files; }}
}}
"""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def _fetch(path, name: str, gzip: bool) -> str:
    connection = _Connection(path)
    try:
        connection.request("GET", f"/{name}", headers={"Accept-Encoding": "gzip"} if gzip else {})
        answer = connection.getresponse()
        body = answer.read()
        return f"{answer.status} {answer.getheader('Content-Encoding')} {len(body)} {digest(body)}"
    finally:
        connection.close()


def _files(side: Side) -> list:
    chance = random.Random(4)
    (side.folder / "files").mkdir()
    names = []
    for at in range(24):
        words = [b"%d" % chance.randrange(5000) for _ in range(chance.randrange(10, 120000))]
        (side.folder / "files" / f"f{at}").write_bytes(b" ".join(words))
        os.utime(side.folder / "files" / f"f{at}", (1_600_000_000, 1_600_000_000))
        names.append(f"f{at}")
    return [*names, "none"]


def _nginx(side: Side) -> dict:
    names = _files(side)
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = side.script("nginx.conf", CONFIGURATION.format(folder=side.folder, user=user))
    front = side.folder / "front.sock"
    server = side.start("nginx", "-p", side.folder, "-c", configuration)
    side.wait_for(lambda: _fetch(front, "f0", False), server, "an answer of nginx")
    results, rounds = {}, 3 if side.quick else 25

    def load(part):
        for turn in range(rounds):
            for name in names:
                key = f"{name}{' gzip' if (turn + part) % 2 else ''}"
                got = _fetch(front, name, bool((turn + part) % 2))
                if results.setdefault(key, got) != got:
                    results[key] = f"changed between two requests: {results[key]}, {got}"

    with side.clock():
        threads = [threading.Thread(target=load, args=(part,)) for part in range(THREADS)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        os.kill(int((side.folder / "nginx.pid").read_text()), signal.SIGHUP)  # new workers while requests are under way
        for thread in threads:
            thread.join()
    side.stop(server, signal.SIGTERM)
    return results


APPS = [App("nginx", "files, gzip and proxying, reload under load", _nginx, programs={"nginx": "nginx-light"},
            ddr="4M")]
