# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments while several clients work, again and again, on one store."""

import contextlib
import random
import time

from checks import check_all, check_live
from scenarios import prepare, service
from workload import WORKLOADS, Clients


# A pause at one of these makes it likely that a kill lands between two steps that are otherwise microseconds apart.
SLOW_POINTS = ("carve_after_reserve", "journal_before_append", "journal_after_sync", "reply_before_send",
               "fence_after_truncate", "scrub_before_unlink", "resize_after_apply", "rebind_during_copy",
               "move_after_copy", "fold_before_commit", "fold_after_commit")


def soak(programs, seconds, seed, report):
    """Kills and restarts the daemon for `seconds`; every third restart is killed again while it recovers. Returns
    (kills, acknowledged operations)."""
    chance = random.Random(seed)
    kills = 0
    with service(programs, "soak") as harness:
        journal = prepare(harness, programs)
        with contextlib.closing(Clients(harness, programs.lease_load, seed, WORKLOADS["all"])) as clients:
            clients.start()
            end = time.monotonic() + seconds
            spoken = time.monotonic()
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.05, 1.5))
                clients.check_running()
                harness.kill()
                kills += 1
                if chance.random() < 0.34:
                    harness.start(wait=False)
                    time.sleep(chance.uniform(0.0, 0.15))
                    harness.kill()
                    kills += 1
                slow = chance.choice(SLOW_POINTS) if chance.random() < 0.5 else ""
                harness.start(failpoints=slow and f"{slow}=delay:10")
                check_live(harness)
                if time.monotonic() - spoken > 5:
                    spoken = time.monotonic()
                    report(f"soak: {kills} kills, {clients.acknowledged()} operations acknowledged")
            clients.wait_going_on(1)
            journal.merge(clients.stop())
        check_all(harness, journal, programs.stubborn_holder)
        return kills, journal.acknowledged
