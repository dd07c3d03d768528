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
        self.assertEqual(self.t.leases(), {})
        self.t.wait_free()

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
        self.assertRegex(line, r"terrace: python3.*\[\d+\]: lease %d \(victim\) is being taken back in .*maintenance" % lease["id"])
        process.terminate()
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
        wait_until(lambda: not self.t.leases(), 30, "the revoked lease to go")

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


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
@unittest.skipUnless(os.path.exists("/dev/userfaultfd"), "this kernel has no /dev/userfaultfd")
class PlainUserTest(unittest.TestCase):
    """A program without privileges: it gets the right to userfaultfd from the daemon, or says that it has none."""

    USER = 61_237
    SCRIPT = ("import time\na=[bytearray(b'x')*(1<<20) for _ in range(40)]\nend=time.time()+%d\n"
              "while time.time()<end:\n  for b in a[30:34]: sum(b[::4096])\n"
              "print(all(x.count(b'x')==1<<20 for x in a))")

    def run_program(self, seconds, configuration="", *options):
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
        _, migration = self.run_program(1, "", "--policy", "static")
        self.assertEqual((migration["obstacle"], migration["promotions"]), ("the policy is static", 0))

    def test_without_the_right_it_stays_and_says_so(self):
        with open("/proc/sys/vm/unprivileged_userfaultfd", encoding="ascii") as allowed:
            if allowed.read().strip() != "0":
                self.skipTest("everybody has the right here")
        done, migration = self.run_program(1, "[clients]\nuserfaultfd = false\n")
        self.assertIn("memory stays where it is first put", done.stderr)
        self.assertIn("clients.userfaultfd", migration["obstacle"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
