# SPDX-License-Identifier: Apache-2.0
"""A KV space of two hosts that are two guests over the same soft-reserved memory: in each, processes on the dax device over it
put, read, read in place and erase blocks (tests/support/kv_soak). They are killed at random and stopped for a while, and guest 1
loses its power while it puts: its QEMU is killed, and started again. Every word that is read is compared. The space, and beside
it the ledger of what was begun and erased, are all that passes between the guests.

Then once more with torn blocks that guest 1 puts on purpose: both guests must end with that.

    kv_space_test.py [--memory coherent|noncoherent] [unittest arguments]
    TERRACE_QEMU_PATIENCE=10 TERRACE_QEMU_ARGUMENTS="seconds=3000 stop=60000 cuts=5" scripts/dev qemu 'kv-space-*'
"""

import os
import random
import sys
import unittest

import guestlib
import kv_soak_runs as soak
import terrace_harness as harness
from guestlib import MIB, Exchange, dax_devices

ENOUGH = {"reads": 20_000, "kills": 12, "stops": 2}
SPACE_BYTES = 16 * MIB
PATIENCE_S = 400
memory = "coherent"


def asked_for():
    return dict(word.split("=", 1) for word in os.environ.get("TERRACE_QEMU_ARGUMENTS", "").split())


@unittest.skipUnless(guestlib.in_guest(), "is for guests")
class KvSpaceTest(unittest.TestCase):
    def setUp(self):
        self.mine, self.exchange = guestlib.host(), Exchange()
        options = asked_for()
        self.cuts = int(options.pop("cuts", 1))
        device = next(device for device in dax_devices(dynamic=True).values() if device.size and device.enabled)
        self.assertEqual(device.mode, "devdax")
        self.options = {"file": f"/dev/{device.name}", "ledger": f"/dev/{device.name}", "bytes": SPACE_BYTES,
                        "ledger_offset": SPACE_BYTES, "hosts": 2, "host": self.mine, "workers": 3, "stop": 1000,
                        "limit_s": PATIENCE_S + int(options.get("seconds", 0)) + 150 * self.cuts, "noncoherent": memory == "noncoherent",
                        "seed": self.mine + 1 + 10 * guestlib.cuts(), **options}

    def test_killed_stopped_and_without_power(self):
        if self.mine == 1 and guestlib.cuts() < self.cuts:
            self.work_until_the_power_is_cut()
        running = soak.Soak(**self.options, **ENOUGH, run=1, restarted=guestlib.cuts() > 0)
        told = soak.check(self, running.finish(), **ENOUGH)
        self.assertEqual(told["memory"], memory)
        self.exchange.put(f"told-{self.mine}", told)
        theirs = self.exchange.get(f"told-{1 - self.mine}", PATIENCE_S)
        self.assertEqual((theirs["wrong"], theirs["memory"]), (0, memory))
        self.planted()

    def work_until_the_power_is_cut(self):
        running = soak.Soak(**{**self.options, "limit_s": 10**6, "seconds": 10**6}, run=1, restarted=guestlib.cuts() > 0)
        running.await_work(reads=2000, puts=200, timeout=PATIENCE_S)
        guestlib.ask_for_power_cut(after_s=random.uniform(0, 3))

    def planted(self):
        options = {**self.options, "run": 2, "reads": 10**9, "plant": "torn" if self.mine == 1 else "none"}
        code, told = soak.Soak(**options).finish()
        self.assertEqual(code, 1, told)
        self.assertIn("torn", told["why"])


if __name__ == "__main__":
    if "--memory" in sys.argv:
        at = sys.argv.index("--memory")
        memory = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    harness.main()
