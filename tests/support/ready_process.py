# SPDX-License-Identifier: Apache-2.0
"""A sanitized program that has started already: run() has it fork, and the child does what a program that was started with
these arguments does from its main() on. A start costs 30 ms of processor time and more under ASan, a fork a few.

    ready = ReadyProcess("build/dev/cli/terrace", "build/dev/tests/support/libterrace_ready_process.so", os.environ)
    code, out, err = ready.run(["terrace", "--version"], dict(os.environ), timeout=60)
    ready.close()

The library is tests/support/ready_process. What a program has from before its main() is that of the first start: the
options of sanitizers and of the C library, name spaces, limits, credentials. Thread-safe.
"""

import os
import signal
import socket
import struct
import subprocess


class ReadyProcess:
    def __init__(self, program, library, environment):
        """Starts `program` with `environment`. OSError when it cannot be started."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            # ASan wants to be the first library; this one allocates nothing before ASan has begun.
            options = ":".join(filter(None, (environment.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
            self._process = subprocess.Popen(
                [program], stdin=subprocess.DEVNULL, pass_fds=[its.fileno()],
                env={**environment, "LD_PRELOAD": str(library), "ASAN_OPTIONS": options,
                     "TERRACE_READY_PROCESS": str(its.fileno())})
        self._socket = ours

    def run(self, arguments, environment, timeout, stdin=None):
        """The exit status as subprocess has it (-N for signal N), stdout and stderr of the program with `arguments`, the
        first of them its name. subprocess.TimeoutExpired when it had to be killed; ValueError when the request is too long."""
        words = [str(len(arguments)), oct(_umask())[2:], os.getcwd(), *map(str, arguments),
                 *(f"{name}={value}" for name, value in environment.items())]
        request = b"".join(os.fsencode(word) + b"\0" for word in words)
        with (open(os.memfd_create("stdout"), "w+b") as out, open(os.memfd_create("stderr"), "w+b") as err,
              open(os.memfd_create("stdin") if stdin is not None else os.open(os.devnull, os.O_RDONLY), "rb") as given):
            if stdin is not None:
                os.pwrite(given.fileno(), stdin.encode(), 0)
            status = self._ask(request, [given.fileno(), out.fileno(), err.fileno()], arguments, timeout)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"))
        return (os.waitstatus_to_exitcode(status), *texts)

    def _ask(self, request, descriptors, arguments, timeout):
        answers, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answers:
            with its:
                try:
                    socket.send_fds(self._socket, [request], [*descriptors, its.fileno()])
                except OSError as error:
                    raise ValueError(f"{len(request)} bytes of arguments and environment: {error}") from None
            answers.settimeout(timeout)
            pid = self._answer(answers)
            try:
                return self._answer(answers)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)  # ours until its status was told
                answers.settimeout(None)
                self._answer(answers)
                raise subprocess.TimeoutExpired(arguments, timeout) from None

    def _answer(self, answers):
        answer = answers.recv(4)
        if not answer:
            raise OSError(f"the ready process ended with {self._process.poll()}")
        return struct.unpack("i", answer)[0]

    def close(self):
        self._socket.close()
        self._process.wait()


def _umask():
    """This process's umask, without setting it: other threads may be making files."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
