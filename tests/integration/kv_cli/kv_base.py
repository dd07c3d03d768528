# SPDX-License-Identifier: Apache-2.0
"""What the tests of `terrace kv` share: spaces in a file and in a lease, servers, a client that sends any bytes."""

import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from terrace_harness import Harness  # noqa: E402

MIB = 1 << 20
FAILED, USAGE, NOT_FOUND, CAPACITY, UNAVAILABLE, DENIED, CONFLICT, MISMATCH = range(1, 9)


class Closed(Exception):
    """The server ended the connection."""


class RespError(Exception):
    """A reply that is an error."""


class Resp:
    """A client of the redis protocol, which can also send what is none."""

    def __init__(self, address, timeout=60):
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)), timeout)
        self.buffer = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    @staticmethod
    def encode(*words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def send(self, data):
        self.socket.sendall(data)

    def _fill(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise Closed
        self.buffer += data

    def _line(self):
        while (end := self.buffer.find(b"\r\n")) < 0:
            self._fill()
        line = bytes(self.buffer[:end])
        del self.buffer[:end + 2]
        return line

    def reply(self):
        """bytes, int, None, list, dict or RespError; simple strings are str, and so is text of a format (verbatim)."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return RespError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"%":
            return {self.reply(): self.reply() for _ in range(int(rest))}
        if kind == b"_":
            return None
        assert kind in (b"$", b"="), line
        length = int(rest)
        if length < 0:
            return None
        while len(self.buffer) < length + 2:
            self._fill()
        value = bytes(self.buffer[:length])
        assert self.buffer[length:length + 2] == b"\r\n"
        del self.buffer[:length + 2]
        return value.decode() if kind == b"=" else value

    def ask(self, *words):
        self.send(self.encode(*words))
        answer = self.reply()
        if isinstance(answer, RespError):
            raise answer
        return answer

    def error(self, *words):
        """The text of the error that the request must give."""
        self.send(self.encode(*words))
        answer = self.reply()
        assert isinstance(answer, RespError), answer
        return str(answer)

    def closed(self):
        """True once the server has ended the connection; what it said before is lost."""
        try:
            while True:
                self._fill()
        except (Closed, ConnectionError):
            return True


class Serve:
    """A `terrace kv serve` that listens."""

    def __init__(self, test, where, *arguments, listen="127.0.0.1:0"):
        self.process = test.t.popen(test.t.terrace, "kv", "serve", where, "--listen", listen, *arguments,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self._close)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise AssertionError(f"no server: {line}{self.process.stderr.read()}")
        self.address = line.strip().removeprefix("listening on ")

    def client(self, **options):
        return Resp(self.address, **options)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def wait(self):
        """Its end by itself: exit code, and what it said on stderr."""
        return self.process.wait(60), self.process.stderr.read()

    def _close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class Spaces(unittest.TestCase):
    """One Harness a class; new_space() is in FileSpaces and LeaseSpaces."""

    @classmethod
    def setUpClass(cls):
        cls.t = Harness(name="kv", devices={"a": "128M"})
        cls.addClassCleanup(cls.t.close)
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-kv-", dir="/dev/shm"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.begin()

    def kv(self, *arguments, **options):
        return self.t.cli("kv", *arguments, **options)

    def error(self, *arguments, code, contains=None, stdin=None):
        """Expects a failure in both forms, with one exit code. Returns the error of --json."""
        error = self.kv(*arguments, check=code, stdin=stdin).json["error"]
        self.assertEqual(error["exit_code"], code)
        as_text = self.kv(*arguments, json=False, check=code, stdin=stdin)
        self.assertTrue(as_text.err.startswith("terrace: "), as_text.err)
        if contains:
            self.assertIn(contains, error["message"])
            self.assertIn(contains, as_text.err)
        return error

    def value(self, where, key, *arguments):
        """A block's bytes, by `kv get`."""
        file = self.folder / "value"
        self.kv("get", where, "--key", key, "--output", file, *arguments)
        return file.read_bytes()

    def keys(self, where, *arguments):
        return sorted(block["key"] for block in self.kv("list", where, *arguments).json["blocks"])


class FileSpaces(Spaces):
    made = 0

    @classmethod
    def begin(cls):
        pass

    def memory(self):
        """A path that is not there yet, and the words of `format` that make it."""
        FileSpaces.made += 1
        return str(self.folder / f"space{FileSpaces.made}"), ("--bytes", "32M")

    def new_space(self, *arguments):
        where, more = self.memory()
        self.kv("format", where, *more, *arguments)
        self.addCleanup(pathlib.Path(where).unlink, missing_ok=True)
        return where


class LeaseSpaces(Spaces):
    made = 0

    @classmethod
    def begin(cls):
        cls.t.start()
        cls.t.create_pool("p")

    def memory(self):
        LeaseSpaces.made += 1
        label = f"space{LeaseSpaces.made}"
        lease = self.t.grant("32M", "p", "--persistent", "--mode", "shared_coherent", "--label", label)
        self.addCleanup(self.t.cli, "lease", "release", lease["id"], check=False)
        return label, ()

    def new_space(self, *arguments):
        where, more = self.memory()
        self.kv("format", where, *more, *arguments)
        return where
