# SPDX-License-Identifier: Apache-2.0
"""KV spaces under processes that are killed and stopped (tests/support/kv_soak): on memory files, as two hosts, in a lease that is
revoked, and on emulated hosts. Blocks that are planted wrong must be found. tests/guest/kv_space_test.py and kv_leases_test.py have a
guest for each host.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/kv_soak/kv_soak_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import kv_soak_runs as soak  # noqa: E402
import terrace_harness as harness  # noqa: E402

MIB = 1 << 20
ENOUGH = {"reads": 20_000, "kills": 5, "stops": 1}
SHORT = {"stop": 300, "stop_every": 500, "limit_s": 400}
PLANTED = {"torn": "torn from byte", "other": "the block of key", "foreign": "of run 2", "stale": "was erased", "in-place": "torn from byte"}


def memory_file(test, size):
    file = tempfile.NamedTemporaryFile(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None, prefix="terrace-kv-soak-")
    test.addCleanup(file.close)
    file.truncate(size)
    return file.name


class ProcessesTest(unittest.TestCase):
    def ended(self, **options):
        running = soak.Soak(**{**SHORT, **options})
        self.addCleanup(running.kill)
        return running.finish()

    def test_nothing_is_wrong(self):
        for options in ({}, {"hosts": 2, "noncoherent": True, "workers": 2}):
            with self.subTest(**options):
                soak.check(self, self.ended(**ENOUGH, **options), **ENOUGH)

    def test_planted_blocks_are_found(self):
        for plant, words in PLANTED.items():
            with self.subTest(plant=plant):
                code, told = self.ended(reads=10**9, plant=plant)
                self.assertEqual(code, 1, told)
                self.assertGreater(told["wrong"], 0)
                self.assertIn(words, told["why"])

    def test_what_noncoherent_memory_finds_by_its_checksum(self):
        code, told = self.ended(reads=10**9, plant="in-place", noncoherent=True)
        self.assertEqual(code, 1, told)
        self.assertRegex(told["why"], "torn|corrupt|verify")

    def test_a_host_finds_what_the_other_one_planted(self):
        memory = memory_file(self, 10 * MIB)
        both = [soak.Soak(**SHORT, file=memory, ledger=memory, ledger_offset=8 * MIB, hosts=2, host=host, workers=2, reads=10**9,
                          plant="torn" if host else "none") for host in (1, 0)]
        for running in both:
            self.addCleanup(running.kill)
        for code, told in [running.finish() for running in both]:
            self.assertEqual(code, 1, told)
            self.assertIn("torn", told["why"])

    def test_a_space_goes_on_where_another_program_left_it(self):
        memory = memory_file(self, 10 * MIB)
        options = {"file": memory, "ledger": memory, "ledger_offset": 8 * MIB}
        soak.check(self, self.ended(**ENOUGH, **options), **ENOUGH)
        running = soak.Soak(**SHORT, **options, reads=10**9, join=True)
        running.await_work(ENOUGH["reads"] + 2000, 100, 300)
        running.kill()  # all of them at once
        told = soak.check(self, self.ended(**ENOUGH, **options, join=True, find=100), **ENOUGH)
        self.assertGreater(told["reads"], 2 * ENOUGH["reads"])
        code, told = self.ended(**options, join=True, find=10**6)
        self.assertEqual(code, 1)
        self.assertRegex(told["why"], r"only \d+ blocks are there")

    def test_words_for_what_cannot_be(self):
        code, told = self.ended(file=memory_file(self, 4096))
        self.assertEqual(code, 1)
        self.assertIn("fewer than", told["why"])
        code, told = self.ended(host=1, hosts=2, limit_s=1)
        self.assertEqual(code, 1)
        self.assertIn("for host 0 to make the space", told["why"])


class LeaseTest(unittest.TestCase):
    def test_owners_by_locks(self):
        with harness.Harness(devices={"a": "64M"}, name="kv-soak") as service:
            service.start()
            service.cli("pool", "create", "p", "--adopt", "--device", "emu:a")
            service.cli("lease", "grant", "--pool", "p", "--size", "16M", "--persistent", "--mode", "shared_coherent", "--label", "cache")
            running = soak.Soak(**SHORT, **ENOUGH, socket=service.socket, lease="cache", locks=True, workers=2, kill_every=500)
            self.addCleanup(running.kill)
            self.assertEqual(soak.check(self, running.finish(), **ENOUGH)["owners"], "locks")

    def test_a_lease_that_is_revoked_under_its_readers(self):
        with harness.Harness(devices={"a": "64M"}, name="kv-soak") as service:
            service.start()
            service.cli("pool", "create", "p", "--adopt", "--device", "emu:a")
            for run in (1, 2):  # the second one in the memory of the first
                lease = service.cli("lease", "grant", "--pool", "p", "--size", "48M", "--persistent", "--mode", "shared_coherent",
                                    "--label", "cache").json["lease"]["id"]
                running = soak.Soak(**SHORT, socket=service.socket, lease="cache", run=run, workers=2, expect_loss=True,
                                    kill_every=150)
                self.addCleanup(running.kill)
                running.await_work(5000, 200, 300)
                service.cli("lease", "revoke", lease, "--grace", "0s")
                code, told = running.finish()
                self.assertEqual((code, told["wrong"], told["lease_ended"]), (0, 0, True), told)
                service.wait_free("p")


class EmulatedTest(unittest.TestCase):
    def run_emulated(self, *words):
        done = subprocess.run([harness.find_binary(soak.PROGRAM), "--emulated", *words], stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    def test_nothing_is_wrong(self):
        code, told = self.run_emulated("--reads", "20000")
        self.assertEqual((code, told["wrong"]), (0, 0), told)
        for counted in ("in_place", "removals", "kills", "power_cuts"):
            self.assertGreater(told[counted], 0, counted)
        self.assertGreaterEqual(told["reads"], 20_000)

    def test_a_step_left_out_is_found(self):
        code, told = self.run_emulated("--reads", "1e7", "--plant", "torn")
        self.assertEqual((code, told["wrong"]), (1, 1), told)


if __name__ == "__main__":
    harness.main()
