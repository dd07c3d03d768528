"""The preload library under programs: a torture program and fork cases of our own, and real programs whose
results must be those of a plain run.

Most runs go through shim_fake_run (the supervisor over a pool that lives in this process), with a DDR budget so
small that leased memory is really used; the numbers of each run are checked for that. Run by ctest; by hand:
    TERRACE_BUILD_DIR=build/dev tests/integration/shim/shim_test.py [Class[.test]]
A program that this machine lacks is reported as a skip; exit code 77 when all of them are missing.
"""

import ctypes
import ctypes.util
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ.get("TERRACE_BUILD_DIR") or pathlib.Path(__file__).resolve().parents[3] / "build/dev")
HERE = BUILD / "tests/integration/shim"
LIBRARY = pathlib.Path(os.environ.get("TERRACE_MALLOC") or BUILD / "allocator/libterrace_malloc.so")
WHOLE_HEAP = LIBRARY.name == "libterrace_heap.so"  # small requests too: there is no --min-size
# The whole suite runs twice: memory stays where it is first put, and memory that the engine moves as fast as it can.
MIGRATES = os.environ.get("TERRACE_TEST_POLICY", "static") != "static"
REAL_PROGRAMS = ("/usr/bin/python3", "git", "gcc", "sqlite3", "redis-server")


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def needs(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    return unittest.skipIf(missing, f"not on this machine: {', '.join(missing)}")


def tree_of(pid):
    """The process and all below it that still are its descendants."""
    pids = [pid]
    for children in pathlib.Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            pids += [below for child in children.read_text().split() for below in tree_of(int(child))]
        except OSError:
            pass  # gone meanwhile
    return pids


def where_they_wait(pids):
    """What each thread does, for a run that does not end: state, system call and kernel stack."""
    lines = []
    for pid in pids:
        for task in sorted(pathlib.Path("/proc").glob(f"{pid}/task/*")):
            lines.append(f"--- process {pid}, thread {task.name}")
            for name in ("comm", "wchan", "syscall", "stack"):
                try:
                    lines.append(f"{name}: {(task / name).read_text().strip()}")
                except OSError as error:
                    lines.append(f"{name}: {error}")
    return "\n".join(lines)


def run_to_its_end(command, timeout, input=None, **options):
    """subprocess.run, but a run that does not end fails with what it waits for, and leaves nothing behind: the
    program would otherwise hold the pipes of a supervisor that was killed."""
    options.setdefault("stdin", subprocess.PIPE if input is not None else None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                          **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            pids = tree_of(process.pid)
            report = where_they_wait(pids)
            for pid in reversed(pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired as still:  # a process that left the tree has the pipes
                out, err = (str(part or "") for part in (still.stdout, still.stderr))
            raise AssertionError(f"{command} was not done after {timeout} s\n{report}\n{out[-2000:]}\n{err[-4000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Run:
    """One supervised run: code, out, err, and its numbers by name."""

    def __init__(self, code, out, err, stats):
        self.code, self.out, self.err, self.stats = code, out, err, stats


class ShimTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-shim-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = dict(os.environ, TERRACE_MALLOC_LIBRARY=str(LIBRARY), LC_ALL="C", HOME=str(self.folder),
                                PYTHONHASHSEED="1", PYTHONDONTWRITEBYTECODE="1", XDG_RUNTIME_DIR=str(self.folder),
                                TERRACE_TEST_FOLD_SOON="1")
        for name in ("LD_PRELOAD", "TERRACE_SUPPLY", "TERRACE_MIN_SIZE", "ASAN_OPTIONS"):
            self.environment.pop(name, None)

    def shim_command(self, command, *options):
        program = shutil.which(str(command[0]))
        return [str(HERE / "shim_fake_run"), "--stats", str(self.folder / "stats.json"), *map(str, options), "--",
                program, *map(str, command[1:])]

    def shim(self, command, *options, code=0, timeout=90, **popen):
        """Runs `command` under the shim, expecting `code`."""
        popen.setdefault("cwd", self.folder)
        popen.setdefault("preexec_fn", die_with_parent)
        done = run_to_its_end(self.shim_command(command, *options), timeout, env=self.environment, **popen)
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        stats = json.loads((self.folder / "stats.json").read_text())
        return Run(done.returncode, done.stdout, done.stderr, stats)

    def plain(self, command, **popen):
        popen.setdefault("cwd", self.folder)
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace",
                              timeout=90, env=self.environment, check=True, **popen)
        return done

    def assert_used_cxl(self, run, least=1):
        self.assertGreaterEqual(run.stats["allocations_cxl"], least, run.stats)
        self.assertGreaterEqual(run.stats["leases_granted"], 1, run.stats)
        self.assertEqual(run.stats["leases_granted"], run.stats["leases_released"], run.stats)
        self.assertEqual(run.stats["refused"], 0, run.stats)
        self.assertEqual(run.stats["forks_failed"], 0, run.stats)


class Library(ShimTest):
    def test_needs_nothing_but_libc(self):
        needed = self.plain(["readelf", "-d", str(LIBRARY)]).stdout
        libraries = [line.split("[")[1].rstrip("]\n ") for line in needed.splitlines() if "(NEEDED)" in line]
        for library in libraries:
            self.assertRegex(library, r"^(libc\.so\.6|libm\.so\.6|ld-linux-x86-64\.so\.2)$" if WHOLE_HEAP else
                             r"^(libc\.so\.6|ld-linux-x86-64\.so\.2)$")
        undefined = self.plain(["nm", "-D", "--undefined-only", str(LIBRARY)]).stdout
        for foreign in ("_ZSt", "__cxa_throw", "__gxx_personality", "__asan", "__ubsan", "__tsan", "_Unwind_Resume"):
            self.assertNotIn(foreign, undefined)

    def test_exports_the_malloc_family_and_nothing_else(self):
        symbols = self.plain(["nm", "-D", "--defined-only", str(LIBRARY)]).stdout
        exported = {line.split()[-1] for line in symbols.splitlines()}
        family = {"malloc", "calloc", "realloc", "reallocarray", "free", "free_sized", "free_aligned_sized",
                  "aligned_alloc", "posix_memalign", "memalign", "valloc", "pvalloc", "malloc_usable_size",
                  "cfree", *(f"__libc_{name}" for name in ("malloc", "calloc", "realloc", "free", "memalign", "valloc",
                                                           "pvalloc")),
                  "malloc_trim", "madvise", "fork", "__fork", "_Fork", "daemon", "forkpty",
                  # memory that must not move meanwhile
                  "read", "write", "pread", "pwrite", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev",
                  "preadv64", "pwritev64", "preadv2", "pwritev2", "preadv64v2", "pwritev64v2", "__read_chk",
                  "__pread_chk", "__pread64_chk", "vmsplice", "process_vm_writev", "send", "sendto", "sendmsg",
                  "sendmmsg", "io_submit", "mprotect", "pkey_mprotect", "mlock", "mlock2", "mlockall",
                  "io_uring_queue_init", "io_uring_queue_init_params", "io_uring_queue_init_mem", "io_uring_setup",
                  "aio_read", "aio_write", "lio_listio", "aio_read64", "aio_write64", "lio_listio64",
                  "syscall", "prctl", "terrace_hold", "terrace_unhold",
                  # mappings that it is to keep in mind, children, futexes that the kernel knows by their page
                  "mmap", "mmap64", "munmap", "mremap", "remap_file_pages", "munlock", "munlockall", "clone", "dlopen",
                  "pthread_mutex_init", "pthread_cond_init", "pthread_rwlock_init", "pthread_barrier_init", "sem_init",
                  "pthread_attr_setstack"}
        if WHOLE_HEAP:
            family |= {"mallinfo", "mallinfo2", "malloc_info", "malloc_stats", "mallopt", "mallocx", "rallocx",
                       "xallocx", "sallocx", "dallocx", "sdallocx", "nallocx", "mallctl", "mallctlnametomib",
                       "mallctlbymib", "malloc_stats_print"}
        operators = {name for name in exported if name.startswith(("_Zn", "_Zd"))}
        self.assertEqual(exported - operators, family)
        self.assertEqual(len(operators), 20)

    def test_where_proc_is_not_there(self):
        done = subprocess.run(["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /proc && exec env LD_PRELOAD=" +
                               str(LIBRARY) + " /bin/echo well"], capture_output=True, text=True, check=False, timeout=30)
        if "unshare" in done.stderr or "mount" in done.stderr:
            self.skipTest("no namespace of our own: " + done.stderr.strip())
        self.assertEqual((done.returncode, done.stdout), (0, "well\n"), done.stderr)

    def test_without_a_supervisor_it_is_plain_malloc(self):
        for supply in (None, "/nonexistent/supply", "x" * 300):
            environment = dict(self.environment, LD_PRELOAD=str(LIBRARY))
            if supply:
                environment["TERRACE_SUPPLY"] = supply
            done = subprocess.run(["/usr/bin/python3", "-c", "print(len(bytes(50_000_000)), len([0] * 10_000_000))"],
                                  capture_output=True, text=True, env=environment, check=True, timeout=30)
            self.assertEqual(done.stdout, "50000000 10000000\n")
            self.assertEqual(len(done.stderr.splitlines()), 1 if supply else 0, done.stderr)


class Torture(ShimTest):
    def test_one_thread(self):
        self.assert_used_cxl(self.shim([HERE / "shim_torture", 1, 4000, 1], "--ddr", "2M"))

    def test_threads_over_both_tiers(self):
        run = self.shim([HERE / "shim_torture", 6, 2500, 2], "--ddr", "8M")
        self.assert_used_cxl(run, 100)
        self.assertGreater(run.stats["allocations_ddr"], 100)
        self.assertEqual(run.stats["live_bytes"], 0, "something stayed in use: glibc keeps nothing this large")

    def test_default_min_size(self):
        self.assert_used_cxl(self.shim([HERE / "shim_torture", 3, 2500, 3], "--ddr", "2M", "--min-size", 32768))

    def test_no_ddr_at_all(self):
        run = self.shim([HERE / "shim_torture", 2, 1500, 4], "--ddr", "0")
        self.assert_used_cxl(run)
        self.assertEqual(run.stats["allocations_ddr"], 0)

    def test_full_window_falls_back(self):
        run = self.shim([HERE / "shim_torture", 4, 2000, 5], "--ddr", "2M", "--cxl", "4M", "--fallback")
        self.assertGreater(run.stats["fallbacks"], 0 if WHOLE_HEAP else 10)
        self.assertGreater(run.stats["allocations_cxl"], 0 if WHOLE_HEAP else 10)

    def test_full_window_is_out_of_memory(self):
        script = ("import sys\nblocks = []\ntry:\n  while True: blocks.append(bytearray(1 << 20))\n"
                  "except MemoryError: print(len(blocks))\n"
                  "blocks.clear()\nprint(len(bytearray(20 << 20)))")
        run = self.shim(["/usr/bin/python3", "-c", script], "--ddr", "8M", "--cxl", "64M")
        blocks, again = map(int, run.out.split())
        self.assertTrue(50 <= blocks <= 72, blocks)
        self.assertEqual(again, 20 << 20)
        self.assertGreater(run.stats["refused"], 0)
        self.assertEqual(run.err.count("out of memory: no room for"), 1, run.err)

    def test_a_sandbox_that_kills_for_a_socket(self):
        # A seccomp filter, entered by the program itself: socket() kills, all else is allowed.
        script = ("import ctypes,struct\n"
                  "lines=[(0x20,0,0,0),(0x15,0,1,41),(0x06,0,0,0x80000000),(0x06,0,0,0x7fff0000)]\n"
                  "code=ctypes.create_string_buffer(b''.join(struct.pack('HBBI',*l) for l in lines))\n"
                  "program=ctypes.create_string_buffer(struct.pack('HxxxxxxP',4,ctypes.addressof(code)))\n"
                  "libc=ctypes.CDLL(None,use_errno=True)\n"
                  "assert libc.prctl(38,1,0,0,0)==0 and libc.prctl(22,2,ctypes.c_void_p(ctypes.addressof(program)),0,0)==0\n"
                  "print(len(bytearray(60<<20)))")
        run = self.shim(["/usr/bin/python3", "-c", script], "--min-size", 16 << 20)
        self.assertEqual(run.out, f"{60 << 20}\n")
        self.assertIn("seccomp", run.err)

    def test_a_sandbox_entered_before_any_memory(self):
        # By prctl of the program itself, so that the library knows it before it would look.
        program = self.folder / "confined"
        (self.folder / "confined.c").write_text(
            "#include <linux/filter.h>\n#include <linux/seccomp.h>\n#include <stdlib.h>\n#include <sys/prctl.h>\n"
            "#include <string.h>\nint main(void) {\n"
            "  struct sock_filter lines[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, 41}, {6, 0, 0, 0x80000000}, {6, 0, 0, 0x7fff0000}};\n"
            "  struct sock_fprog program = {4, lines};\n"
            "  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program)) return 1;\n"
            "  return memset(malloc(32 << 20), 1, 32 << 20) == 0; }\n")
        self.plain(["gcc", self.folder / "confined.c", "-o", program])
        run = self.shim([program], "--min-size", 16 << 20)
        self.assertIn("the program filters its system calls (seccomp)", run.err)
        self.assertNotIn("supervisor at", run.err)

    @unittest.skipUnless(ctypes.util.find_library("seccomp"), "not on this machine: libseccomp")
    def test_a_library_that_probes_for_filters(self):
        script = ("import ctypes\nlibrary=ctypes.CDLL('libseccomp.so.2')\nlibrary.seccomp_init.restype=ctypes.c_void_p\n"
                  "assert library.seccomp_api_get()>0 and library.seccomp_init(0x7fff0000)\n"
                  "a=[bytearray(b'x'*(1<<20)) for _ in range(40)]\nprint(len(a))")
        run = self.shim(["/usr/bin/python3", "-c", script], "--ddr", "8M")
        self.assertNotIn("running on plain malloc", run.err)
        self.assert_used_cxl(run)

    @needs("qemu-system-x86_64")
    def test_qemu(self):
        run = self.shim(["qemu-system-x86_64", "--version"], "--ddr", "64M")
        self.assertIn("QEMU emulator version", run.out)
        self.assertNotIn("running on plain malloc", run.err)
        # A machine with memory of its own, that boots nothing.
        run = self.shim(["qemu-system-x86_64", "-M", "q35", "-m", "16", "-display", "none", "-monitor", "stdio", "-serial", "none"],
                        "--ddr", "64M", input="quit\n")
        self.assertNotIn("running on plain malloc", run.err)
        self.assertGreater(run.stats["allocations_ddr"], 0)

    def test_pool_shorter_than_the_budget(self):
        run = self.shim(["/usr/bin/python3", "-c", "print(len(bytearray(30 << 20)))"], "--ddr", "0", "--cxl", "8G",
                        "--pool-size", "40M")
        self.assertEqual(run.out, f"{30 << 20}\n")
        self.assertLessEqual(run.stats["leased_bytes_peak"], 40 << 20)

    def test_manager_goes_away(self):
        script = ("import time\na = bytearray(b'x') * (20 << 20)\ntime.sleep(0.8)\nb = [bytearray(1 << 20) for _ in range(60)]\n"
                  "print(a.count(b'x'), len(b))")
        run = self.shim(["/usr/bin/python3", "-c", script], "--ddr", "0", "--cxl", "1G", "--away-after", "400",
                        "--fallback")
        self.assertEqual(run.out, f"{20 << 20} 60\n")

    def test_address_space_limit(self):
        command = ["/bin/sh", "-c", "ulimit -v 1000000; exec /usr/bin/python3 -c 'a=[bytearray(1<<20) for _ in range(200)];"
                   "print(len(a))'"]
        run = self.shim(command, "--ddr", "8M", "--cxl", "64G", "--pool-size", "2G")
        self.assertEqual(run.out, "200\n")
        self.assertIn("ulimit -v", run.err)
        self.assert_used_cxl(run, 100)

    def test_usage_is_reported(self):
        for seconds in (1.2, 5, 30):  # a report comes each second, later where others have the processors
            script = f"a = bytearray(b'y') * (100 << 20)\nimport time; time.sleep({seconds})"
            run = self.shim(["/usr/bin/python3", "-c", script], "--ddr", "16M", "--cxl", "1G", "--min-size", "4096")
            if run.stats["reported_cxl_max"] != 0:
                break
        self.assertGreater(run.stats["reported_cxl_max"], 100 << 20)
        self.assertLess(run.stats["reported_cxl_max"], 140 << 20)
        self.assertGreaterEqual(run.stats["reported_live_max"], 100 << 20)
        self.assertRegex(run.stats["reported_holder"], r"^python3.*\[\d+\]$")

    def test_ddr_budget_is_shared_by_processes(self):
        # Four children at once, each with 6 MiB: together more than the 16 MiB of DDR.
        script = ("import os,time\n"
                  "pids=[]\n"
                  "for i in range(4):\n"
                  "  pid=os.posix_spawn('/usr/bin/python3',['python3','-c',"
                  "'import time;a=[bytearray(1<<20) for _ in range(6)];time.sleep(1)'],os.environ)\n"
                  "  pids.append(pid)\n"
                  "print(sum(os.waitpid(p,0)[1] for p in pids))")
        run = self.shim(["/usr/bin/python3", "-c", script], "--ddr", "16M", "--cxl", "1G", "--min-size", "1000000")
        self.assertEqual(run.out, "0\n")
        if not WHOLE_HEAP:  # extents of small blocks count there
            self.assertLessEqual(run.stats["allocations_ddr"], 16)
        self.assertGreaterEqual(run.stats["allocations_cxl"], 8)

    def test_exec_starts_afresh(self):
        # The same process, four images one after the other; a budget that holds one of them only.
        script = ("import os,sys\nn=int(sys.argv[1])\na=[bytearray(b'z')*(1<<20) for _ in range(50)]\n"
                  "if n: os.execv(sys.executable,[sys.executable,'-c',sys.argv[2],str(n-1),sys.argv[2]])\n"
                  "print(sum(x.count(b'z') for x in a))")
        run = self.shim(["/usr/bin/python3", "-c", script, "3", script], "--ddr", "8M", "--cxl", "96M",
                        "--pool-size", "96M")
        self.assertEqual(run.out, f"{50 << 20}\n")
        self.assertGreaterEqual(run.stats["leases_granted"], 4)

    def test_killed_program_leaves_nothing(self):
        script = "import os,signal\na=bytearray(b'k')*(60<<20)\nos.kill(os.getpid(),signal.SIGKILL)"
        run = self.shim(["/usr/bin/python3", "-c", script], code=128 + 9)
        self.assert_used_cxl(run)

    def test_signals_are_passed_on(self):
        script = ("import signal,sys,time\na=bytearray(b'k')*(60<<20)\n"
                  "signal.signal(signal.SIGUSR1,lambda *_:sys.exit(a.count(b'k')>>20))\nprint('ready',flush=True)\n"
                  "for _ in range(600): time.sleep(0.1)")  # a signal that comes right before a sleep is seen after it
        process = subprocess.Popen(self.shim_command(["/usr/bin/python3", "-c", script]), stdout=subprocess.PIPE,
                                   text=True, env=self.environment, preexec_fn=die_with_parent)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(30), 60)


    def test_ctrl_c_ends_a_stopped_program(self):
        script = ("import os,signal,sys,time\na=bytearray(b'k')*(60<<20)\nprint(os.getpid(),flush=True)\n"
                  "os.kill(os.getpid(),signal.SIGSTOP)\ntime.sleep(60)")
        process = subprocess.Popen(self.shim_command(["/usr/bin/python3", "-c", script]), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment, preexec_fn=die_with_parent)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        process.stdout.readline()
        self.assertIn("is stopped", process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)

    # A thread that waits in the kernel (for the exec of a child that cannot open its input yet) does not stop with the
    # others: the kernel tells nobody of such a stop.
    def test_ctrl_c_ends_a_program_that_is_stopped_in_part(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        script = ("import os,sys,threading,time\na=bytearray(b'k')*(60<<20)\nprint(os.getpid(),flush=True)\n"
                  "spawn=lambda: os.posix_spawn('/bin/true',['true'],{},file_actions=[(os.POSIX_SPAWN_OPEN,0,sys.argv[1],os.O_RDONLY,0)])\n"
                  "threading.Thread(target=spawn,daemon=True).start()\ntime.sleep(60)")
        process = subprocess.Popen(self.shim_command(["/usr/bin/python3", "-c", script, str(fifo)]), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment, preexec_fn=die_with_parent)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        pid = int(process.stdout.readline())
        time.sleep(2)
        os.kill(pid, signal.SIGSTOP)
        self.assertIn("is stopped", process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)

    def test_descriptor_limit_is_the_programs_own(self):
        run = self.shim(["/bin/sh", "-c", "ulimit -n"], preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
        self.assertEqual(run.out, "100\n")

    def test_numbers_of_strangers_in_the_control_page_get_no_signal(self):
        # The program ends while a child of it goes on and writes other pids into slots; SIGTERM to the supervisor
        # must reach that child only.
        stranger = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=die_with_parent)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        script = ("import ctypes,os,struct,sys,time\na=bytearray(b'k')*(60<<20)\npid=os.fork()\n"
                  "if pid: os._exit(0)\n"
                  "b=next(int(l.split('-')[0],16) for l in open('/proc/self/maps') if 'terrace-control' in l)\n"
                  "own=os.getpid()%%1024\n"  # a process takes the slot of its number, or the next one that is free
                  "print('ready',flush=True)\nwhile True:\n"
                  "  for more,pid in ((500,%d),(501,0xffffffff),(502,1)):\n"
                  "    ctypes.memmove(b+128+(own+more)%%1024*832,struct.pack('I',pid),4)\n"
                  "  time.sleep(0.002)" % stranger.pid)
        process = subprocess.Popen(self.shim_command(["/usr/bin/python3", "-c", script]), stdout=subprocess.PIPE,
                                   text=True, env=self.environment, preexec_fn=die_with_parent)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "ready\n")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        self.assertIsNone(stranger.poll())


class Kept(ShimTest):
    """Page runs that threads keep for their next request: kept_cases.cc."""

    def kept(self, *words, ddr="256M", cxl="0", **more):
        return self.shim([HERE / "shim_kept_cases", *words], "--ddr", ddr, "--cxl", cxl, "--min-size", 65536, **more)

    def test_what_ended_threads_kept_serves_others(self):
        self.kept("shelves")

    def test_calloc_shows_no_old_bytes(self):
        for ddr, cxl in (("256M", "0"), ("64M", "64M"), ("0", "64M")):
            self.kept("zeros", ddr=ddr, cxl=cxl)

    def test_freed_twice(self):
        run = self.kept("twice", code=128 + signal.SIGABRT)
        self.assertIn("double free", run.err)

    @unittest.skipUnless(WHOLE_HEAP, "glibc's own")
    def test_realloc_of_no_block(self):
        for what in ("realloc_stack", "realloc_inside", "realloc_global"):
            with self.subTest(what):
                run = self.kept(what, code=128 + signal.SIGABRT)
                self.assertIn("realloc(): invalid pointer", run.err)

    def test_pairs_are_counted(self):
        run = self.kept("pairs", 20000)
        self.assertGreaterEqual(run.stats["allocations_ddr"], 20000, run.stats)
        self.assertEqual(run.stats["live_bytes"] // (256 << 10), 0, run.stats)


class Large(ShimTest):
    def test_scattered_free_pages_serve_a_long_request(self):
        self.shim([HERE / "shim_large_cases", "scattered"], "--ddr", "64M", "--cxl", "0", "--min-size", 65536)

    def test_kept_pages_show_no_old_bytes(self):
        for policy in ("static", "benefit-density"):
            self.shim([HERE / "shim_large_cases", "kept"], "--ddr", "256M", "--cxl", "64M", "--min-size", 65536,
                      "--policy", policy)

    def test_free_leases_go_back_and_come_again_longer(self):
        self.shim([HERE / "shim_large_cases", "leases"], "--ddr", "0", "--cxl", "512M", "--pool-size", "512M",
                  "--min-size", 65536)

    def test_free_leases_of_a_window_that_migrates_go_back_too(self):
        run = self.shim([HERE / "shim_large_cases", "leases"], "--ddr", "16M", "--cxl", "512M", "--pool-size", "512M",
                        "--min-size", 65536, "--policy", "churn", "--round", 1)
        self.assertGreater(run.stats["promotions"], 0, run.stats)
        self.assertEqual(run.stats["leases_granted"], run.stats["leases_released"], run.stats)

    def test_leases_come_and_go_under_threads_forks_and_moves(self):
        for policy in ("static", "churn"):
            for _ in range(6):  # on a busy machine the program gets too little done in its three seconds
                run = self.shim([HERE / "shim_large_cases", "returning"], "--ddr", "16M", "--cxl", "512M",
                                "--min-size", 65536, "--policy", policy, "--round", 1)
                self.assertEqual(run.stats["leases_granted"], run.stats["leases_released"], run.stats)
                if run.stats["leases_granted"] > 2:
                    break
            else:
                self.fail(f"no lease came again: {run.stats}")

    def test_a_program_of_rounds_keeps_its_leases(self):
        run = self.shim([HERE / "shim_large_cases", "rounds"], "--ddr", "0", "--cxl", "512M", "--min-size", 65536)
        self.assertLess(run.stats["leases_granted"], 16, run.stats)

    def test_small_blocks_leave_room_for_large_ones(self):
        self.shim([HERE / "shim_large_cases", "steps"], "--ddr", "256M", "--cxl", "0")

    @unittest.skipUnless(WHOLE_HEAP, "small blocks are another malloc's")
    def test_what_small_blocks_had_serves_large_ones(self):
        for ddr, cxl in (("128M", "0"), ("0", "128M"), ("96M", "96M")):
            self.shim([HERE / "shim_large_cases", "small", ddr[:-1] if ddr != "0" else cxl[:-1]], "--ddr", ddr, "--cxl", cxl,
                      "--pool-size", "512M")

    @unittest.skipUnless(WHOLE_HEAP, "small blocks are another malloc's")
    def test_no_extent_is_joined_over_a_gap(self):
        for ddr, cxl in (("128M", "0"), ("64M", "64M")):
            self.shim([HERE / "shim_large_cases", "borders", 128], "--ddr", ddr, "--cxl", cxl, "--pool-size", "256M")

    @unittest.skipUnless(WHOLE_HEAP, "another malloc would take all of the machine's memory")
    def test_a_full_budget_is_out_of_memory_for_all_threads(self):
        for ddr, cxl in (("64M", "0"), ("32M", "32M")):
            self.shim([HERE / "shim_large_cases", "full", ddr[:-1]], "--ddr", ddr, "--cxl", cxl)

    def test_trim_says_whether_anything_went_back(self):
        self.shim([HERE / "shim_large_cases", "trim"], "--ddr", "256M", "--cxl", "64M", "--min-size", 65536)

    def test_a_request_longer_than_the_window_has_its_own_line(self):
        run = self.shim([HERE / "shim_large_cases", "too_long"], "--ddr", "64M", "--cxl", "0", "--min-size", 65536)
        lines = run.err.splitlines()
        self.assertEqual(len(lines), 2, run.err)
        self.assertRegex(lines[0], r"a request of 1048576 MiB is refused: .*, \d+ MiB from --ddr and --cxl")
        self.assertRegex(lines[1], r"out of memory: no room for 1024 KiB in one tier; DDR 0 MiB free of the run's 64, .*--ddr")


class Fork(ShimTest):
    """Each case of fork_cases.cc; those that store in leased memory must have switched it."""

    def check(self, name, *options, switched=True):
        run = self.shim([HERE / "shim_fork_cases", name], "--ddr", "4M", *options)
        self.assertEqual(run.stats["forks_failed"], 0)
        if switched:
            self.assert_used_cxl(run)
            self.assertGreater(run.stats["forks_switched"], 0)
        return run

    def test_both_sides(self):
        self.check("both_sides")

    def test_without_leases(self):
        run = self.check("without_leases", "--cxl", "64M")
        self.assertEqual(run.stats["leases_granted"], 1)
        self.assertGreater(run.stats["allocations_detached"], 20)

    def test_untouched_pages(self):
        self.check("untouched_pages")

    def test_grandchildren(self):
        self.assertGreaterEqual(self.check("grandchildren").stats["forks_switched"], 2)

    def test_parent_first(self):
        self.assertEqual(self.check("parent_first").out, "orphan is well\n")

    def test_daemonised(self):
        self.assertEqual(self.check("daemonised").out, "daemon is well\n")

    def test_on_terminal(self):
        self.check("on_terminal")

    def test_repeatedly(self):
        self.check("repeatedly")

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_folded_after_the_last_child(self):
        run = self.check("folded")
        self.assertEqual(run.stats["folds"], 4)
        self.assertGreater(run.stats["promotions"], 0)

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_not_folded_between_many_forks(self):
        del self.environment["TERRACE_TEST_FOLD_SOON"]
        self.check("forks_all_the_time")

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_folding_blocked(self):
        run = self.shim([HERE / "shim_fork_cases", "folding_blocked"], "--ddr", "8M", "--cxl", "64M")
        self.assertGreater(run.stats["folded_bytes"], 0)

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_folded_after_careful_children(self):
        self.check("folded_after_careful_children")

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_fold_torture(self):
        run = self.check("fold_torture")
        self.assertGreater(run.stats["folds"], 0)
        self.assertGreater(run.stats["promotions"], 0)

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_freed_while_folding(self):
        run = self.shim([HERE / "shim_fork_cases", "freed_while_folding"], "--ddr", "4M", "--cxl", "128M")
        self.assertEqual(run.stats["forks_failed"], 0)
        self.assertGreater(run.stats["folds"], 0)
        self.assertGreater(run.stats["allocations_detached"], 20)

    def test_with_threads(self):
        self.assertGreater(self.check("with_threads").stats["during_fork"], 0)

    def test_handlers_of_other_libraries(self):
        self.check("handlers")

    def test_storing_while_forking(self):
        self.assertGreaterEqual(self.check("storing_while_forking").stats["forks_switched"], 2)

    def test_bare_fork(self):
        self.check("bare_fork")

    def test_advice(self):
        self.check("advice")

    def test_in_signals(self):
        self.shim([HERE / "shim_fork_cases", "in_signals"], "--ddr", "4M")

    def test_dropped_in_child(self):
        self.shim([HERE / "shim_fork_cases", "dropped_in_child"], "--ddr", "64M")

    def test_behind_our_back(self):
        self.check("behind_our_back", switched=False)

    def test_no_descriptors(self):
        self.check("no_descriptors")

    def test_after_chroot(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for chroot")
        self.assertEqual(self.check("after_chroot").out, "copied\n")

    def test_registered_buffers(self):
        for name in ("registered", "sparse", "freed_and_again", "busy_ring"):
            with self.subTest(name):
                run = self.shim([HERE / "shim_ring_cases", name], "--ddr", "4M", "--cxl", "300M")
                self.assertEqual(run.stats["forks_failed"], 0)
                if "no io_uring" not in run.out:
                    self.assertGreater(run.stats["forks_switched"], 0)

    def test_supervisor_refused(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for chroot")
        run = self.shim([HERE / "shim_fork_cases", "refused_with_threads"], "--ddr", "4M")
        if MIGRATES:
            self.assertEqual((run.stats["forks_failed"], run.stats["forks_switched"]), (0, 1))
        else:
            self.assertEqual(run.stats["forks_failed"], 1)
            self.assertIn("EAGAIN", run.err)

    def test_refused_half_way(self):
        run = self.shim([HERE / "shim_fork_cases", "refused_half_way"], "--ddr", "0", "--cxl", "1G")
        self.assertEqual(run.stats["forks_failed"], 2)
        self.assertGreaterEqual(run.stats["forks_switched"], 2)


@unittest.skipUnless(MIGRATES, "nothing moves")
class Busy(ShimTest):
    """Each case of busy_cases.cc: right with the protection, wrong without it."""

    def check(self, name, *, fails_without=True, promotions=1):
        command = [HERE / "shim_busy_cases", name]
        options = ("--ddr", "16M", "--cxl", "64M", "--policy", "churn", "--round", "1")
        for _ in range(6):  # a busy machine may leave the engine no time in one of them
            run = self.shim(command, *options)
            if run.stats["promotions"] >= promotions:
                break
        self.assertGreaterEqual(run.stats["promotions"], promotions)
        if fails_without and "here" not in run.out:
            self.environment["TERRACE_TEST_HOLD_NOTHING"] = self.environment["TERRACE_TEST_ASK_NOTHING"] = "1"
            self.shim(command, *options, code=1)
        return run

    def test_direct_reads(self):
        self.check("direct_reads")

    def test_pages_in_a_pipe(self):
        self.check("pages_in_a_pipe")

    def test_protections(self):
        self.check("protections")

    def test_locks(self):
        self.check("locks")

    def test_held_by_the_program(self):
        self.check("held_by_the_program")

    def test_a_ring(self):
        self.check("a_ring")

    def test_a_raw_ring(self):
        self.check("a_raw_ring")

    def test_a_filter_for_all_threads(self):
        self.check("a_filter", fails_without=False)

    def test_filters_that_the_kernel_refuses(self):
        self.check("filters_that_fail", fails_without=False)

    def test_leases_that_are_taken_back(self):
        run = self.shim([HERE / "shim_busy_cases", "taken_back"], "--ddr", "8M", "--cxl", "400M", "--revokes")
        self.assertGreaterEqual(run.stats["leases_left"], 5)
        self.assertGreater(run.stats["left_bytes"], 0)
        # What was free was not moved, and the DDR budget holds.
        self.assertLess(run.stats["left_bytes"], 280 << 20)
        self.assertEqual(run.stats["refused"], 0)

    def test_fork_while_moving(self):
        # Short: on a busy machine one of them may end before anything moves.
        runs = [self.check("fork_while_moving", fails_without=False, promotions=0) for _ in range(8)]
        self.assertGreater(sum(run.stats["promotions"] for run in runs), 0)

    def test_where_the_kernel_cannot_be_asked_nothing_moves(self):
        def without_huge_pages():
            die_with_parent()
            ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: the question needs them

        def moved(*ways):
            run = self.shim([HERE / "shim_pin_stress", "3", *ways], "--ddr", "4M", "--cxl", "64M", "--policy", "churn",
                            "--round", "1", preexec_fn=without_huge_pages)
            return run.stats["promotions"] + run.stats["demotions"]

        self.assertEqual(moved("uring", "stores"), 0)
        self.environment["TERRACE_MOVE_UNPROVEN"] = "1"
        self.assertGreater(moved("stores"), 0)

    def test_aio_while_folding(self):
        self.check("aio_while_folding", fails_without=False, promotions=0)

    def test_written_by_itself(self):
        self.check("written_by_itself", fails_without=False)  # a page at a time: too short to be hit at will


class Python(ShimTest):
    def compare(self, script, *options, least_cxl=1):
        path = self.folder / "script.py"
        path.write_text(script)
        plain = self.plain(["/usr/bin/python3", path]).stdout
        run = self.shim(["/usr/bin/python3", path], "--ddr", "8M", *options)
        self.assertEqual(run.out, plain)
        self.assert_used_cxl(run, least_cxl)
        return run

    def test_compute(self):
        self.compare("import random, hashlib, json\nrandom.seed(3)\n"
                     "rows=[{'k':random.random(),'v':list(range(random.randrange(40)))} for _ in range(60000)]\n"
                     "rows.sort(key=lambda r:r['k'])\ntext=json.dumps(rows)\n"
                     "print(hashlib.sha256(text.encode()).hexdigest(), len(json.loads(text)))\n"
                     "n=1\nfor i in range(1,4000): n*=i\nprint(hash(n))\n"
                     "b=bytearray(random.randbytes(30_000_000)); b.sort if 0 else None\n"
                     "print(hashlib.sha256(bytes(reversed(b))).hexdigest())\n")

    def test_multiprocessing_fork_pool(self):
        run = self.compare("import multiprocessing as mp, hashlib, random\nrandom.seed(5)\n"
                           "data=[bytearray(random.randbytes(1<<20)) for _ in range(40)]\n"
                           "def work(i):\n"
                           "  data[i][:]=bytes([i])*(1<<20)\n"  # the child's own copy
                           "  return hashlib.sha256(b''.join(data)).hexdigest()\n"
                           "if __name__=='__main__':\n"
                           "  with mp.get_context('fork').Pool(3, maxtasksperchild=2) as pool:\n"
                           "    results=pool.map(work, range(12), chunksize=1)\n"
                           "  print(len(set(results)) >= 3, [len(r) for r in results])\n"
                           "  print(hashlib.sha256(b''.join(data)).hexdigest())\n")
        self.assertGreater(run.stats["forks_switched"], 0)

    def test_subprocess(self):
        self.compare("import subprocess, os\nblob=os.urandom(1)*20_000_000\n"
                     "for _ in range(10):\n"
                     "  out=subprocess.run(['/usr/bin/sha256sum'],input=blob,capture_output=True,check=True).stdout\n"
                     "  assert len(out)>=64\n"
                     "print(subprocess.run('cat; exit 3', shell=True, input=b'hello', capture_output=True, close_fds=True,"
                     "preexec_fn=lambda: None))\n")


@needs("git")
class Git(ShimTest):
    def test_a_repository_has_the_same_objects(self):
        heads = {}
        for name, run in (("plain", lambda *command: self.plain(command, cwd=self.folder / "plain")),
                          ("shim", lambda *command: self.shim(command, "--ddr", "2M", cwd=self.folder / "shim"))):
            work = self.folder / name
            work.mkdir()
            used = 0
            self.environment.update(GIT_AUTHOR_DATE="2020-01-01T00:00:00Z", GIT_COMMITTER_DATE="2020-01-01T00:00:00Z",
                                    GIT_CONFIG_NOSYSTEM="1")

            def git(*arguments):
                nonlocal used
                done = run("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "gc.auto=0",
                           "-c", "gc.aggressiveWindow=50", *arguments)
                if isinstance(done, Run):
                    self.assertEqual(done.stats["refused"], 0)
                    used += done.stats["allocations_cxl"]
                    return done.out
                return done.stdout
            git("init", "-q", "-b", "main", ".")
            generator = random.Random(11)
            for commit in range(3):
                for i in range(120):
                    body = "".join(generator.choice("abc \n") for _ in range(generator.randrange(3000)))
                    (work / f"file{i}.txt").write_text(body * (1 + i % 5))
                (work / "large.bin").write_bytes(generator.randbytes(3_000_000))
                git("add", "-A")
                git("commit", "-q", "-m", f"commit {commit}")
            git("gc", "-q", "--aggressive")
            git("fsck", "--strict", "--full")
            git("clone", "-q", "--no-local", ".", "copy")
            heads[name] = (git("rev-parse", "HEAD"), git("-C", "copy", "rev-parse", "HEAD"),
                           git("-C", "copy", "status", "--porcelain"), git("log", "--stat", "--format=%H"))
        self.assertEqual(heads["plain"], heads["shim"])
        self.assertGreater(used, 0)


@needs("gcc", "g++")
class Gcc(ShimTest):
    def test_a_cpp_file_gives_the_same_object(self):
        (self.folder / "x.cc").write_text(
            "#include <map>\n#include <string>\n#include <vector>\n"
            "std::map<std::string, std::vector<std::map<int, std::string>>> table;\n"
            "void add(const std::string& s) { table[s].emplace_back().emplace(table.size(), s + \"x\"); }\n")
        self.plain(["g++", "-O1", "-c", "x.cc", "-o", "plain.o"])
        run = self.shim(["g++", "-O1", "-c", "x.cc", "-o", "shim.o"], "--ddr", "1M", "--cxl", "1G")
        self.assertEqual((self.folder / "plain.o").read_bytes(), (self.folder / "shim.o").read_bytes())
        self.assert_used_cxl(run)
        self.assertGreaterEqual(run.stats["processes"], 2)


@needs("sqlite3")
class Sqlite(ShimTest):
    def test_rows_are_those_of_a_plain_run(self):
        script = ("PRAGMA cache_size=-60000; PRAGMA page_size=65536; PRAGMA temp_store=memory;\n"
                  "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);\n"
                  "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200000)\n"
                  "INSERT INTO t SELECT i, printf('row %d %d', i, (i*7919)%100003), i*0.5 FROM n;\n"
                  "CREATE INDEX ti ON t(b);\nDELETE FROM t WHERE a%7=3;\nUPDATE t SET b=b||'x' WHERE a%5=1;\n"
                  "SELECT count(*), sum(a), max(b), total(c) FROM t;\n"
                  "SELECT group_concat(b) FROM (SELECT b FROM t ORDER BY b LIMIT 20000);\n"
                  "PRAGMA integrity_check;\nVACUUM;\nSELECT count(*) FROM t WHERE b LIKE 'row 1%';\n")
        plain = self.plain(["sqlite3", "plain.db"], input=script)
        run = self.shim(["sqlite3", "shim.db"], "--ddr", "8M", "--min-size", "4096", input=script)
        self.assertEqual(plain.stdout, run.out)
        self.assertIn("\nok\n", run.out)
        self.assertEqual((self.folder / "plain.db").read_bytes(), (self.folder / "shim.db").read_bytes())
        self.assert_used_cxl(run, 50)


@needs("redis-server")
class Redis(ShimTest):
    def command(self, *words):
        data = b"*%d\r\n" % len(words)
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            data += b"$%d\r\n%s\r\n" % (len(word), word)
        self.link.sendall(data)
        return self.reply()

    def reply(self):
        line = self.stream.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise AssertionError(rest.decode())
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.stream.read(length + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def start(self, *options):
        path = str(self.folder / "redis.sock")
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--dir", str(self.folder), "--save", "",
                   "--enable-debug-command", "yes", "--daemonize", "no"]
        process = subprocess.Popen(self.shim_command(command, *options), env=self.environment, cwd=self.folder,
                                   stdout=open(self.folder / "log", "ab"), stderr=subprocess.STDOUT,
                                   preexec_fn=die_with_parent)
        self.addCleanup(lambda: process.poll() is None and process.terminate())
        self.link = socket.socket(socket.AF_UNIX)
        self.addCleanup(self.link.close)
        for _ in range(400):
            try:
                self.link.connect(path)
                break
            except OSError:
                self.assertIsNone(process.poll(), (self.folder / "log").read_text())
                time.sleep(0.02)
        self.stream = self.link.makefile("rb")
        self.addCleanup(self.stream.close)
        return process

    def stop(self, process):
        process.terminate()
        self.assertEqual(process.wait(60), 0, (self.folder / "log").read_text()[-3000:])
        return json.loads((self.folder / "stats.json").read_text())

    def value(self, key, version):
        return hashlib.sha256(f"{key} {version}".encode()).digest() * (1 + key % 3000)

    def test_bgsave_under_writes_is_a_snapshot(self):
        keys = 1200  # some 55 MiB
        server = self.start("--ddr", "8M", "--cxl", "512M")
        begin = time.monotonic()
        for key in range(keys):
            self.assertEqual(self.command("SET", f"k{key}", self.value(key, 0)), b"OK")
        # All versions below are written after the fork of the save: none of them may be in the file. Writing them takes
        # about as long as that took, and the save longer: it pauses, in microseconds, at each key.
        pause_us = max(300, int(3e6 * (time.monotonic() - begin) / keys))
        self.command("CONFIG", "SET", "rdb-key-save-delay", pause_us)
        self.assertIn(b"started", self.command("BGSAVE"))
        for key in range(0, keys, 2):
            self.command("SET", f"k{key}", self.value(key, 1))
            self.command("SETRANGE", f"k{key + 1}", 0, b"overwritten in place")
        self.assertIn(b"rdb_bgsave_in_progress:1", self.command("INFO", "persistence"), "the save was over too soon")
        self.command("CONFIG", "SET", "rdb-key-save-delay", "0")
        for _ in range(2400):
            if b"rdb_bgsave_in_progress:0" in self.command("INFO", "persistence"):
                break
            time.sleep(0.05)
        self.assertIn(b"rdb_last_bgsave_status:ok", self.command("INFO", "persistence"))
        for key in range(keys):
            expected = self.value(key, 1) if key % 2 == 0 else b"overwritten in place" + self.value(key, 0)[20:]
            self.assertEqual(self.command("GET", f"k{key}"), expected, key)
        stats = self.stop(server)
        self.assertGreater(stats["allocations_cxl"], 3 if WHOLE_HEAP else 200)
        self.assertGreater(stats["forks_switched"], 0)
        self.assertEqual((stats["refused"], stats["forks_failed"]), (0, 0))

        server = self.start("--ddr", "8M", "--cxl", "512M")
        self.assertEqual(self.command("DBSIZE"), keys)
        torn = [key for key in range(keys) if self.command("GET", f"k{key}") != self.value(key, 0)]
        self.assertEqual(torn, [], "the snapshot has values of after the fork")
        self.stop(server)

    def mapped(self, pid):
        """Bytes of mappings of leases and front: shared, and private."""
        sizes = {"s": 0, "p": 0}
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            head = line.split(maxsplit=5)
            # Memory files have no name in any file system; the engine's own aliases stay as they are.
            if len(head) == 6 and head[5].endswith("(deleted)") and "/memfd:terrace-" not in head[5].replace(
                    "/memfd:terrace-front", ""):
                begin, end = (int(part, 16) for part in head[0].split("-"))
                sizes[head[1][3]] += end - begin
        return sizes["s"], sizes["p"]

    def wait_for_save(self):
        for _ in range(2400):
            if b"rdb_bgsave_in_progress:0" in self.command("INFO", "persistence"):
                break
            time.sleep(0.05)
        self.assertIn(b"rdb_last_bgsave_status:ok", self.command("INFO", "persistence"))

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_saves_under_writes_one_after_the_other(self):
        keys = 1200
        options = ("--ddr", "16M", "--cxl", "512M", "--policy", "churn", "--round", "20")
        server = self.start(*options)
        for key in range(keys):
            self.command("SET", f"k{key}", self.value(key, 0))
        pid = int(next(line.split(b":")[1] for line in self.command("INFO", "server").splitlines()
                       if line.startswith(b"process_id:")))
        versions = {key: 0 for key in range(keys)}
        before, private = self.mapped(pid)
        self.assertGreater(before, 64 << 20)
        self.assertEqual(private, 0)
        for save in range(1, 6):
            saved = dict(versions)
            self.command("CONFIG", "SET", "rdb-key-save-delay", 3000)  # in us: the save takes longer than the writes
            self.assertIn(b"started", self.command("BGSAVE"))
            for key in range(save % 2, keys, 2):
                self.command("SET", f"k{key}", self.value(key, save))
                versions[key] = save
            switched = self.mapped(pid)[1]
            self.assertIn(b"rdb_bgsave_in_progress:1", self.command("INFO", "persistence"))
            self.command("CONFIG", "SET", "rdb-key-save-delay", 0)
            self.wait_for_save()
            self.assertGreater(switched, 16 << 20, "the save was over too soon")
            for _ in range(400):  # what the save made private is shared again
                now, private = self.mapped(pid)
                if private == 0:
                    break
                time.sleep(0.05)
            self.assertEqual(private, 0, "pages are private still")
            self.assertGreaterEqual(now, before, "less is in leases and front than before")
            for key in range(keys):
                self.assertEqual(self.command("GET", f"k{key}"), self.value(key, versions[key]), (save, key))
        last = saved
        stats = self.stop(server)
        self.assertGreaterEqual(stats["folds"], 5, stats)
        self.assertGreater(stats["promotions"] + stats["demotions"], 0)
        self.assertEqual((stats["refused"], stats["forks_failed"]), (0, 0))
        server = self.start(*options)
        torn = [key for key in range(keys) if self.command("GET", f"k{key}") != self.value(key, last[key])]
        self.assertEqual(torn, [], "the snapshot has values of after the fork")
        self.stop(server)


def main():
    for name in ("shim_fake_run", "shim_torture", "shim_fork_cases", "shim_busy_cases"):
        if not (HERE / name).is_file():
            sys.exit(f"{HERE / name} was not built")
    program = unittest.main(exit=False, verbosity=2)
    if not program.result.wasSuccessful():
        sys.exit(1)
    if all(shutil.which(name) is None for name in REAL_PROGRAMS) and len(sys.argv) == 1:
        sys.exit(77)


if __name__ == "__main__":
    main()
