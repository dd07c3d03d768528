# SPDX-License-Identifier: Apache-2.0
"""A program with a session: session_client (tests/integration/session/session_client.cc), driven line by line."""

import queue
import subprocess
import threading

import terrace_harness as harness


class Tenant:
    """session_client as a process: ask() sends a command and returns its answer, notices gather in .notices."""

    def __init__(self, service, *arguments, **options):
        """`arguments`: a socket other than the service's, and the tenant to act for. `options` as for Popen: user=,
        group= and so on."""
        program = harness.find_binary("tests/integration/session/session_client", service.build_dir)
        self.process = service.popen(program, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                     **options)
        self.notices = []
        self.answers = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.first = self.answers.get(timeout=60)

    def _read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line.startswith("notice "):
                self.notices.append(line.removeprefix("notice "))
            else:
                self.answers.put(line.removeprefix("= "))

    def send(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def ask(self, *words, timeout=60):
        self.send(*words)
        return self.answers.get(timeout=timeout)

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        if not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.returncode

    def kill(self):
        """Ends it without a word to its terraced."""
        if self.process.poll() is None:
            self.process.kill()
        return self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
