# SPDX-License-Identifier: Apache-2.0
"""`terrace run` with a real daemon: what the shim tests do over a fake pool, here end to end.

By hand: TERRACE_BUILD_DIR=build/dev tests/integration/shim/run_test.py [Class[.test]]
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from terrace_harness import Harness, find_binary, process_alive, wait_until  # noqa: E402

PYTHON = "/usr/bin/python3"
CASES = "tests/integration/shim/"  # below the build directory


class RunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.t = Harness(devices={"a": "256M", "b": "256M"}, name="run",
                        env={"TERRACE_MALLOC_LIBRARY": find_binary("libterrace_heap.so")})
        cls.addClassCleanup(cls.t.close)
        cls.t.env["XDG_RUNTIME_DIR"] = str(cls.t.directory)  # a supervisor that is killed leaves its socket there
        cls.t.start()
        cls.t.create_pool("p")

    def run_program(self, *command, options=(), check=True, **more):
        stats = self.t.directory / "stats.json"
        stats.unlink(missing_ok=True)
        result = self.t.cli("run", "--stats", stats, *options, "--", *command, json=False, check=check, **more)
        result.stats = json.loads(stats.read_text()) if stats.exists() else None
        return result

    # -- what the program sees and what is left

    def test_leases_come_and_go_with_the_program(self):
        result = self.run_program(PYTHON, "-c", "a=[bytearray(b'x')*(1<<20) for _ in range(150)];print(sum(len(b) for b in a))",
                                  options=("--ddr", "16M", "--cxl", "300M"))
        self.assertEqual(result.out, f"{150 << 20}\n")
        self.assertGreater(result.stats["cxl"]["allocations"], 100)
        self.assertEqual(result.stats["cxl"]["leases_granted"], result.stats["cxl"]["leases_released"])
        self.assertEqual(self.t.active_leases(), {})
        self.t.wait_free()

    def test_code_in_leased_memory(self):
        # The manager's mounts are noexec. Once on mappings that the window serves, once on blocks of malloc.
        for way in ("name", "number"):
            self.run_program(find_binary(CASES + "shim_memory_cases"), "executable", way, options=("--ddr", "0", "--cxl", "200M"))

    def test_memory_of_mmap_is_in_the_budgets(self):
        script = "import mmap;a=[mmap.mmap(-1,4<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS) for _ in range(20)];[b.write(b'x'*(4<<20)) for b in a];print(sum(len(b) for b in a))"
        for option, served in (("1M", True), ("off", False)):
            result = self.run_program(PYTHON, "-c", script, options=("--ddr", "16M", "--cxl", "200M", "--mmap", option,
                                                                     "--policy", "static"))
            self.assertEqual(result.out, f"{80 << 20}\n")
            self.assertEqual(result.stats["peak_live_bytes"] > 80 << 20, served, result.stats)
        for wrong in ("4K", "much"):
            self.assertIn("off", self.t.cli("run", "--mmap", wrong, "--", "/bin/true", json=False, check=2).err)

    def test_exit_codes_are_the_programs(self):
        self.assertEqual(self.run_program("/bin/sh", "-c", "exit 7", options=("--cxl", "64M"), check=7).code, 7)
        self.run_program("/bin/sh", "-c", "kill -KILL $$", options=("--cxl", "64M"), check=128 + 9)

    def test_arguments_and_environment_reach_the_program(self):
        result = self.run_program(PYTHON, "-c", "import sys,os;print(sys.argv[1:], os.environ['MARK'])", "--json", "-x", "--",
                                  "a b", "", options=("--cxl", "64M"), env={"MARK": "here"})
        self.assertEqual(result.out, "['--json', '-x', '--', 'a b', ''] here\n")

    def test_an_existing_preload_stays(self):
        result = self.run_program("/bin/sh", "-c", "echo $LD_PRELOAD", options=("--cxl", "64M"),
                                  env={"LD_PRELOAD": "libm.so.6", "ASAN_OPTIONS": "verify_asan_link_order=0"})
        first, second = result.out.strip().split(":")
        self.assertTrue(first.endswith("/libterrace_heap.so"))
        self.assertEqual(second, "libm.so.6")

    # -- what is refused, and how it is said

    def test_mistakes_are_said_before_anything_starts(self):
        plain_script = self.t.directory / "script"
        plain_script.write_text("echo hello\n")
        plain_script.chmod(0o755)
        for command, options, code, text in (
                (("/nonexistent/program",), ("--cxl", "64M"), 127, "no program"),
                (("/etc/passwd",), ("--cxl", "64M"), 126, "not an executable"),
                ((plain_script,), ("--cxl", "64M"), 126, "#! line"),
                (("true",), ("--cxl", "64M", "--label", "a\nb"), 2, "printable UTF-8"),
                (("true",), ("--cxl", "64M", "--label", "x" * 121), 2, "printable UTF-8"),
                (("true",), ("--cxl", "64M", "--pool", "zz"), 125, "no pool 'zz'; there is p"),
                (("true",), ("--cxl", "0", "--ddr", "0"), 2, "budgets are 0"),
                (("true",), ("--cxl", "12 apples"), 2, "apples")):
            with self.subTest(command=command, options=options):
                result = self.run_program(*command, options=options, check=False)
                self.assertNotEqual(result.code, 0)
                self.assertIn(text, result.err + result.out)
                self.assertEqual(result.code, code, result)

    def test_a_file_that_cannot_be_written_is_said_first(self):
        ran = self.t.directory / "ran"
        for path, text in (("/nonexistent/stats.json", "No such file"), (self.t.directory, "is a directory")):
            result = self.t.cli("run", "--cxl", "64M", "--stats", path, "--", "touch", ran, json=False, check=2)
            self.assertIn(text, result.err)
        self.assertFalse(ran.exists())

    def test_programs_that_cannot_be_served_run_without_us(self):
        source = self.t.directory / "static.c"
        source.write_text('#include <stdio.h>\nint main(void) { puts("static"); return 4; }\n')
        static = self.t.directory / "static"
        if subprocess.run(["gcc", "-static", str(source), "-o", str(static)], check=False, capture_output=True).returncode:
            self.skipTest("no static C library")
        result = self.run_program(static, options=("--cxl", "64M"), check=4)
        self.assertEqual(result.out, "static\n")
        self.assertIn("statically linked", result.err)
        self.assertFalse(result.stats["supervised"])

    def test_allocator_inside_is_seen(self):
        program = self.t.directory / "own"
        source = self.t.directory / "own.c"
        source.write_text('#include <stdio.h>\nconst char text[] = "<jemalloc>: Out of memory";\n'
                          'int main(void) { return puts(text) < 0; }\n')
        subprocess.run(["gcc", str(source), "-o", str(program)], check=True)
        result = self.run_program(program, options=("--cxl", "64M"))
        self.assertIn("brings its own allocator inside (jemalloc)", result.err)

    def test_terrace_itself_has_no_allocator_inside(self):
        result = self.run_program(self.t.terrace, "--version", options=("--cxl", "64M"),
                                  env={"ASAN_OPTIONS": "verify_asan_link_order=0"})
        self.assertNotIn("brings its own allocator", result.err)
        sanitized = b"__asan_init" in pathlib.Path(self.t.terrace).read_bytes()
        self.assertEqual("AddressSanitizer" in result.err, sanitized)
        self.assertEqual(result.stats["supervised"], not sanitized)

    def test_a_program_with_a_strange_name_gets_its_memory(self):
        strange = self.t.directory / "na\nme\x7f"
        strange.symlink_to(PYTHON)
        result = self.run_program(strange, "-c", "print(len(bytearray(20<<20)))", options=("--ddr", "0", "--cxl", "64M"))
        self.assertEqual(result.out, f"{20 << 20}\n")

    def test_without_a_daemon(self):
        nowhere = {"TERRACE_SOCKET": str(self.t.directory / "nowhere.sock")}
        result = self.run_program("true", options=("--cxl", "64M"), check=125, env=nowhere)
        self.assertIn("no manager", result.err)
        result = self.run_program(PYTHON, "-c", "print(len(bytearray(200<<20)))", env=nowhere,
                                  options=("--cxl", "64M", "--ddr", "16M", "--fallback"))
        self.assertEqual(result.out, f"{200 << 20}\n")
        self.assertGreater(result.stats["fallbacks"], 0)
        result = self.run_program(PYTHON, "-c", "print(len(bytearray(10<<20)))", options=("--cxl", "0", "--ddr", "64M"),
                                  env=nowhere)
        self.assertEqual(result.stats["ddr"]["allocations"] > 0, True)

    # -- what happens meanwhile

    def start(self, *command, options=()):
        process = self.t.popen(self.t.terrace, "run", *options, "--", *command, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)

        def end():
            if process.poll() is None:
                process.terminate()
                process.wait(30)
            process.stdout.close()
            process.stderr.close()
        self.addCleanup(end)
        return process

    def test_a_revoked_lease_is_announced(self):
        script = "import time\na=[bytearray(b'r')*(1<<20) for _ in range(40)]\nprint('ready',flush=True)\ntime.sleep(60)"
        process = self.start(PYTHON, "-c", script, options=("--ddr", "0", "--cxl", "64M", "--label", "victim"))
        self.assertEqual(process.stdout.readline(), "ready\n")
        lease = next(iter(self.t.leases().values()))
        self.assertEqual(lease["label"], "victim")
        self.t.cli("lease", "revoke", lease["id"], "--grace", "30s", "--reason", "maintenance")
        line = process.stderr.readline()
        self.assertRegex(line, r"terrace: python3.*\[\d+\]: lease %d \(victim\) is being taken back in .*maintenance.*does not move now" % lease["id"])
        process.terminate()
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
        wait_until(lambda: not self.t.leases(), 30, "the revoked lease to go")

    @unittest.skipUnless(os.path.exists("/dev/userfaultfd"), "this kernel has no /dev/userfaultfd")
    def test_memory_moves_out_of_a_revoked_lease(self):
        # More than the DDR budget: it goes beyond, since the machine has room.
        script = ("import sys\na=[bytearray(bytes([i])*(1<<20)) for i in range(150)]\nprint('ready',flush=True)\n"
                  "sys.stdin.readline()\nfor i,b in enumerate(a):\n  assert b.count(i)==1<<20, i\n"
                  "b=[bytearray(b'n'*(1<<20)) for _ in range(60)]\na.clear()\nb.clear()\n"
                  "c=[bytearray(b'm'*(1<<20)) for _ in range(150)]\nprint(sum(x.count(b'm') for x in c)>>20,flush=True)")
        stats = self.t.directory / "revoked.json"
        process = self.t.popen(self.t.terrace, "run", "--ddr", "32M", "--cxl", "400M", "--stats", stats, "--stats-interval", "0.2",
                               "--label", "moved", "--", PYTHON, "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()) if process.poll() is None else None)
        self.assertEqual(process.stdout.readline(), "ready\n")
        wait_until(lambda: stats.exists() and any(one["migration"] == "running"
                                                  for one in json.loads(stats.read_text())["process_list"]), 30, "the engine")
        leases = [lease["id"] for lease in self.t.leases().values() if lease["label"].startswith("moved")]
        self.assertGreaterEqual(len(leases), 2)
        for lease in leases:
            self.t.cli("lease", "revoke", lease, "--grace", "60s", "--reason", "maintenance")
        # Long before the grace ends they are given back, and the program never notices.
        wait_until(lambda: not set(leases) & {lease["id"] for lease in self.t.leases().values()}, 50, "the leases to go back")
        out, err = process.communicate("go\n", timeout=60)
        self.assertEqual((process.returncode, out), (0, "150\n"), err)
        self.assertIn("moves to DDR, also beyond the budget", err)
        self.assertEqual(err.count("has moved out of lease"), len(leases), err)
        self.assertNotIn("SIGBUS", err)
        migration = json.loads(stats.read_text())["migration"]
        self.assertEqual(migration["leases_left"], len(leases))
        self.assertGreaterEqual(migration["left_bytes"], 100 << 20)

    # When the notice comes nothing moves, for the child's sake; once it is gone the program is asked again.
    @unittest.skipUnless(os.path.exists("/dev/userfaultfd"), "this kernel has no /dev/userfaultfd")
    def test_memory_moves_out_of_a_revoked_lease_once_a_child_is_gone(self):
        script = (self.BLOCKS % 100 + "import os,sys,time\nprint('ready',flush=True)\nsys.stdin.readline()\n"
                  "child=os.fork()\nif child==0:\n  time.sleep(4)\n  os._exit(0)\nprint('forked',flush=True)\nos.waitpid(child,0)\n"
                  "sys.stdin.readline()\nprint(sum(b.count(b'x') for b in a)>>20,flush=True)\n")
        process, told = self.documents(script, "--ddr", "32M", "--cxl", "400M", "--label", "later")

        def is_in(state):
            return any(one["migration"] == state for one in told()["process_list"])

        wait_until(lambda: is_in("running"), 60, "the engine")
        leases = [lease["id"] for lease in self.t.leases().values() if lease["label"].startswith("later")]
        self.assertGreaterEqual(len(leases), 1)
        process.stdin.write("fork\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), "forked\n")
        wait_until(lambda: is_in("forked"), 60, "what the fork does to the engine")
        for lease in leases:
            self.t.cli("lease", "revoke", lease, "--grace", "100s", "--reason", "maintenance")
        wait_until(lambda: not set(leases) & {lease["id"] for lease in self.t.leases().values()}, 80, "the leases to go back")
        out, err = process.communicate("go\n", timeout=60)
        self.assertEqual((process.returncode, out), (0, "100\n"), err)
        self.assertIn("does not move now", err)
        self.assertIn("moves again", err)

    def documents(self, script, *options, wrap=()):
        """A run of a script that waits for its standard input; what --stats says of it, as often as one asks."""
        stats = self.t.directory / "told.json"
        stats.unlink(missing_ok=True)
        process = self.t.popen(self.t.terrace, "run", *options, "--stats", stats, "--stats-interval", "0.2", "--", *wrap, PYTHON,
                               "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()) if process.poll() is None else process.communicate())
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process, lambda: json.loads(stats.read_text()) if stats.exists() else {"process_list": [], "run": {}}

    BLOCKS = "a=[bytearray(b'x'*(1<<20)) for _ in range(%d)]\n"
    WAIT = "print('ready',flush=True)\nimport sys\nsys.stdin.readline()\n"

    def top(self):
        return self.t.cli("top", "--once", "--processes", json=False, env={"COLUMNS": "250"}).out.splitlines()

    def end(self, process):
        process.stdin.write("go\n")
        process.stdin.flush()
        self.assertEqual(process.wait(60), 0)

    def test_memory_in_neither_budget_is_told(self):
        script = ("import ctypes\nc=ctypes.CDLL(None)\nc.mmap.restype=ctypes.c_void_p\n"
                  "at=c.mmap(None,ctypes.c_size_t(120<<20),3,0x22,-1,0)\nctypes.memset(ctypes.c_void_p(at),1,120<<20)\n")
        process, told = self.documents(self.BLOCKS % 40 + script + self.WAIT, "--ddr", "16M", "--cxl", "64M")

        def outside():
            running = [one for one in told()["process_list"] if one["running"]]
            return running[0]["memory"]["outside_bytes"] if len(running) == 1 else 0
        wait_until(lambda: 120 << 20 <= outside() <= 200 << 20, 30, "what lies outside")
        wait_until(lambda: any("OUTSIDE" in line for line in self.top()), 30, "the column of top")
        self.end(process)

    def test_processes_without_the_window_are_told(self):
        # The child is started without the library.
        script = ("import subprocess,os\nenv=dict(os.environ)\nenv.pop('LD_PRELOAD')\n"
                  "p=subprocess.Popen(['/usr/bin/python3','-c','b=bytearray(b\"z\"*(90<<20));print(1,flush=True);input()'],env=env,"
                  "stdin=subprocess.PIPE,stdout=subprocess.PIPE)\np.stdout.readline()\n")
        process, told = self.documents(self.BLOCKS % 40 + script + self.WAIT + "p.communicate(b'x\\n')", "--ddr", "16M", "--cxl", "64M")
        wait_until(lambda: told()["run"].get("other_processes") == 1 and told()["run"]["other_bytes"] >= 90 << 20, 30, "the other one")
        self.end(process)

    @unittest.skipUnless(os.path.exists("/dev/userfaultfd"), "this kernel has no /dev/userfaultfd")
    def test_why_memory_does_not_move_is_told(self):
        fork = "import os,time\nr,w=os.pipe()\nif os.fork()==0:\n  os.close(w)\n  os.read(r,1)\n  os._exit(0)\nos.close(r)\n"
        lock = "import ctypes\nassert ctypes.CDLL(None).mlockall(2)==0\n"  # MCL_FUTURE
        # One line of BPF that allows everything.
        confine = ("import ctypes,struct\nc=ctypes.CDLL(None)\nb=ctypes.create_string_buffer(struct.pack('HBBI',6,0,0,0x7fff0000))\n"
                   "p=ctypes.create_string_buffer(struct.pack('@HQ',1,ctypes.addressof(b)))\n"
                   "assert c.prctl(38,1,0,0,0)==0 and c.prctl(22,2,p)==0\n")
        for what, policy, reason in ((fork, "benefit-density", "private since a fork, until its child ends"),
                                     (lock, "benefit-density", "mlockall"),
                                     (confine, "benefit-density", "filters its system calls"), ("", "static", "the policy is static")):
            with self.subTest(reason=reason):
                # First it moves: the engine has begun.
                script = self.BLOCKS % 60 + self.WAIT + what + self.WAIT
                process, told = self.documents(script, "--ddr", "16M", "--cxl", "128M", "--policy", policy)

                def states(key):
                    return [one[key] for one in told()["process_list"] if one["running"]]
                if policy != "static":
                    wait_until(lambda: states("migration") == ["running"], 30, "the engine")
                    self.assertEqual(states("migration_reason"), [None])
                process.stdin.write("go\n")
                process.stdin.flush()
                self.assertEqual(process.stdout.readline(), "ready\n")
                wait_until(lambda: any(reason in (one or "") for one in states("migration_reason")), 30, "the reason")
                wait_until(lambda: any("does not move: " in line and reason in line for line in self.top()), 30, "its line in top")
                self.end(process)

    def test_a_killed_supervisor_ends_the_program(self):
        script = ("import os,time\na=[bytearray(b'r')*(1<<20) for _ in range(40)]\nprint(os.getpid(),flush=True)\ntime.sleep(60)")
        process = self.start(PYTHON, "-c", script, options=("--ddr", "0", "--cxl", "64M", "--ttl", "2s"))
        pid = int(process.stdout.readline())
        process.kill()
        wait_until(lambda: not process_alive(pid), 10, "the program's end")
        wait_until(lambda: not self.t.leases(), 30, "the lease to lapse")

    def test_redis_never_notices_a_daemon_that_is_killed(self):
        if shutil.which("redis-server") is None:
            self.skipTest("no redis-server")
        path = self.t.directory / "redis.sock"
        process = self.start("redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir",
                             self.t.directory, options=("--ddr", "16M", "--cxl", "256M", "--ttl", "3s"))
        # Its log lines must not fill the pipe: read on another thread's behalf by communicate() at the end is
        # enough, it writes some 20 lines.
        wait_until(path.exists, 30, "redis")
        link = socket.socket(socket.AF_UNIX)
        self.addCleanup(link.close)
        link.connect(str(path))
        stream = link.makefile("rb")
        self.addCleanup(stream.close)

        def command(*words):
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            line = stream.readline()
            self.assertNotEqual(line[:1], b"-", line)
            return stream.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" else line[1:-2]

        def value(key):
            return hashlib.sha256(str(key).encode()).digest() * 4096  # 128 KiB
        for key in range(600):
            command("SET", key, value(key))
            if key == 300:
                self.t.kill()
            if key == 400:
                self.t.start()
        for key in range(600):
            self.assertEqual(command("GET", key), value(key), key)

        def used():
            leases = [self.t.cli("lease", "show", lease).json for lease in self.t.leases()]
            reports = [lease["leases"][0] if "leases" in lease else lease.get("lease", lease) for lease in leases]
            return [report["usage"] for report in reports if (report.get("usage") or {}).get("holder", "").startswith("redis-server")]
        # A report may be one of while the keys were still being set.
        wait_until(lambda: sum(usage["cxl_bytes"] for usage in used()) > 50 << 20, 20, "a report of the CXL memory in use")
        wait_until(lambda: sum(usage["ddr_bytes"] for usage in used()) > 8 << 20, 20, "a report of the DDR in use")
        time.sleep(4)  # past the TTL that was running when the daemon was killed
        for key in range(0, 600, 7):
            self.assertEqual(command("GET", key), value(key), key)
        process.terminate()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        wait_until(lambda: not self.t.leases(), 30, "the leases to be released")


class DefaultSizes(unittest.TestCase):
    """Runs whose command line leaves sizes open."""

    BLOCKS = "a=[bytearray(b'x'*(1<<20)) for _ in range(%d)];print(sum(b.count(b'x') for b in a)>>20)"

    @classmethod
    def setUpClass(cls):
        cls.t = Harness(devices={"a": "256M", "b": "192M", "c": "64M"}, name="sizes",
                        env={"TERRACE_MALLOC_LIBRARY": find_binary("libterrace_heap.so")})
        cls.addClassCleanup(cls.t.close)
        cls.t.start()
        cls.t.create_pool("large", ["a", "b"])
        cls.t.create_pool("small", ["c"])

    def blocks(self, count, *options, check=0, env=None, wrap=()):
        stats = self.t.directory / "sizes.json"
        stats.unlink(missing_ok=True)
        result = self.t.cli("run", "--stats", stats, *options, "--", *wrap, PYTHON, "-c", self.BLOCKS % count, json=False,
                            check=False, env=env)
        self.assertEqual(result.code, check, result)
        if check == 0:
            self.assertEqual(result.out, f"{count}\n")
        result.stats = json.loads(stats.read_text()) if stats.exists() else None
        return result

    def test_nothing_given(self):
        result = self.blocks(1500)
        stats = result.stats
        self.assertEqual(result.err, "")
        self.assertEqual((stats["ddr"]["budget_from"], stats["cxl"]["budget_from"], stats["run"]["fallback"]), ("machine", "pool", True))
        self.assertEqual((stats["run"]["pool"], stats["cxl"]["budget_bytes"]), ("large", 448 << 20))
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertLess(stats["ddr"]["budget_bytes"], total)
        self.assertEqual(stats["refused"], 0)

    def test_what_the_window_cannot_hold_is_plain_memory(self):
        # The window is half of the addresses.
        result = self.blocks(800, wrap=("/bin/sh", "-c", 'ulimit -v 1250000; exec "$0" "$@"'))
        self.assertGreater(result.stats["fallbacks"], 100)
        self.assertEqual(result.stats["refused"], 0)

    def test_with_a_ddr_size_the_pool_is_the_rest(self):
        stats = self.blocks(300, "--ddr", "16M").stats
        self.assertEqual((stats["ddr"]["budget_from"], stats["cxl"]["budget_from"], stats["run"]["fallback"]), ("given", "pool", False))
        self.assertGreater(stats["cxl"]["allocations"], 200)
        stats = self.blocks(300, "--ddr", "16M", "--pool", "small", check=1).stats
        self.assertGreater(stats["refused"], 0)
        self.assertEqual(stats["cxl"]["budget_bytes"], 64 << 20)

    def test_quota(self):
        self.t.cli("quota", "set", "*", "--bytes", "96M")
        self.addCleanup(lambda: self.t.cli("quota", "remove", "*"))
        stats = self.blocks(80, "--ddr", "16M").stats
        self.assertLessEqual(stats["cxl"]["leased_bytes_peak"], 96 << 20)
        # What is asked for is more than the quota: all of the quota is used, and the message is about room.
        result = self.blocks(200, "--ddr", "16M", "--cxl", "256M", "--pool", "large", check=1)
        self.assertGreater(result.stats["cxl"]["leased_bytes_peak"], 90 << 20)
        self.assertNotIn("does not answer", result.err)
        result = self.blocks(200, "--ddr", "16M", "--cxl", "256M", "--pool", "large", "--fallback")
        self.assertEqual(result.stats["refused"], 0)

    def test_two_runs_of_one_pool(self):
        script = "import sys\n" + self.BLOCKS % 350 + "\nsys.stdout.flush()\nsys.stdin.read()"
        runs = [self.t.popen(self.t.terrace, "run", "--ddr", "16M", "--fallback", "--", PYTHON, "-c", script,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        self.assertEqual([run.stdout.readline() for run in runs], ["350\n", "350\n"])
        self.assertLessEqual(sum(lease["bytes"] for lease in self.t.leases().values()), 448 << 20)
        for run in runs:
            run.communicate()
            self.assertEqual(run.returncode, 0)

    def test_without_a_daemon(self):
        nowhere = {"TERRACE_SOCKET": str(self.t.directory / "nowhere.sock")}
        result = self.blocks(50, env=nowhere)
        self.assertIn("no CXL memory for this run, what does not fit into its DDR budget goes to plain malloc", result.err)
        self.assertIn("no manager", result.err)
        self.assertEqual((result.stats["cxl"]["budget_from"], result.stats["run"]["pool"]), ("none", None))
        result = self.blocks(50, "--ddr", "128M", env=nowhere)
        self.assertIn("its DDR budget is all it has", result.err)
        self.blocks(50, "--pool", "large", check=125, env=nowhere)
        self.blocks(50, "--ddr", "0", check=125, env=nowhere)
        self.assertEqual(self.blocks(50, "--cxl", "0", env=nowhere).err, "")

    def test_a_size_wants_a_pool(self):
        self.assertIn("choose one with --pool", self.blocks(50, "--cxl", "64M", check=125).err)


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
@unittest.skipUnless(os.path.exists("/dev/userfaultfd"), "this kernel has no /dev/userfaultfd")
class PlainUserTest(unittest.TestCase):
    """A program without privileges: it gets the right to userfaultfd from the daemon, or says that it has none."""

    USER = 61_237
    SCRIPT = ("import time\na=[bytearray(b'x')*(1<<20) for _ in range(40)]\nend=time.time()+%d\n"
              "while time.time()<end:\n  for b in a[30:34]: sum(b[::4096])\n"
              "print(all(x.count(b'x')==1<<20 for x in a))")

    def run_program(self, seconds, configuration='[clients]\nuserfaultfd = "all"\n', *options):
        t = Harness(devices={"a": "128M"}, name="plain-run", daemon_args=["--allow-unmapped-uids"],
                    env={"TERRACE_MALLOC_LIBRARY": find_binary("libterrace_heap.so")})
        self.addCleanup(t.close)
        file = t.directory / "terraced.toml"
        file.write_text(configuration)
        t.start("--config", file)
        t.directory.chmod(0o777)
        t.create_pool("p")
        stats = t.directory / "stats.json"
        try:
            done = subprocess.run([str(t.terrace), "run", "--ddr", "8M", "--cxl", "64M", "--stats", str(stats), *options, "--",
                                   PYTHON, "-c", self.SCRIPT % seconds], user=self.USER, group=self.USER, extra_groups=[],
                                  env=t.environment(XDG_RUNTIME_DIR=str(t.directory), HOME=str(t.directory)),
                                  capture_output=True, text=True, check=False, timeout=120)
        except PermissionError:
            self.skipTest("this user cannot run the program where it was built")
        self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.stderr)
        return done, json.loads(stats.read_text())["migration"]

    def test_what_it_uses_rises(self):
        done, migration = self.run_program(15)
        self.assertEqual(done.stderr, "")
        self.assertEqual((migration["policy"], migration["obstacle"]), ("benefit-density", ""))
        self.assertGreater(migration["promotions"], 0)
        self.assertGreaterEqual(migration["demotions"], migration["promotions"] - 1)

    def test_static_moves_nothing(self):
        _, migration = self.run_program(1, '[clients]\nuserfaultfd = "all"\n', "--policy", "static")
        self.assertEqual((migration["obstacle"], migration["promotions"]), ("the policy is static", 0))

    def test_without_the_right_it_stays_and_says_so(self):
        with open("/proc/sys/vm/unprivileged_userfaultfd", encoding="ascii") as allowed:
            if allowed.read().strip() != "0":
                self.skipTest("everybody has the right here")
        for configuration in ("[clients]\nuserfaultfd = false\n", ""):  # as it is where nobody said anything
            done, migration = self.run_program(1, configuration)
            self.assertIn("memory stays where it is first put", done.stderr)
            self.assertIn("clients.userfaultfd", migration["obstacle"])
        self.assertIn('clients.userfaultfd = "all"', done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
