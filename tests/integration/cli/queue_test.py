# SPDX-License-Identifier: Apache-2.0
"""queue list, queue cancel; who is let in before a large request that waits, and who is not.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/queue_test.py [TestClass[.test]]
"""

import signal
import time

from cli_base import CAPACITY, CONFLICT, FAILED, MIB, NOT_FOUND, S, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import wait_until


class Queues(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")
        self.waiting = []

    def tearDown(self):
        for process in self.waiting:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=30)
        wait_until(lambda: not self.queue(), 20, "the queue's end")
        super().tearDown()

    def wait(self, size, *arguments, patience="10m"):
        """`terrace lease grant --wait` in the background, once it is in the queue."""
        before = len(self.queue())
        process = self.t.popen(self.t.terrace, "lease", "grant", "--pool", "p", "--size", size, "--wait", patience,
                               *arguments, stdout=-1, stderr=-1, text=True)
        self.waiting.append(process)
        wait_until(lambda: len(self.queue()) > before, 20, "the grant in the queue")
        return process

    def queue(self, *arguments):
        return self.t.cli("queue", "list", *arguments).json["waiting"]

    def test_who_waits_is_listed_in_the_order_of_service(self):
        self.assertEqual(self.text("queue", "list"), "nobody waits\n")
        self.t.grant("128M", "p")
        self.wait("64M", "--tenant", "team-a", "--label", "weights")
        self.wait("8M", "--tenant", "team-a")
        self.wait("16M", "--tenant", "team-b", patience="30s")
        listed = self.queue()
        self.assertEqual([(one["tenant"], one["bytes"] // MIB, one["place"]) for one in listed],
                         [("team-a", 64, 1), ("team-b", 16, 2), ("team-a", 8, 3)])
        first = listed[0]
        self.assertEqual((first["pool"], first["label"], first["turn"], first["calls"]), ("p", "weights", False, 1))
        self.assertTrue(first["host"])
        self.assertGreater(first["waited_ns"], 0)
        self.assertGreater(first["ends_in_ns"], 500 * S)
        self.assertLess(listed[1]["ends_in_ns"], 30 * S)
        self.assertEqual([one["tenant"] for one in self.queue("--tenant", "team-b")], ["team-b"])
        self.assertEqual(len(self.queue("--pool", "p")), 3)
        self.error("queue", "list", "--pool", "nope", code=NOT_FOUND)
        rows = self.text("queue", "list").splitlines()
        self.assertEqual(rows[0].split(), ["ID", "POOL", "PLACE", "TENANT", "HOST", "LABEL", "SIZE", "WAITED", "ENDS",
                                           "TURN", "CALLS"])
        self.assertIn("64 MiB", rows[1])
        self.assertIn("next", rows[1])
        self.assertIn(" in 9.", rows[1])

    def test_a_large_request_does_not_block_small_ones(self):
        self.t.grant("120M", "p")
        rest = self.t.grant("8M", "p")
        large = self.wait("128M", "--tenant", "team-a")
        small = self.wait("8M", "--tenant", "team-b")
        self.t.cli("lease", "release", rest["id"])
        out, err = small.communicate(timeout=20)
        self.assertEqual(small.returncode, 0, err)
        self.assertIsNone(large.poll())
        self.assertEqual([one["tenant"] for one in self.queue()], ["team-a"])

    def test_room_is_kept_for_a_large_request_now_and_then(self):
        self.t.grant("120M", "p")
        self.wait("128M", "--tenant", "team-a", patience="60s")  # phases of 10 s
        small = self.t.grant("8M", "p")
        self.t.cli("lease", "release", small["id"])
        wait_until(lambda: self.queue()[0]["turn"], 20, "room to be kept")
        self.assertIn("room is kept", self.text("queue", "list"))
        self.error("lease", "grant", "--pool", "p", "--size", "8M", code=CAPACITY, contains="room is kept for the next")
        began = time.monotonic()
        late = self.wait("8M", "--tenant", "team-b")
        out, err = late.communicate(timeout=20)
        self.assertEqual(late.returncode, 0, err)
        self.assertLess(time.monotonic() - began, 15)

    def test_cancel(self):
        lease = self.t.grant("128M", "p")
        waiting = self.wait("64M", "--tenant", "team-a")
        request = self.queue()[0]["lease"]
        listed = self.t.cli("lease", "list", "--phase", "waiting").json["leases"]
        self.assertEqual([(one["id"], one["phase"]) for one in listed], [(request, "waiting")])
        self.assertIn("waiting", self.text("lease", "list", "--phase", "waiting"))
        self.error("queue", "cancel", 4711, code=NOT_FOUND, contains="terrace queue list")
        self.error("queue", "cancel", lease["id"], code=CONFLICT, contains=f"terrace lease revoke {lease['id']}")
        self.error("queue", "cancel", "weights", code=USAGE)
        self.error("queue", "cancel", code=USAGE)
        done = self.t.cli("queue", "cancel", request, "--reason", "maintenance").json
        self.assertEqual(done, {"cancelled": request})
        _, err = waiting.communicate(timeout=20)
        self.assertEqual(waiting.returncode, FAILED)
        self.assertIn("cancelled", err)
        self.assertRegex(err, rf"request {request} was taken out of the queue of pool p by uid \d+ \(.*\): maintenance")
        self.assertEqual(self.queue(), [])
        self.error("queue", "cancel", request, code=NOT_FOUND)
        entry = self.t.cli("audit", "--verb", "queue cancel").json["entries"][-1]
        self.assertEqual((entry["subject"], entry["tenant"]), (f"lease {request}", "team-a"))
        self.assertEqual(entry["detail"], "64 MiB of pool p: maintenance")
        self.assertTrue(entry["actor"].startswith("admin uid "), entry["actor"])
        waiting = self.wait("64M")
        request = self.queue()[0]["lease"]
        self.assertEqual(self.text("queue", "cancel", request), f"request {request} does not wait any more\n")

    def test_a_killed_process_leaves_the_queue(self):
        self.t.grant("128M", "p")
        killed = self.wait("8M")
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=30)
        wait_until(lambda: not self.queue(), 20, "its end")


if __name__ == "__main__":
    harness.main()
