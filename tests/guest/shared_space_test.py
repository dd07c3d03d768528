# SPDX-License-Identifier: Apache-2.0
"""A tensor space of two hosts that are two guests over the same soft-reserved memory: in each a writer and readers on the
dax device over it, killed at random (tests/support/shared_space). Nothing passes between the guests but that memory;
they tell each other only at the end what they counted.

    shared_space_test.py [--memory coherent|noncoherent] [unittest arguments]
    TERRACE_QEMU_ARGUMENTS="fault=old" scripts/dev qemu shared-space-coherent    # other options of the program: must fail
"""

import os
import sys
import unittest

import guestlib
import shared_space_hosts as hosts
import terrace_harness as harness
from guestlib import Exchange, dax_devices

ENOUGH = {"kills": 60, "reads": 20_000, "news": 200}
LIMIT_S = 480
PATIENCE_S = 120
memory = "coherent"


def asked_for():
    return dict(word.split("=", 1) for word in os.environ.get("TERRACE_QEMU_ARGUMENTS", "").split())


@unittest.skipUnless(guestlib.in_guest(), "is for guests")
class SharedSpaceTest(unittest.TestCase):
    def test_killed_at_random(self):
        device = next(device for device in dax_devices(dynamic=True).values() if device.size and device.enabled)
        self.assertEqual(device.mode, "devdax")
        mine, other, exchange = guestlib.host(), 1 - guestlib.host(), Exchange()
        options = {"memory": memory, "limit_s": LIMIT_S, "seed": mine + 1, **ENOUGH, **asked_for()}
        process = hosts.start(f"/dev/{device.name}", mine, **options)
        code, told = hosts.finish(process)
        exchange.put(f"told-{mine}", {"code": code, "told": told})
        self.assertEqual(code, 0, told)
        theirs = exchange.get(f"told-{other}", PATIENCE_S)
        self.assertEqual((theirs["code"], theirs["told"]["host"]), (0, other))
        for counted in (told, theirs["told"]):
            hosts.check(self, counted, memory, **ENOUGH)


if __name__ == "__main__":
    if "--memory" in sys.argv:
        at = sys.argv.index("--memory")
        memory = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    harness.main()
