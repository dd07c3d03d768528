# SPDX-License-Identifier: Apache-2.0
"""Real programs under the preload libraries: their results are those of a plain run."""

import hashlib
import json
import pathlib
import random
import socket
import subprocess
import time
import unittest

from shim_support import MIGRATES, WHOLE_HEAP, Run, ShimTest, die_with_parent, needs, run_suite


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


if __name__ == "__main__":
    run_suite()
