"""A program on a host: session_client (tests/integration/session), driven line by line."""

import queue
import subprocess
import threading

from fabric import harness


class Tenant:
    """ask() sends a command and returns its answer, notices gather in .notices."""

    def __init__(self, host):
        program = harness.find_binary("tests/integration/session/session_client", host.build_dir)
        self.process = host.popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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

    def ask(self, *words, timeout=60):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.answers.get(timeout=timeout)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
