# SPDX-License-Identifier: Apache-2.0
"""A released version's manager, command line, library and agents, and those of this tree, over one store and one memory.

    scripts/dev upgrade [--from COMMIT]
    python3 tests/upgrade/upgrade_test.py --build-dir build/sim --older build/upgrade/COMMIT/build/sim [TestClass[.test]]
"""

import pathlib
import re
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "integration" / "agents")]
import fabric as fabric_module  # noqa: E402
from fabric import Fabric, harness, wait_until  # noqa: E402
from session_tenant import Tenant  # noqa: E402
from terrace_harness import Harness, find_binary  # noqa: E402

MIB = 1 << 20
S = 10**9
OLDER = None  # the build folder of the older version; main() sets it
WHY_NOT = fabric_module.why_not()

# What only looks, and has an answer wherever a pool with a lease is. Those that a version lacks are left out of its list by
# itself: whoever asks is the older program.
LOOKS = (("status",), ("health",), ("pool", "list"), ("pool", "show", "p"), ("device", "list"),
         ("lease", "list"), ("lease", "show", "1"), ("host", "list"), ("quota", "list"), ("reserve", "list"), ("queue", "list"),
         ("audit",), ("events",), ("check",), ("top", "--once"), ("tier", "status"), ("state", "export"), ("daemon", "status"))


def becomes(service, build_dir):
    """From now on `service` starts, and asks with, the programs of this build folder."""
    service.build_dir = build_dir
    service.terraced, service.terrace = find_binary("terraced", build_dir), find_binary("terrace", build_dir)


def keys(document, name=""):
    """Every key of a JSON document, as paths; of a list, those of its first row."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield f"{name}.{key}"
            yield from keys(value, f"{name}.{key}")
    elif isinstance(document, list) and document:
        yield from keys(document[0], f"{name}[]")


class Case(unittest.TestCase):
    def enter(self, manager):
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def service(self, build_dir):
        service = self.enter(Harness(name="upgrade", build_dir=build_dir))
        service.start()
        service.create_pool("p")
        return service

    def tenant(self, service):
        tenant = self.enter(Tenant(service))
        self.assertEqual(tenant.first, "ready", service.log_tail())
        return tenant

    def program(self, service, build_dir):
        """A Python under `terrace run` that keeps 20 MiB, and says at its end whether they are as they were."""
        process = service.popen(
            find_binary("terrace", build_dir), "run", "--ddr", "8M", "--cxl", "32M", "--policy", "static", "--", "/usr/bin/python3", "-c",
            "kept = [bytes([n]) * (1 << 20) for n in range(20)]; print('there', flush=True); input(); "
            "print(all(one == bytes([n]) * (1 << 20) for n, one in enumerate(kept)))",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"TERRACE_MALLOC_LIBRARY": find_binary("libterrace_heap.so", build_dir)})
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "there\n")
        return process

    def ended(self, process):
        said, _ = process.communicate("\n", timeout=60)
        self.assertEqual((said, process.returncode), ("True\n", 0))


class Manager(Case):
    def lives_through(self, first, second, hard):
        service = self.service(first)
        tenant, program = self.tenant(service), self.program(service, first)
        self.assertTrue(tenant.ask("grant", 8 * MIB, 60 * S, "held").endswith(f" {8 * MIB}"))
        self.assertEqual(tenant.ask("fill", 17), "ok")
        kept = service.grant("4M", "p", "--ttl", "1h", "--label", "kept")
        service.cli("quota", "set", "training", "--bytes", "1G")
        before = service.leases()
        service.kill() if hard else service.stop()
        becomes(service, second)
        service.start()
        after = service.leases()
        self.assertEqual(after.keys(), before.keys())
        for number, lease in after.items():
            for key in ("tenant", "label", "bytes", "extents", "epoch", "phase"):
                self.assertEqual(lease[key], before[number][key], (number, key))
        wait_until(lambda: tenant.ask("connected") == "yes", 60, "the older program's session")
        self.assertEqual(tenant.ask("check", 17), "same")
        self.assertEqual(tenant.ask("renew"), "ok")
        self.assertEqual(tenant.ask("release"), "ok")
        self.assertTrue(tenant.ask("grant", 2 * MIB, 60 * S, "again").endswith(f" {2 * MIB}"))
        self.assertEqual(tenant.ask("release"), "ok")
        self.ended(program)
        self.ended(self.program(service, first))  # the older library is loaded anew
        self.ended(self.program(service, second))
        service.cli("lease", "release", kept["id"])
        service.wait_free()
        service.check_invariants()
        self.assertEqual([row["bytes_max"] for row in service.cli("quota", "list").json["quotas"] if row["tenant"] == "training"],
                         [1 << 30])

    def test_leases_holders_and_programs_live_through_an_upgrade(self):
        self.lives_through(OLDER, None, hard=False)

    def test_the_same_where_the_older_manager_was_killed(self):
        self.lives_through(OLDER, None, hard=True)

    def test_the_way_back_loses_nothing_or_is_refused_and_harms_nothing(self):
        service = self.service(None)
        service.grant("4M", "p", "--ttl", "1h", "--label", "kept")
        before = service.leases()
        service.stop()
        becomes(service, OLDER)
        try:
            service.start()
            self.assertEqual(service.leases().keys(), before.keys())
            service.check_invariants()
            service.stop()
        except harness.HarnessError as refused:
            self.assertRegex(str(refused), "run the newer terraced that wrote it")
            service.process = None
        becomes(service, None)
        service.start()
        self.assertEqual(service.leases().keys(), before.keys())
        service.check_invariants()


class CommandLine(Case):
    def test_an_older_command_line_sees_and_does_at_a_newer_manager_what_it_did_at_its_own(self):
        old, new = self.service(OLDER), self.service(None)
        for service in (old, new):
            service.terrace = find_binary("terrace", OLDER)
            service.grant("4M", "p", "--ttl", "1h", "--label", "kept")
        for words in LOOKS:
            with self.subTest(" ".join(words)):
                expected, got = (service.cli(*words, check=False) for service in (old, new))
                if "unknown" in expected.err and expected.code == 2:
                    continue  # a verb that the older version does not have
                self.assertEqual(got.code, expected.code, f"{expected}\n{got}")
                lost = set(keys(expected.json)) - set(keys(got.json))
                # What runs on this machine, and what happened to one of the two, is no part of the interface.
                self.assertFalse({key for key in lost if not key.startswith((".runs[]", ".events[]", ".entries[]"))}, got)
        lease = new.grant("2M")
        new.cli("lease", "renew", lease["id"], "--ttl", "1h")
        new.cli("lease", "release", lease["id"])
        new.cli("quota", "set", "training", "--bytes", "64M")
        new.cli("device", "drain", "emu:b", "--wait")
        new.cli("state", "backup", new.directory / "backup.db")
        new.cli("lease", "revoke", next(iter(new.leases())), "--grace", "0s")
        new.check_invariants()

    def test_a_newer_command_line_at_an_older_manager_works_or_says_what_to_install(self):
        service = self.service(OLDER)
        service.grant("4M", "p", "--ttl", "1h", "--label", "kept")
        service.terrace = find_binary("terrace")
        for words in LOOKS:
            with self.subTest(" ".join(words)):
                done = service.cli(*words, check=False)
                if done.code not in (0, 1) or "error" in (done.json or {}):
                    self.assertRegex(str(done), "newer|older|version|upgrade|does not know")
        lease = service.grant("2M")
        service.cli("lease", "release", lease["id"])
        service.check_invariants()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Agents(Case):
    def test_an_older_agent_goes_on_with_a_newer_manager_and_is_upgraded_within_its_host_lease(self):
        fabric = self.enter(Fabric(build_dir=OLDER, host_lease="10s"))
        manager = fabric.manager()
        manager.create_pool("p")
        agent = fabric.agent("hostb")
        tenant = self.tenant(agent)
        self.assertTrue(tenant.ask("grant", 8 * MIB, 120 * S, "held").endswith(f" {8 * MIB}"))
        self.assertEqual(tenant.ask("fill", 42), "ok")
        before = manager.leases()
        manager.stop()
        becomes(manager, None)
        manager.start()
        fabric.wait_state("hostb", "connected")
        self.assertEqual(manager.leases().keys(), before.keys())
        self.assertEqual(tenant.ask("check", 42), "same")
        self.assertEqual(tenant.ask("renew"), "ok")
        other = self.tenant(agent)
        self.assertTrue(other.ask("grant", 4 * MIB, 60 * S, "second").endswith(f" {4 * MIB}"))
        self.assertEqual(other.ask("release"), "ok")
        versions = [re.search(r"\d+\.\d+\.\d+", subprocess.run([find_binary("terraced", where), "--version"], capture_output=True,
                    text=True, check=True).stdout).group() for where in (OLDER, None)]
        if versions[0] != versions[1]:
            found = lambda: [one for one in manager.cli("health", check=False).json["findings"]
                             if one["code"] == "host_version_differs"]
            self.assertIn(versions[0], wait_until(found, 30, "the finding of another version")[0]["text"])
        agent.stop()
        becomes(agent, None)
        agent.start()
        fabric.wait_state("hostb", "connected")
        wait_until(lambda: tenant.ask("connected") == "yes", 60, "the older program at the newer agent")
        self.assertEqual(tenant.ask("check", 42), "same")
        self.assertEqual(tenant.ask("release"), "ok")
        manager.wait_free()
        manager.check_invariants()
        if versions[0] != versions[1]:
            wait_until(lambda: not found(), 30, "the end of that finding")


if __name__ == "__main__":
    at = sys.argv.index("--older")
    OLDER = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at:at + 2]
    harness.main()
