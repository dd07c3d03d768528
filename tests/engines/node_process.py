# SPDX-License-Identifier: Apache-2.0
"""Processes with an engine's own classes, which answer requests of a test: node.py of lmcache and sglang."""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile

import terrace_harness as harness


def package_path():
    """Where the Python package is built."""
    return str(pathlib.Path(harness.build_directory()) / "bindings/python")


def content(name, size):
    return random.Random(name).randbytes(size)


class NodeServer:
    """node.py --serve: has the engine imported, and forks for each node."""

    def __init__(self, python, node, **environment):
        self._folder = tempfile.TemporaryDirectory(prefix="terrace-node-")
        self.path = os.path.join(self._folder.name, "socket")
        self.process = subprocess.Popen([python, "-B", node, "--serve", self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "PYTHONPATH": package_path(), **environment})
        for line in self.process.stdout:
            if line == "listening\n":
                return
        raise AssertionError(f"{node} --serve ended with {self.process.wait()}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self._folder.cleanup()


class Node:
    """One that was forked. `ready` is its first answer."""

    def __init__(self, test, t, server, *arguments):
        self._folder = tempfile.TemporaryDirectory(prefix="terrace-node-")
        self._errors = pathlib.Path(self._folder.name) / "errors"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(server.path)
        self._in, self._out = self._socket.makefile("r"), self._socket.makefile("w")
        test.addCleanup(self.close)
        self._write({"arguments": list(map(str, arguments)), "errors": str(self._errors), "environment": {"TERRACE_SOCKET": str(t.socket)}})
        self.pid = int(self._in.readline())
        self.ready = self.answer()

    def errors(self):
        return self._errors.read_text(errors="replace")

    def answer(self):
        line = self._in.readline()
        if not line:
            raise AssertionError(f"the node ended:\n{self.errors()[-4000:]}")
        return json.loads(line)

    def send(self, *request):
        self._write(request)

    def ask(self, *request):
        self._write(request)
        return self.answer()

    def kill(self):
        """SIGKILL; on return it has nothing open."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        while self._in.read(1 << 16):
            pass

    def close(self):
        for stream in (self._out, self._in, self._socket):
            try:
                stream.close()
            except OSError:
                pass  # it was killed with a request under way
        self._folder.cleanup()

    def _write(self, request):
        print(json.dumps(request), file=self._out, flush=True)


class Started(Node):
    """One that is started by another program, with stdin and stdout for requests and answers."""

    def __init__(self, test, t, command):  # pylint: disable=super-init-not-called
        self._folder = tempfile.TemporaryDirectory(prefix="terrace-node-")
        self._errors = pathlib.Path(self._folder.name) / "errors"
        with self._errors.open("w") as errors:
            self.process = t.popen(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env={"PYTHONPATH": package_path()})
        self._in, self._out, self.pid = self.process.stdout, self.process.stdin, self.process.pid
        test.addCleanup(self.close)
        self.ready = self.answer()

    def close(self):
        self.process.kill()
        self.process.wait()
        self._in.close()
        self._out.close()
        self._folder.cleanup()
