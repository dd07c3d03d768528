# SPDX-License-Identifier: Apache-2.0
"""lease cdi: podman puts a lease into a container, by path and by the socket of a tenant.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/containers/podman_test.py [TestClass[.test]]

The container's root file system is this machine's, under an overlay: no image is needed. podman looks for descriptions in
/var/run/cdi only, so names there have this process's id.
"""

import json
import os
import pathlib
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import documented  # noqa: E402
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB = 1 << 20
FAILED, USAGE, NOT_FOUND, _, _, DENIED, CONFLICT = range(1, 8)
SIGBUS_EXIT = 135
KILLED = 137
PYTHON = "/usr/bin/python3"

WRITE_ALL = """
import mmap, os
file = os.open(os.environ["TERRACE_LEASE_PATH"], os.O_RDWR)
size = int(os.environ["TERRACE_LEASE_BYTES"])
memory = mmap.mmap(file, 0)
assert len(memory) == size, len(memory)
for at in range(0, size, 4096):
    memory[at:at + 5] = b"there"
print("wrote", size)
"""
OPEN = """
import os
for flags in (os.O_RDONLY, os.O_RDWR):
    try:
        os.close(os.open(os.environ["TERRACE_LEASE_PATH"], flags))
        print("opened")
    except OSError as error:
        print(error.strerror)
"""
HOLD = """
import mmap, os, sys, time
memory = mmap.mmap(os.open(os.environ["TERRACE_LEASE_PATH"], os.O_RDWR), 0)
print("mapped", flush=True)
while True:
    memory[0] = 1
    time.sleep(0.01)
"""
HOLD_DESCRIPTOR = HOLD.replace('os.open(os.environ["TERRACE_LEASE_PATH"], os.O_RDWR)', "int(sys.argv[1])")
YIELD = """
import mmap, os, time
file = os.open(os.environ["TERRACE_LEASE_PATH"], os.O_RDWR)
memory = mmap.mmap(file, 0)
print("mapped", flush=True)
end = time.time() + 60
while os.fstat(file).st_mtime <= time.time():
    memory[0] = 1
    time.sleep(0.01)
    if time.time() > end:
        raise SystemExit("it was not shown")
raise SystemExit(42)
"""
EAT = "print(len(bytearray(b'x') * (160 << 20)))"


class Podman:
    """podman with a storage of its own."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-podman-"))
        self.started = 0
        self.words = ["podman", "--root", self.folder / "root", "--runroot", self.folder / "run",
                      "--cgroup-manager=cgroupfs", "--log-level=error"]

    def command(self, program, *options, environment=()):
        self.started += 1
        mounts = [word for folder in {str(pathlib.Path(one).parent) for one in PROGRAMS}
                  for word in ("-v", f"{folder}:{folder}:ro")]
        # crun refuses hybrid cgroups; the limits are asked for because podman would raise what it may not.
        return [str(word) for word in [
            *self.words, "run", "--rm", "--runtime", "runc", "--network", "none", "--pids-limit=-1",
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", *mounts, *options,
            *(word for one in environment for word in ("-e", one)), "--rootfs", "/:O", *program]]

    def run(self, program, *options, environment=(), timeout=180):
        return subprocess.run(self.command(program, *options, environment=environment), text=True, capture_output=True,
                              check=False, timeout=timeout, cwd="/")

    def close(self):
        subprocess.run([*map(str, self.words), "rm", "--all", "--force", "--time", "0"], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class PrivatePodman(Podman):
    """podman in mounts of its own. Where it sees one hierarchy of cgroups only, crun starts containers too: it refuses the two kinds
    beside each other that this machine may have. `user`: who runs it, with 65,536 further ids from FIRST_ID on."""

    MOUNTS = """
mount --make-rprivate /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$0/ids" /etc/subuid
mount --bind "$0/ids" /etc/subgid
exec "$@"
"""
    FIRST_ID = 200_000

    def __init__(self, runtime, user=None):
        super().__init__()
        self.user = user
        root = self.folder / "rootfs"  # what an overlay over / would be to root; a user has none of that
        for name in ("usr", "proc", "sys", "dev", "tmp", "etc", "run", "var", "home", "runtime"):
            (root / name if name not in ("home", "runtime") else self.folder / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            (root / name).symlink_to(f"usr/{name}")
        (self.folder / "ids").write_text(f"{pwd.getpwuid(user or 0).pw_name}:{self.FIRST_ID}:65536\n")
        for path in (self.folder, *self.folder.rglob("*")):
            if user is not None:
                os.chown(path, user, user, follow_symlinks=False)
        (self.folder / "runtime").chmod(0o700)
        who = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        # Limits and cgroups need rights that root on this machine may not have.
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--ulimit", "memlock=65536:65536", "--cgroups=disabled"]
        # Of a process namespace each: a user's podman leaves one that keeps its namespaces, which ends with it.
        self.words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", self.MOUNTS, self.folder, *who, "env", f"HOME={self.folder}/home",
                      f"XDG_RUNTIME_DIR={self.folder}/runtime", *self.words]
        self.options = ["run", "--rm", "--runtime", runtime, "--network", "none", "--pids-limit=-1", "-v", "/usr:/usr:ro",
                        *(limits if user is None else [])]

    def command(self, program, *options, environment=()):
        return [str(word) for word in [*self.words, *self.options, *options, *(word for one in environment for word in ("-e", one)),
                                       "--rootfs", self.folder / "rootfs", *program]]


PROGRAMS = []  # what containers run of the build


def private_podmans(user=None):
    """One for each runtime that starts containers here, and why the others do not."""
    started, reasons = [], []
    for runtime in ("crun", "runc") if user is not None else ("crun",):  # runc is root's in the other tests
        if shutil.which(runtime) is None:
            reasons.append(f"{runtime} is not installed")
            continue
        podman = PrivatePodman(runtime, user)
        tried = podman.run(["/bin/true"])
        if tried.returncode == 0:
            started.append((runtime, podman))
        else:
            reasons.append(f"{runtime}: {tried.stderr.strip()[-200:]}")
            podman.close()
    return started, "; ".join(reasons)


def why_not():
    if os.geteuid() != 0:
        return "podman and its mounts need root here"
    missing = [name for name in ("podman", "runc") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    podman = Podman()
    try:
        tried = podman.run(["/bin/true"])
    finally:
        podman.close()
    return f"podman starts no container here: {tried.stderr.strip()[-200:]}" if tried.returncode else ""


class WithLeases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.t = Harness(name="cdi", devices={"a": "512M"})
        cls.addClassCleanup(cls.t.close)
        cls.t.directory.chmod(0o755)
        cls.tenant_socket = cls.t.directory / "training" / "terraced.sock"
        cls.other_socket = cls.t.directory / "serving" / "terraced.sock"
        for socket in (cls.tenant_socket, cls.other_socket):
            socket.parent.mkdir()
        config = cls.t.directory / "terraced.toml"
        config.write_text("".join(f'[[sockets]]\npath = "{socket}"\ntenant = "{socket.parent.name}"\n'
                                  for socket in (cls.tenant_socket, cls.other_socket)))
        cls.t.daemon_args += ["--config", str(config)]
        cls.t.start()
        cls.t.create_pool("p")
        PROGRAMS[:] = [cls.t.terrace, harness.find_binary("libterrace_malloc.so")]

    def grant(self, name, size="8M", *options):
        """The label of a new lease of training; it and its description go with the test."""
        label = f"t{os.getpid()}-{name}"
        lease = self.t.grant(size, "p", "--persistent", "--label", label, "--tenant", "training", *options)
        self.addCleanup(lambda: self.t.cli("lease", "release", lease["id"], check=False))
        self.addCleanup(lambda: self.t.cli("lease", "cdi", lease["id"], "--remove", check=False))
        return label, lease["id"]

    def cdi(self, label, *options):
        return self.t.cli("lease", "cdi", label, "--tenant", "training", *options).json

    def offered(self, name, size="8M", *options):
        label, _ = self.grant(name, size)
        return label, self.cdi(label, *options)["device"]

    def read(self, label, length):
        with open(self.t.cli("lease", "path", label, "--tenant", "training").json["path"], "rb") as file:
            return file.read(length)

    def start(self, program, *options, environment=(), podman=None):
        process = subprocess.Popen((podman or self.podman).command(program, *options, environment=environment), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
        self.addCleanup(lambda: [one.close() for one in (process.stdout, process.stderr)])
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process



class Private(WithLeases):
    """crun beside runc, and podman of a user."""
    USER = 65534

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.t.directory.chmod(0o755)

    def podmans(self, user=None):
        started, reason = private_podmans(user)
        if not started:
            self.skipTest(f"podman starts no container so: {reason}")
        if reason:
            print(f"not tried: {reason}", file=sys.stderr)
        for _, podman in started:
            self.addCleanup(podman.close)
        return started

    def check(self, runtime, podman, user):
        label, _ = self.grant(f"{runtime}-{user}", "8M")
        device = self.cdi(label, *(("--user", user) if user else ()))["device"]
        ran = podman.run([PYTHON, "-c", WRITE_ALL], "--device", device)
        self.assertEqual((ran.returncode, ran.stdout), (0, f"wrote {8 * MIB}\n"), ran.stderr)
        self.assertEqual(self.read(label, 5), b"there")
        process = self.start([PYTHON, "-u", "-c", YIELD], "--device", device, podman=podman)
        self.assertEqual(process.stdout.readline(), "mapped\n", process.stderr)
        self.t.cli("lease", "revoke", label, "--grace", "1h", "--reason", "drill")
        self.assertEqual(process.wait(120), 42, process.stderr.read())
        wait_until(lambda: label not in {lease["label"] for lease in self.t.leases().values()}, 60, "the lease goes")
        fenced, _ = self.grant(f"{runtime}-{user}-fenced", "8M")
        device = self.cdi(fenced, *(("--user", user) if user else ()))["device"]
        process = self.start([PYTHON, "-u", "-c", HOLD], "--device", device, podman=podman)
        self.assertEqual(process.stdout.readline(), "mapped\n", process.stderr)
        self.t.cli("lease", "revoke", fenced, "--grace", "0s")
        self.assertEqual(process.wait(120), SIGBUS_EXIT, process.stderr.read())

    def test_each_runtime(self):
        for runtime, podman in self.podmans():
            self.check(runtime, podman, None)

    def test_a_user_who_is_not_root(self):
        for runtime, podman in self.podmans(self.USER):
            self.check(runtime, podman, self.USER)

    def test_ids_of_a_users_container_are_mapped(self):
        for runtime, podman in self.podmans(self.USER):
            label, _ = self.grant(f"{runtime}-ids", "8M")
            device = self.cdi(label, "--user", self.USER)["device"]
            ran = podman.run([PYTHON, "-c", OPEN], "--device", device, "--user", "5")
            self.assertEqual(ran.stdout, "Permission denied\nPermission denied\n", ran.stderr)
            self.cdi(label, "--user", podman.FIRST_ID + 4)  # id 0 is the user, 1 the first of the further ones
            ran = podman.run([PYTHON, "-c", OPEN], "--device", device, "--user", "5")
            self.assertEqual(ran.stdout, "opened\nopened\n", ran.stderr)


class Documented(WithLeases):
    def test_from_a_bare_machine_to_a_container(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        lines = documented.commands("operations/programs.md", "A lease in a container")
        self.assertLessEqual(documented.count(lines), 10)
        installs, starts, *lines = lines  # what the harness stands for
        self.assertRegex(installs, "^apt-get install podman .*terraced.*terrace-cli")
        self.assertEqual(starts, "systemctl enable --now terraced")
        podman = Podman()
        self.addCleanup(podman.close)
        t = Harness(name="cdi", devices={"a": "128M"})
        self.addCleanup(t.close)
        t.start()
        self.addCleanup(t.cli, "lease", "cdi", f"t{os.getpid()}-first", "--remove", check=False)
        run = shlex.join(podman.command([], *("--rm",))[:-2])  # what this machine needs beside the page's words
        places = {"SERIAL": "emu:a", "first": f"t{os.getpid()}-first", "podman run --rm": run, "IMAGE": "--rootfs /:O"}
        environment = t.environment(PATH=f"{pathlib.Path(t.terrace).parent}:{os.environ['PATH']}")
        for line in lines:
            for written, here in places.items():
                line = line.replace(written, here)
            done = subprocess.run(["sh", "-c", line], env=environment, text=True, capture_output=True, check=False, timeout=180, cwd="/")
            self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}{done.stderr}")
        self.assertRegex(done.stdout, rf"^-rw\S* .* {64 * MIB} .*/run/terrace-lease/")


class Containers(WithLeases):
    @classmethod
    def setUpClass(cls):
        cls.podman = Podman()
        cls.addClassCleanup(cls.podman.close)
        super().setUpClass()

    def test_a_program_in_a_container_maps_the_lease_and_the_manager_pays(self):
        label, device = self.offered("model", "128M")
        self.assertEqual(device, f"terrace.dev/lease={label}")
        ran = self.podman.run([PYTHON, "-c", WRITE_ALL], "--device", device, "--memory", "64m", "--memory-swap", "64m")
        self.assertEqual((ran.returncode, ran.stdout), (0, f"wrote {128 * MIB}\n"), ran.stderr)
        self.assertEqual(self.read(label, 5), b"there")
        # The bound was one: as much memory of its own ends the container.
        ate = self.podman.run([PYTHON, "-c", EAT], "--memory", "64m", "--memory-swap", "64m")
        self.assertEqual(ate.returncode, KILLED, ate.stderr)

    def test_read_only_is_read_only(self):
        _, device = self.offered("weights", "8M", "--ro")
        ran = self.podman.run([PYTHON, "-c", OPEN], "--device", device)
        self.assertEqual(ran.stdout, "opened\nRead-only file system\n", ran.stderr)

    def test_a_user_in_the_container_needs_to_be_named(self):
        label, device = self.offered("users")
        ran = self.podman.run([PYTHON, "-c", OPEN], "--device", device, "--user", "12345")
        self.assertEqual(ran.stdout, "Permission denied\nPermission denied\n", ran.stderr)
        self.cdi(label, "--user", "12345")
        ran = self.podman.run([PYTHON, "-c", OPEN], "--device", device, "--user", "12345")
        self.assertEqual(ran.stdout, "opened\nopened\n", ran.stderr)

    def test_a_fence_reaches_into_the_container(self):
        label, device = self.offered("fenced")
        process = self.start([PYTHON, "-u", "-c", HOLD], "--device", device)
        self.assertEqual(process.stdout.readline(), "mapped\n", process.stderr)
        self.t.cli("lease", "revoke", label, "--grace", "0s")
        self.assertEqual(process.wait(120), SIGBUS_EXIT, process.stderr.read())
        again = self.podman.run(["/bin/true"], "--device", device)
        self.assertNotEqual(again.returncode, 0, "what is gone starts no container")

    def test_the_socket_gives_a_tenants_rights_to_the_containers_root(self):
        label, device = self.offered("socket", "8M", "--tenant-socket", self.tenant_socket)
        _, theirs = self.grant("other")
        def terrace(*words):
            ran = self.podman.run([self.t.terrace, "--json", *words], "--device", device, environment=self.sanitizer())
            return ran.returncode, json.loads(ran.stdout)
        code, listed = terrace("lease", "list")
        self.assertEqual((code, {lease["tenant"] for lease in listed["leases"]}), (0, {"training"}))
        self.assertIn(label, {lease["label"] for lease in listed["leases"]})
        for words in (("device", "list"), ("pool", "create", "q", "--device", "emu:a"), ("quota", "set", "training", "--bytes", "1T"),
                      ("lease", "grant", "--size", "2M", "--tenant", "serving"), ("lease", "path", label, "--user", "7")):
            with self.subTest(words):
                code, error = terrace(*words)
                self.assertEqual(code, DENIED, error)

    def sanitizer(self):
        return [f"{name}={os.environ[name]}" for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ]

    def test_notices_and_a_restart_of_the_manager_reach_a_container(self):
        label, device = self.offered("notice", "8M", "--tenant-socket", self.tenant_socket)
        process = self.start([self.t.terrace, "lease", "exec", label, "--", PYTHON, "-u", "-c", HOLD_DESCRIPTOR, "{fd}"],
                             "--device", device, environment=self.sanitizer())
        self.assertEqual(process.stdout.readline(), "mapped\n")
        self.t.kill()
        self.t.start()
        lease = lambda: next(one for one in self.t.leases().values() if one["label"] == label)
        wait_until(lambda: lease()["holders"] == 1, 120, "the container's session is back")
        self.t.cli("lease", "revoke", label, "--grace", "2s", "--reason", "drill")
        self.assertEqual(process.wait(120), SIGBUS_EXIT)
        self.assertIn("is being taken back in 2 s: drill", process.stderr.read())

    def test_terrace_run_in_a_container_is_seen_outside(self):
        label, device = self.offered("run", "8M", "--tenant-socket", self.tenant_socket)
        program = "import time; kept = [bytearray(1 << 20) for _ in range(24)]; print('ready', flush=True); time.sleep(600)"
        process = self.start([self.t.terrace, "run", "--cxl", "64M", "--ddr", "8M", "--", PYTHON, "-c", program],
                             "--device", device, environment=self.sanitizer())
        self.assertEqual(process.stdout.readline(), "ready\n", process.stderr)
        def reported():
            runs = self.t.cli("top", "--once").json["reported_runs"]
            return [run for run in runs if run["tenant"] == "training" and run["figures"]["cxl_bytes"] >= 16 * MIB]
        wait_until(reported, 120, "the run's figures")
        process.terminate()
        process.wait(60)
        wait_until(lambda: not [one for one in self.t.leases().values() if one["label"] != label], 120, "the run's leases go")

    def test_what_cannot_be(self):
        label, lease = self.grant("wrong")
        def refused(*words, code, contains):
            done = self.t.cli("lease", "cdi", label, "--tenant", "training", *words, check=code)
            self.assertIn(contains, done.json["error"]["message"])
        refused("--tenant-socket", self.t.socket, code=DENIED, contains="has the role by-uid")
        refused("--tenant-socket", self.other_socket, code=DENIED, contains="the socket of tenant serving")
        refused("--tenant-socket", self.t.directory / "none", code=5, contains="none")
        refused("--name", "a b", code=USAGE, contains="cannot name a device")
        refused("--directory", "here", code=USAGE, contains="absolute path")
        refused("--remove", code=NOT_FOUND, contains="nothing was removed")
        self.cdi(label)
        second, _ = self.grant("second")
        done = self.t.cli("lease", "cdi", second, "--tenant", "training", "--name", label, check=CONFLICT)
        self.assertIn("has a device", done.json["error"]["message"])
        removed = self.t.cli("lease", "cdi", label, "--remove").json
        self.assertEqual((removed["id"], os.path.exists(removed["removed"])), (lease, False))


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    harness.main()
