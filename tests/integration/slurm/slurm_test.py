# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm with memory of Terrace: the SPANK plug-in of bindings/slurm.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/slurm/slurm_test.py [TestClass[.test]]

TERRACE_SLURM_STEPS: how many steps Storm starts (30). TERRACE_SLURM_PLUGIN: another terrace_spank.so.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from cluster import Cluster, why_not
import documented
from ports import free_ports
import terrace_harness as harness
from terrace_harness import Harness, find_binary, process_alive, wait_until

MIB = 1 << 20
NO_MEMORY = 125
PYTHON = "/usr/bin/python3"
# Maps the lease that it was given, writes, and says which it is.
MAPS = ("import mmap,os,sys; m = mmap.mmap(int(sys.argv[1]), 0); m[:5] = b'hello'; "
        "print(os.environ['TERRACE_LEASE_LABEL'], len(m), m[:5].decode())")
# Has more than fits into its DDR, and keeps it for as long as there is no file `stop`.
FILLS = ("import os,sys,time\nb = bytearray(48 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\n"
         "print('filled', os.environ.get('LD_PRELOAD'), flush=True)\n"
         "while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n")


class WithSlurm(unittest.TestCase):
    more_words, daemon_args, nodes = "", (), 1
    devices = {"a": "128M", "b": "128M"}

    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if reason:
            raise unittest.SkipTest(reason)
        plugin = os.environ.get("TERRACE_SLURM_PLUGIN") or find_binary("bindings/slurm/terrace_spank.so")
        cls.t = Harness(name="slurm", devices=cls.devices, daemon_args=["--allow-unmapped-uids"])
        cls.addClassCleanup(cls.t.close)
        cls.t.start()
        cls.t.create_pool("p")
        cls.t.directory.chmod(0o755)
        cls.slurm = Cluster([f"required {plugin} terrace={cls.t.terrace} socket={cls.t.socket} {cls.more_words}"], nodes=cls.nodes)
        cls.slurm.__enter__()
        cls.addClassCleanup(cls.slurm.close)
        cls.jobs = cls.slurm.directory / "jobs"

    def setUp(self):
        self.name = self.id().rsplit(".", 1)[1]
        self.stop = self.jobs / f"{self.name}.stop"

    def tearDown(self):
        self.stop.touch()
        self.slurm.try_run("scancel", "--user=root")
        self.no_leases("after the test")
        self.assertNotIn("drain", self.slurm.node_state(), "the node stays in service")

    def labels(self):
        return sorted(lease["label"] for lease in self.t.leases().values())

    def no_leases(self, why="the leases go"):
        wait_until(lambda: not self.t.leases(), 90, why, interval=0.2)

    def exec_words(self, *program):
        return [self.t.terrace, "lease", "exec", "$TERRACE_LEASE_LABEL", "--", *program]

    def shell(self, *words):
        """As one command of sh, in which $ variables are the task's."""
        return ["sh", "-c", " ".join(word if word.startswith("$") else "'" + str(word) + "'" for word in words)]

    def script(self, text):
        path = self.jobs / f"{self.name}.sh"
        path.write_text("#!/bin/sh\n" + text)
        return path

    def waits(self):
        """A command that goes on until the test says stop."""
        return ["sh", "-c", f"while [ ! -e {self.stop} ]; do sleep 0.1; done"]


class Leases(WithSlurm):
    """--terrace-mode=env"""

    def srun(self, *arguments, **options):
        return self.slurm.run("srun", "-Q", "--terrace-mode=env", *arguments, **options)

    def test_a_step_has_a_lease_and_a_program_maps_it(self):
        shown = self.srun("--terrace=6M", *self.shell(*self.exec_words(PYTHON, "-c", MAPS.replace("'", '"'), "{fd}")))
        label, size, text = shown.stdout.split()
        self.assertRegex(label, r"^slurm-\d+\.0-\w+$")
        self.assertEqual((int(size), text), (6 * MIB, "hello"))
        self.no_leases()

    def test_all_tasks_of_a_step_have_the_same(self):
        shown = self.srun("--terrace=4M", "-n3", "sh", "-c", "echo $TERRACE_LEASE_LABEL $TERRACE_LEASE_ID $TERRACE_LEASE_BYTES")
        lines = set(shown.stdout.splitlines())
        self.assertEqual(len(lines), 1, lines)
        self.assertEqual(lines.pop().split()[2], str(4 * MIB))

    def test_without_the_option_there_is_none(self):
        self.assertEqual(self.slurm.run("srun", "-Q", "sh", "-c", "echo x$TERRACE_LEASE_LABEL$LD_PRELOAD").stdout, "x\n")
        self.assertEqual(self.srun("--terrace=0", "sh", "-c", "echo x$TERRACE_LEASE_LABEL").stdout, "x\n")

    def test_the_lease_is_the_users(self):
        harness.need_build_for_all()
        running = self.slurm.start("srun", "-Q", "--uid=nobody", "--chdir=/", "--terrace-mode=env", "--terrace=2M", *self.waits())
        self.addCleanup(running.communicate)
        lease = wait_until(lambda: next(iter(self.t.leases().values()), None), 120, "a lease")
        self.assertIn("65534", json.dumps(lease))
        self.stop.touch()
        self.assertEqual(running.wait(60), 0)
        self.no_leases()

    def test_a_full_pool_ends_the_step_with_the_managers_sentence(self):
        self.t.grant("250M", "p", "--persistent", "--label", "all")
        try:
            failed = self.srun("--terrace=64M", "echo", "ran", code=NO_MEMORY)
            batch = self.slurm.submit("--terrace=64M", "--terrace-mode=env", "-o", "full.out", self.script("echo ran\n"))
            self.slurm.wait_state(batch, "FAILED")
        finally:
            self.t.cli("lease", "release", "all")
        self.assertNotIn("ran", failed.stdout)
        self.assertIn("[capacity_exhausted]", failed.stderr)
        self.assertIn("[capacity_exhausted]", self.slurm.text("slurmd"))
        self.assertIn("[capacity_exhausted]", (self.jobs / "full.out").read_text())

    def test_what_is_written_wrong_is_refused_before_it_is_submitted(self):
        for command in ("srun", "sbatch"):
            rest = ["true"] if command == "srun" else ["--wrap=true"]
            for words, text in ((["--terrace=16X"], "'16X' is not a size"), (["--terrace="], "is not a size"),
                                (["--terrace=-1"], "is not a size"), (["--terrace=1G", "--terrace-mode=both"], "'both' is not a mode"),
                                (["--terrace-pool=p"], "need --terrace=SIZE")):
                done = self.slurm.try_run(command, *words, *rest)
                self.assertNotEqual(done.returncode, 0, words)
                self.assertIn(text, done.stderr)

    def test_no_such_pool(self):
        failed = self.srun("--terrace=2M", "--terrace-pool=other", "true", code=NO_MEMORY)
        self.assertIn("[not_found]", failed.stderr)

    def test_a_script_and_its_steps(self):
        say = "sh -c 'echo step $TERRACE_LEASE_LABEL $TERRACE_LEASE_BYTES'"
        job = self.slurm.submit("--terrace=4M", "--terrace-mode=env", "-o", "script.out", self.script(
            f"echo batch $TERRACE_LEASE_LABEL $TERRACE_LEASE_BYTES\nsrun -Q {say}\nsrun -Q --terrace=2M {say}\n"
            f"srun -Q --terrace=0 {say}\n"))
        self.slurm.wait_state(job, "COMPLETED")
        lines = [line.split() for line in (self.jobs / "script.out").read_text().splitlines()]
        host = lines[0][1].rsplit("-", 1)[1]
        self.assertEqual(lines, [["batch", f"slurm-{job}.batch-{host}", str(4 * MIB)], ["step", f"slurm-{job}.0-{host}", str(4 * MIB)],
                                 ["step", f"slurm-{job}.1-{host}", str(2 * MIB)], ["step", f"slurm-{job}.batch-{host}", str(4 * MIB)]])

    def test_an_array(self):
        job = self.slurm.submit("--terrace=4M", "--terrace-mode=env", "--array=0-3", "-o", "array-%a.out",
                                self.script(f"echo $TERRACE_LEASE_LABEL\n{' '.join(self.waits()[:2])} '{self.waits()[2]}'\n"))
        wait_until(lambda: len(self.t.leases()) == 4, 180, "four leases", interval=0.3)
        self.stop.touch()
        self.slurm.wait_state(job, "COMPLETED")
        shown = {(self.jobs / f"array-{index}.out").read_text().strip() for index in range(4)}
        self.assertEqual(len(shown), 4, shown)
        self.no_leases()

    def running(self, *more):
        job = self.slurm.submit("--terrace=4M", "--terrace-mode=env", "-o", f"{self.name}.out", *more,
                                self.script(f"echo started\nwhile [ ! -e {self.stop} ]; do sleep 0.1; done\n"))
        wait_until(lambda: any(f"slurm-{job}.batch-" in label for label in self.labels()), 120, "its lease", interval=0.2)
        return job

    def test_scancel(self):
        job = self.running()
        self.slurm.run("scancel", job)
        self.slurm.wait_state(job, "CANCELLED")
        self.no_leases()

    def test_a_job_that_ends_slowly_keeps_it_until_then(self):
        job = self.slurm.submit("--terrace=4M", "--terrace-mode=env", "-o", f"{self.name}.out", self.script(
            f"trap 'sleep 2; {self.t.terrace} lease show $TERRACE_LEASE_LABEL; exit 0' TERM\necho started\n"
            f"while [ ! -e {self.stop} ]; do sleep 0.1; done\n"))
        out = self.jobs / f"{self.name}.out"
        wait_until(lambda: out.exists() and "started" in out.read_text(), 120, "the script")
        self.slurm.run("scancel", "--full", "--signal=TERM", job)
        self.slurm.wait_state(job, "COMPLETED", "FAILED", "CANCELLED")
        self.assertIn("active", out.read_text())
        self.no_leases()

    def test_requeue(self):
        job = self.running("--requeue")
        first = set(self.t.leases())
        self.slurm.run("scontrol", "requeue", job)
        again = rf"^slurm-{job}\.batch-"
        wait_until(lambda: any(re.match(again, lease["label"]) for number, lease in self.t.leases().items() if number not in first),
                   180, "another lease with the same label", interval=0.3)
        self.stop.touch()
        self.slurm.wait_state(job, "COMPLETED")
        self.no_leases()

    def test_killed_slurmstepd_leaves_no_lease(self):
        running = self.slurm.start("srun", "-Q", "--terrace-mode=env", "--terrace=4M", "sleep", "20")
        self.addCleanup(running.communicate)
        self.addCleanup(running.kill)
        wait_until(self.t.leases, 120, "a lease")
        (stepd,) = self.slurm.stepds()
        os.kill(stepd, signal.SIGKILL)
        begin = time.monotonic()
        self.no_leases()
        print(f"gone after {time.monotonic() - begin:.1f} s", file=sys.stderr)


class Runs(WithSlurm):
    """--terrace-mode=run, the default"""

    def test_a_program_as_it_is_runs_on_leased_memory(self):
        out = self.jobs / "run.out"
        running = self.slurm.start("srun", "-Q", "-o", out, "--terrace=96M", "--terrace-ddr=8M", PYTHON, "-c", FILLS, self.stop)
        self.addCleanup(running.communicate)
        wait_until(lambda: out.exists() and "filled" in out.read_text(), 180, "the program")
        self.assertNotIn("terrace_slurm", out.read_text())
        self.assertRegex(self.labels()[0], r"^slurm-\d+\.0-\w+\.0")
        self.assertIn("slurm-", self.t.cli("top", "--once").out + json.dumps(self.t.cli("lease", "list").json))
        self.stop.touch()
        self.assertEqual(running.wait(120), 0)
        self.no_leases()

    def test_tasks_share_what_the_host_has(self):
        shown = self.slurm.run("srun", "-Q", "-n2", "--terrace=64M", "--terrace-ddr=16M", "sh", "-c",
                               "tr '\\0' ' ' < /proc/$PPID/cmdline; echo; exit 3", code=3)
        for line in shown.stdout.splitlines():
            self.assertIn(f"--cxl {32 * MIB} --ddr {8 * MIB}", line)
        self.assertEqual(len(set(shown.stdout.splitlines())), 2)

    def test_scripts_arguments_and_an_own_preload_are_kept(self):
        script = self.script('echo "$0|$1|$2|$LD_PRELOAD|$TERRACE_SLURM_RUN"\n')
        script.chmod(0o755)
        preload = str(next(pathlib.Path("/usr/lib").glob("*-linux-gnu/libdl.so.2")))
        shown = self.slurm.run("srun", "-Q", "--terrace=8M", f"--export=ALL,LD_PRELOAD={preload}", script, "a b", "")
        name, first, second, preloads, words = shown.stdout.strip().split("|")
        self.assertEqual((name, first, second, words), (str(script), "a b", "", ""))
        self.assertIn(preload, preloads)
        self.assertNotIn("terrace_slurm", preloads)

    def test_a_task_prolog_runs_as_ever(self):
        prolog = self.jobs / "prolog.sh"
        prolog.write_text("#!/bin/sh\necho export PROLOG_PARENT=$(tr '\\0' ' ' < /proc/$PPID/comm)\n")
        prolog.chmod(0o755)
        shown = self.slurm.run("srun", "-Q", "--terrace=8M", f"--task-prolog={prolog}", "sh", "-c", "echo $PROLOG_PARENT")
        self.assertEqual(shown.stdout, "slurmstepd\n")

    def test_a_script_that_starts_steps(self):
        job = self.slurm.submit("--terrace=16M", "-o", "steps.out", self.script(
            "tr '\\0' ' ' < /proc/$PPID/cmdline; echo\n"
            "srun -Q sh -c \"tr '\\\\0' ' ' < /proc/\\$PPID/cmdline; echo\"\nsrun -Q --terrace=0 sh -c 'echo none:$LD_PRELOAD:$TERRACE_SUPPLY'\n"))
        self.slurm.wait_state(job, "COMPLETED")
        batch, step, none = (self.jobs / "steps.out").read_text().splitlines()
        self.assertIn(f"--label slurm-{job}.batch-", batch)
        self.assertIn(f"--label slurm-{job}.0-", step)
        self.assertEqual(none, "none::")

    def test_killed_slurmstepd_ends_the_run(self):
        out = self.jobs / "killed.out"
        running = self.slurm.start("srun", "-Q", "-o", out, "--terrace=96M", "--terrace-ddr=8M", PYTHON, "-c", FILLS, self.stop)
        self.addCleanup(running.communicate)
        self.addCleanup(running.kill)
        wait_until(lambda: out.exists() and "filled" in out.read_text(), 180, "the program")
        (stepd,) = self.slurm.stepds()
        os.kill(stepd, signal.SIGKILL)
        self.no_leases()

    def test_redis(self):
        for name in ("redis-server", "redis-benchmark"):
            if not pathlib.Path("/usr/bin", name).exists():
                self.skipTest(f"{name} is not installed")
        server = self.slurm.start("srun", "-Q", "--terrace=96M", "--terrace-ddr=8M", "redis-server", "--port", "0", "--save", "", "--unixsocket", self.jobs / "redis")
        self.addCleanup(server.communicate)
        wait_until((self.jobs / "redis").exists, 120, "redis")
        done = self.slurm.run("srun", "-Q", "--terrace=16M", "redis-benchmark", "-s", self.jobs / "redis", "-t", "set", "-n", "20000",
                              "-r", "20000", "-d", "1000", "-q")
        self.assertIn("SET", done.stdout)
        wait_until(self.t.leases, 60, "its leases")
        subprocess.run(["redis-cli", "-s", self.jobs / "redis", "shutdown", "nosave"], check=True, capture_output=True)
        self.assertEqual(server.wait(60), 0)


class Away(WithSlurm):
    """The manager is not there, or goes away."""

    def test_no_manager(self):
        self.t.stop()
        try:
            failed = self.slurm.run("srun", "-Q", "--terrace-mode=env", "--terrace=2M", "true", code=NO_MEMORY)
            self.assertIn("[unavailable", failed.stderr)
            failed = self.slurm.run("srun", "-Q", "--terrace=2M", "true", code=NO_MEMORY)
            self.assertIn("[unavailable", failed.stderr)
        finally:
            self.t.start()

    def test_a_manager_that_starts_anew_is_not_noticed(self):
        running = self.slurm.start("srun", "-Q", "--terrace-mode=env", "--terrace=4M", *self.waits())
        self.addCleanup(running.communicate)
        wait_until(self.t.leases, 120, "a lease")
        self.t.restart(hard=True)
        time.sleep(1)
        self.assertEqual(len(self.t.leases()), 1)
        self.stop.touch()
        self.assertEqual(running.wait(60), 0)


class Waiting(WithSlurm):
    """wait= in plugstack.conf: mode env stands in the queue of a full pool."""
    more_words = "wait=10m"

    def lease_of(self, job):
        return next((label for label in self.labels() if label.startswith(f"slurm-{job}.")), None)

    def queued(self):
        return [one["label"] for one in self.t.cli("queue", "list").json["waiting"]]

    def keepers(self):
        """Pids of `terrace lease hold` of this test's manager."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                environment = (entry / "environ").read_bytes() if b"hold" in words else b""
            except OSError:
                continue
            if os.fsencode(str(self.t.socket)) in environment:
                found.append(int(entry.name))
        return found

    def batch(self, size, name):
        return self.slurm.submit(f"--terrace={size}", "--terrace-mode=env", "-o", f"{name}.out",
                                 self.script(f"echo started\nwhile [ ! -e {self.stop} ]; do sleep 0.1; done\n"))

    def test_a_job_that_waits_for_memory_gets_it_when_another_ends(self):
        first = self.batch("200M", "first")
        wait_until(lambda: self.lease_of(first), 120, "the first job's lease")
        second = self.slurm.submit("--terrace=100M", "--terrace-mode=env", "-o", "second.out",
                                   self.script("echo $TERRACE_LEASE_LABEL $TERRACE_LEASE_BYTES\n"))
        wait_until(self.queued, 120, "the second one in the manager's queue")
        self.assertEqual(self.slurm.state(second), ["RUNNING"], "its script has not begun")
        self.assertFalse((self.jobs / "second.out").exists() and (self.jobs / "second.out").read_text())
        self.stop.touch()
        self.slurm.wait_state(first, "COMPLETED")
        self.slurm.wait_state(second, "COMPLETED")
        self.assertRegex((self.jobs / "second.out").read_text(), rf"^slurm-{second}\.batch-\S+ {100 * MIB}\n$")
        self.no_leases()

    def test_a_job_that_is_cancelled_while_it_waits_leaves_nothing(self):
        first = self.batch("200M", "first")
        wait_until(lambda: self.lease_of(first), 120, "the first job's lease")
        second = self.batch("100M", "second")
        wait_until(self.queued, 120, "the second one in the manager's queue")
        self.slurm.run("scancel", second)
        self.slurm.wait_state(second, "CANCELLED")
        wait_until(lambda: not self.queued(), 120, "it leaves the queue")
        self.assertEqual(self.labels(), [self.lease_of(first)])
        wait_until(lambda: len(self.keepers()) == 1, 120, "only the first job's keeper is left")
        self.stop.touch()
        self.slurm.wait_state(first, "COMPLETED")
        self.no_leases()
        wait_until(lambda: not self.keepers(), 120, "no keeper is left")
        self.t.check_invariants()


class WaitingTooLong(WithSlurm):
    """A wait that the manager would refuse is refused where it is written, and the rest of the line holds."""
    more_words = "wait=2h"

    def test_there_is_no_wait(self):
        self.t.grant("250M", "p", "--persistent", "--label", "all")
        try:
            failed = self.slurm.run("srun", "-Q", "--terrace-mode=env", "--terrace=64M", "true", code=NO_MEMORY)
        finally:
            self.t.cli("lease", "release", "all")
        self.assertIn("'2h' is not a wait of at most an hour", failed.stderr)
        self.assertIn("[capacity_exhausted]", failed.stderr)


class TwoNodes(WithSlurm):
    nodes = 2

    def running(self, *more):
        """A step on both nodes, and its leases by node."""
        step = self.slurm.start("srun", "-Q", "-N2", "-n2", *more)
        self.addCleanup(step.communicate)
        self.addCleanup(step.kill)
        wait_until(lambda: len(self.t.leases()) == 2, 180, "a lease for each node", interval=0.2)
        return step, {label.split("-", 2)[2].partition(".")[0]: label for label in self.labels()}

    def test_a_job_has_a_lease_on_each_node(self):
        shown = self.slurm.run("srun", "-Q", "-N2", "-n4", "--terrace=6M", "--terrace-mode=env", "sh", "-c",
                               "echo $SLURMD_NODENAME $TERRACE_LEASE_LABEL $TERRACE_LEASE_ID $TERRACE_LEASE_BYTES")
        lines = sorted({tuple(line.split()) for line in shown.stdout.splitlines()})
        self.assertEqual([line[0] for line in lines], self.slurm.nodes)
        self.assertEqual(len({line[2] for line in lines}), 2, "two leases")
        for node, label, _, size in lines:
            self.assertRegex(label, rf"^slurm-\d+\.0-{node}$")
            self.assertEqual(int(size), 6 * MIB)
        self.no_leases()

    def test_a_node_that_is_lost_leaves_no_lease(self):
        for mode in (["--terrace=6M", "--terrace-mode=env", *self.waits()],
                     ["--terrace=64M", "--terrace-ddr=8M", PYTHON, "-c", FILLS, self.stop]):
            with self.subTest(mode=mode[1]):
                step, leases = self.running(*mode)
                self.assertEqual(sorted(leases), self.slurm.nodes)
                lost = self.slurm.nodes[1]
                self.slurm.kill_node(lost)
                wait_until(lambda: leases[lost] not in self.labels(), 90, "the lost node's lease goes", interval=0.2)
                self.assertIn(leases[self.slurm.nodes[0]], self.labels(), "the other node's tasks run on")
                self.slurm.start_node(lost)
                self.stop.touch()
                step.kill()
                step.wait()
                self.slurm.try_run("scancel", "--user=root")
                self.no_leases("no lease is left")
                self.stop.unlink()
                wait_until(lambda: set(self.slurm.node_state().split()) == {"idle"}, 180, "both nodes serve again", interval=0.5)
        self.t.check_invariants()


class Documented(unittest.TestCase):
    """The lines of docs/operations/slurm.md, from a machine with the packages to a job."""

    def test_from_a_bare_machine_to_a_job(self):
        reason = why_not() or ("" if shutil.which("redis-benchmark") else "not installed: redis-server, redis-tools")
        if reason:
            self.skipTest(reason)
        lines = documented.commands("operations/slurm.md", "From a bare machine to a job")
        self.assertLessEqual(documented.count(lines), 10)
        installs, starts, *lines = lines  # what the harness stands for
        self.assertRegex(installs, "^apt-get install .*terraced.*terrace-cli.*terrace-preload.*terrace-slurm")
        self.assertIn("systemctl enable --now terraced", starts)
        t = Harness(name="slurm", devices={"a": "2560M"}, daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(t.close)
        t.start()
        t.directory.chmod(0o755)
        slurm = Cluster([])
        slurm.__enter__()
        self.addCleanup(slurm.close)
        plugin = os.environ.get("TERRACE_SLURM_PLUGIN") or find_binary("bindings/slurm/terrace_spank.so")
        site = t.directory / "terrace.conf"  # as it is installed, but that neither the plug-in nor the manager are where packages put them
        site.write_text(re.sub(r"(?m)^optional \S+$", f"optional {plugin} terrace={t.terrace} socket={t.socket}",
                               pathlib.Path(find_binary("bindings/slurm/terrace.conf")).read_text()))
        (port,) = free_ports(1)
        places = {"SERIAL": "emu:a", "/usr/share/terrace-slurm/terrace.conf": str(site),
                  "/etc/slurm/plugstack.conf": str(slurm.directory / "plugstack.conf"), "7000": str(port)}
        environment = {**t.environment(), "PATH": f"{pathlib.Path(t.terrace).parent}:{slurm.env['PATH']}"}
        said = {}
        for line in lines:
            for written, here in places.items():
                line = line.replace(written, here)
            if line.endswith("&"):
                server = slurm.start("sh", "-c", "exec " + line.removesuffix("&"))
                self.addCleanup(server.communicate)
                self.addCleanup(server.terminate)
                wait_until(lambda: slurm.try_run("redis-cli", "-p", port, "ping").stdout == "PONG\n", 120, "redis answers")
                continue
            said[line.split()[0]] = slurm.run("sh", "-c", line, env=environment).stdout
        for name in ("SET", "GET"):
            self.assertRegex(said["srun"], rf"{name}: [0-9.]+ requests per second")


class Licenses(WithSlurm):
    """bindings/slurm/terrace-slurm-licenses, by which jobs wait in Slurm's queue, not in vain for memory."""
    devices = {"a": "2G", "b": "1G"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.file = cls.slurm.directory / "licenses"
        with (cls.slurm.directory / "slurm.conf").open("a") as conf:
            conf.write(f"Include {cls.file}\n")
        cls.file.write_text("Licenses=matlab:5\n")

    def follow(self, *words, code=0, **more):
        program = harness.REPOSITORY / "bindings/slurm/terrace-slurm-licenses"
        return self.slurm.run("sh", program, "--others", "matlab:5", *words, self.file, code=code,
                              env={"TERRACE": self.t.terrace, "TERRACE_SOCKET": str(self.t.socket), **more})

    def shown(self):
        said = self.slurm.run("scontrol", "-o", "show", "licenses").stdout
        return dict(re.findall(r"LicenseName=(\w+) Total=(\d+)", said))

    def test_it_follows_the_pools(self):
        self.assertEqual(self.follow().stdout, "Licenses=matlab:5,terrace_gib:3\n")
        wait_until(lambda: self.shown() == {"matlab": "5", "terrace_gib": "3"}, 60, "slurmctld has it")
        self.assertEqual(self.follow().stdout, "", "nothing has changed")
        running = self.slurm.start("srun", "-Q", "-L", "terrace_gib:2", "--terrace-mode=env", "--terrace=2G", *self.waits())
        self.addCleanup(running.communicate)
        wait_until(self.t.leases, 120, "a lease")
        self.assertEqual(self.follow().stdout, "", "what jobs have counts as theirs")
        queued = self.slurm.submit("-L", "terrace_gib:2", "--terrace-mode=env", "--terrace=2G", self.script("exit 0\n"))
        time.sleep(3)
        self.assertEqual(self.slurm.state(queued), ["PENDING"])
        self.t.cli("lease", "grant", "--pool", "p", "--size", "1G", "--persistent", "--label", "not-slurm-1")
        self.assertEqual(self.follow().stdout, "Licenses=matlab:5,terrace_gib:2\n")
        self.t.cli("lease", "release", "not-slurm-1")
        wait_until(lambda: self.follow().stdout == "Licenses=matlab:5,terrace_gib:3\n", 120, "it is erased, and free again")
        self.stop.touch()
        self.assertEqual(running.wait(60), 0)
        self.slurm.wait_state(queued, "COMPLETED")

    def test_what_fails_changes_nothing(self):
        self.follow()
        before = self.file.read_text()
        self.assertIn("no pool q", self.follow("--pool", "q", code=1).stderr)
        self.assertIn("no daemon answers", self.follow(code=1, TERRACE_SOCKET="/nowhere/s").stderr)
        self.assertIn("whole seconds", self.follow("--every", "soon", code=2).stderr)
        self.assertEqual(self.file.read_text(), before)
        self.t.cli("lease", "grant", "--pool", "p", "--size", "1G", "--label", "other")
        self.follow("--pool", "p", code=1, SLURM_CONF="/nowhere/slurm.conf")  # slurmctld cannot be told
        self.assertEqual(self.follow("--pool", "p").stdout, "Licenses=matlab:5,terrace_gib:2\n", "it is told the next time")
        self.t.cli("lease", "release", "other")


class Storm(WithSlurm):
    STEPS = int(os.environ.get("TERRACE_SLURM_STEPS", "30"))
    AT_ONCE = 4

    def keepers(self):
        """Pids of `terrace lease hold`. A sanitized one looks for leaks at its end, in a child of its own memory; for a
        child that was killed it waits for ever, which no other build does: such a child is no keeper."""
        parents = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if words and words[0] == os.fsencode(self.t.terrace) and b"hold" in words and any(w.startswith(b"slurm-") for w in words):
                    parents[int(entry.name)] = int(re.search(r"^PPid:\s*(\d+)", (entry / "status").read_text(), re.M).group(1))
            except OSError:
                continue
        return [pid for pid, parent in parents.items() if parent not in parents]

    def all_end(self, what, pids):
        """What ends by itself after the storm, or what those that remain do."""
        try:
            wait_until(lambda: not pids(), 90, f"no {what}", interval=0.3)
        except harness.HarnessError:
            for pid in pids():
                self.show(what, pid)
            raise

    def show(self, what, pid):
        for name in ("status", "wchan", "stack"):
            try:
                print(f"{what} {pid}, {name}: " + pathlib.Path(f"/proc/{pid}/{name}").read_text(), file=sys.stderr)
            except OSError as error:
                print(f"{what} {pid}, {name}: {error}", file=sys.stderr)
        try:
            descriptors = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            print(f"{what} {pid}, descriptors: {descriptors}", file=sys.stderr)
        except OSError as error:
            print(f"{what} {pid}, descriptors: {error}", file=sys.stderr)

    def attack(self, rnd, job):
        """Kills something of a step, or nothing."""
        kind = rnd.choice(("stepd", "keeper", "scancel", "srun", "nothing", "nothing"))
        victims = {"stepd": self.slurm.stepds, "keeper": self.keepers, "srun": lambda: [one.pid for one in self.alive]}.get(kind)
        if kind == "scancel":
            steps = re.findall(r"StepId=(\d+\.\d+)", self.slurm.try_run("scontrol", "-o", "show", "step").stdout)
            if steps:
                self.slurm.try_run("scancel", rnd.choice(steps))
        elif victims is not None and (pids := victims()):
            try:
                os.kill(rnd.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def test_no_lease_is_left_whatever_is_killed(self):
        rnd = random.Random(int(os.environ.get("TERRACE_SLURM_SEED", "1")))
        granted = self.slurm.run("salloc", "--no-shell", "-n16", "-t", "60").stderr
        job = re.search(r"Granted job allocation (\d+)", granted).group(1)
        self.alive, self.kinds, codes = [], {}, {}
        begin = time.monotonic()
        for _ in range(self.STEPS):
            mode = rnd.choice((["--terrace-mode=env"], ["--terrace-mode=run", "--terrace-ddr=2M"]))
            size = rnd.choice(("2M", "4M", "16M", "200M"))  # several of the last do not fit
            one = subprocess.Popen(["srun", "-Q", f"--jobid={job}", "--overlap", "-n1", *mode, f"--terrace={size}", "sleep",
                                    str(rnd.choice((0, 0.2, 1)))], env=self.slurm.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.jobs)
            self.alive.append(one)
            time.sleep(rnd.uniform(0, 0.3))
            self.attack(rnd, job)
            deadline = time.monotonic() + 20
            while len(self.alive) >= self.AT_ONCE:
                for ended in [one for one in self.alive if one.poll() is not None]:
                    codes[ended.returncode] = codes.get(ended.returncode, 0) + 1
                    self.alive.remove(ended)
                if time.monotonic() > deadline:  # it waits for a slurmstepd that was killed
                    self.alive[0].kill()
                time.sleep(0.02)
        self.slurm.try_run("scancel", job)
        for one in self.alive:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self.all_end("keeper", self.keepers)
        self.no_leases("no lease")
        self.t.check_invariants()
        # They end in their own time after the leases: one whose srun was killed tries to reach it for a while.
        self.all_end("slurmstepd", lambda: [pid for pid in self.slurm.stepds() if process_alive(pid)])
        print(f"{self.STEPS} steps in {time.monotonic() - begin:.0f} s, attacks {self.kinds}, exit codes {codes}", file=sys.stderr)
        self.assertGreater(codes.get(0, 0), 0, "some have ended well")


if __name__ == "__main__":
    harness.main()
