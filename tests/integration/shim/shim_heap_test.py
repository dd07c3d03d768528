# SPDX-License-Identifier: Apache-2.0
"""The preload libraries under a torture program: what they need and export, both tiers and their ends, budgets, signals."""

import ctypes
import ctypes.util
import os
import resource
import signal
import subprocess
import time
import unittest

from shim_support import HERE, LIBRARY, WHOLE_HEAP, ShimTest, die_with_parent, needs, run_suite


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


if __name__ == "__main__":
    run_suite("shim_torture")
