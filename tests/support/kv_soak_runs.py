# SPDX-License-Identifier: Apache-2.0
"""kv_soak (tests/support/kv_soak): how it is started, and what its closing line must say. For one machine and for guests."""

import json
import subprocess
import threading

from terrace_harness import find_binary

PROGRAM = "tests/support/kv_soak/kv_soak"


class Soak:
    """One kv_soak. Options are the program's: limit_s=30 for --limit-s 30, join=True for --join."""

    def __init__(self, build_dir=None, **options):
        words = [find_binary(PROGRAM, build_dir) if build_dir else find_binary(PROGRAM), "--progress"]
        for name, value in options.items():
            words += [] if value is None or value is False else ["--" + name.replace("_", "-")] + ([] if value is True else [value])
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
        self._lines = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._grown:
                self._lines.append(line)
                self._grown.notify_all()
        with self._grown:
            self._lines.append("")
            self._grown.notify_all()

    def await_work(self, reads, puts, timeout):
        """Until its workers have done so much."""
        def done():
            if self._lines and self._lines[-1] == "":
                raise AssertionError(f"kv_soak ended early: {self.finish()}")
            told = json.loads(self._lines[-1]) if self._lines else {"reads": 0, "puts": 0}
            return told["reads"] >= reads and told["puts"] >= puts
        with self._grown:
            if not self._grown.wait_for(done, timeout):
                raise AssertionError(f"kv_soak did too little within {timeout} s: {self._lines[-1:]}")

    def finish(self):
        """(exit code, its closing line as a dict), when it ends by itself: it has a limit of its own."""
        code = self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        last = next((line for line in reversed(self._lines) if line), "{}")
        print("kv_soak:", last.strip(), flush=True)
        return code, json.loads(last)

    def kill(self):
        self.process.kill()  # its workers end with it
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


def check(test, ended, reads=1, kills=0, stops=0):
    """What a sound run must say of itself: nothing was wrong, and it did enough for that to mean something. Returns it."""
    code, told = ended
    test.assertEqual((code, told.get("wrong"), told.get("why")), (0, 0, ""))
    test.assertGreaterEqual(told["reads"], reads)
    test.assertGreaterEqual(told["kills"], kills)
    test.assertGreaterEqual(told["stops"], stops)
    test.assertGreater(told["in_place"], 0)
    test.assertGreater(told["puts"], 0)
    test.assertGreater(told["erased"], 0)
    if stops:
        test.assertGreater(told["reads_beside_stopped"], 0, "nobody read while one was stopped")
    return told
