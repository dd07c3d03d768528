# SPDX-License-Identifier: Apache-2.0
"""The units, users and directories that are shipped, as systemd sees them; and the example configuration."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402

SYSTEMD = harness.REPOSITORY / "deploy" / "systemd"
# What systemd-analyze counts against a service, times ten. An agent needs the network and a real-time priority, which are 0.8.
# An agent has a network, and may change the size of the mount that its leases lie in (fspick, fsconfig).
EXPOSURE_MAX = {"terraced": 30, "terrace-agent": 38}


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"{program} is not installed")


class Units(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-units-"))
        self.addCleanup(shutil.rmtree, self.folder)
        programs = pathlib.Path(harness.find_binary("terraced")).parent
        for source in SYSTEMD.glob("*.service.in"):
            text = source.read_text().replace("@CMAKE_INSTALL_FULL_BINDIR@", str(programs))
            self.assertNotRegex(text, r"@\w+@")
            (self.folder / source.stem).write_text(text)
        for source in SYSTEMD.glob("*.mount"):
            shutil.copy(source, self.folder)

    def run_ok(self, *command):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=self.folder, check=False)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    @needs("systemd-analyze")
    def test_the_units_are_units(self):
        units = sorted(f"./{path.name}" for path in self.folder.iterdir())
        self.assertEqual(len(units), 3)
        self.assertEqual(self.run_ok("systemd-analyze", "verify", *units), "")
        with_drop_in = self.folder / "terraced.service.d"
        with_drop_in.mkdir()
        shutil.copy(SYSTEMD / "further-hosts.conf", with_drop_in)
        self.assertEqual(self.run_ok("systemd-analyze", "verify", "./terraced.service"), "")

    @needs("systemd-analyze")
    def test_a_service_exposes_no_more_than_it_must(self):
        for name, most in EXPOSURE_MAX.items():
            with self.subTest(name):
                self.run_ok("systemd-analyze", "security", "--offline=true", f"--threshold={most}", f"./{name}.service")

    @needs("systemd-sysusers")
    def test_users_and_directories_can_be_made(self):
        root = self.folder / "root"
        (root / "etc").mkdir(parents=True)
        for kind in ("sysusers", "tmpfiles"):
            place = root / "usr/lib" / f"{kind}.d"
            place.mkdir(parents=True)
            shutil.copy(SYSTEMD / f"terrace.{kind}", place / "terrace.conf")
        self.run_ok("systemd-sysusers", f"--root={root}")
        self.assertRegex((root / "etc/group").read_text(), r"(?m)^terrace-admin:")
        self.assertRegex((root / "etc/passwd").read_text(), r"(?m)^terrace:")
        if os.geteuid() != 0:
            return
        self.run_ok("systemd-tmpfiles", "--create", f"--root={root}", "terrace.conf")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (root / "run").iterdir()}
        self.assertEqual(modes, {"terrace": 0o755, "terrace-admin": 0o750, "terrace-tenants": 0o700})

    def test_the_example_configuration_can_be_used_as_it_is_and_with_all_of_it(self):
        terraced = harness.find_binary("terraced")
        example = SYSTEMD / "terraced.toml"
        self.run_ok(terraced, "--check-config", "--config", example)
        lines = example.read_text().splitlines()
        self.assertFalse([line for line in lines if line and not line.startswith("#")])
        # Every line that is an assignment or a table, without its mark. The group and the CA are no machine's yet.
        shown = [line[1:] for line in lines if re.match(r"#(\[|\w+ = )", line)]
        self.assertGreater(len(shown), 15)
        whole = self.folder / "whole.toml"
        whole.write_text("\n".join(shown).replace('"terrace-admin"', "0"))
        self.run_ok(terraced, "--check-config", "--config", whole)


class InNamespaces(harness.Harness):
    """As a unit with hardening starts it: each start has a mount namespace of its own, that sees the system's mounts."""

    def daemon_command(self):
        return ["unshare", "--mount", "--propagation", "slave", *super().daemon_command()]


@unittest.skipUnless(harness.can_mount(), "needs the right to mount")
class Mount(unittest.TestCase):
    """run-terrace-objects.mount: why it is there, and that terraced takes the mount for its own."""

    def setUp(self):
        self.t = InNamespaces(name="mount", devices={"a": "128M"}, daemon_args=("--no-hardware",))
        self.addCleanup(self.t.close)
        self.objects = self.t.runtime / "objects"
        for unit in ("terraced", "terrace-agent"):
            self.assertIn("--no-mount --object-dir /run/terrace/objects\n", (SYSTEMD / f"{unit}.service.in").read_text())

    def mount(self):
        unit = (SYSTEMD / "run-terrace-objects.mount").read_text()
        what, options = (re.search(rf"(?m)^{key}=(.+)$", unit)[1] for key in ("What", "Options"))
        self.t.runtime.mkdir(mode=0o755)
        self.objects.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, what, self.objects], check=True)

    def test_the_memory_of_leases_outlives_the_namespace_of_one_start(self):
        self.t.daemon_args += ["--no-mount", "--object-dir", str(self.objects)]
        self.mount()
        self.t.start()
        self.t.create_pool("p")
        lease = self.t.grant("100M", "p", "--ttl", "60s")  # more than the unit's size: the manager has made it larger
        # As large as its leases, so that none can be made longer.
        size = os.statvfs(self.objects).f_blocks * os.statvfs(self.objects).f_bsize
        self.assertTrue(100 << 20 <= size < 102 << 20, size)
        self.assertTrue([path for path in self.objects.iterdir() if path.stat().st_size == 100 << 20])
        self.t.restart(hard=True)
        self.assertEqual(list(self.t.leases()), [lease["id"]])
        self.t.check_invariants()
        self.t.restart()
        self.t.cli("lease", "release", str(lease["id"]))
        self.t.wait_free()
        self.assertEqual(self.t.stop(), 0)
        # A clean end without leases takes the mount away, for everybody; the unit mounts it again for the next start.
        self.assertFalse(self.objects.exists())

    def test_what_a_start_mounts_itself_the_next_one_does_not_find(self):
        self.t.start()
        self.t.create_pool("p")
        self.t.grant("8M", "p", "--ttl", "60s")
        self.t.kill()
        self.t.start(wait=False)
        self.assertEqual(self.t.wait_dead(), 1)
        self.assertIn("--accept-lost-objects", self.t.log_tail())


if __name__ == "__main__":
    harness.main()
