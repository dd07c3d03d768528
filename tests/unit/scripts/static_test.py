# SPDX-License-Identifier: Apache-2.0
"""scripts/dev static: what it hands to clang, what it keeps, and that clang finds a lock that is gone."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib import sources, static  # noqa: E402


def _write(root: pathlib.Path, files: dict) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


class Sources(unittest.TestCase):
    def test_of_a_command_line_what_gives_the_source_its_meaning_is_kept(self):
        command = ("/usr/bin/ccache /usr/bin/c++ -DNAME=1 -I/tree -isystem /made -Wall -Werror -fsanitize=address -Og "
                   "-mavx2 -std=c++20 -o a.o -c a.cc")
        self.assertEqual(sources.meaning(command), ["-DNAME=1", "-I/tree", "-isystem", "/made", "-mavx2", "-std=c++20"])

    def test_a_file_reads_what_its_headers_read_and_changes_with_them(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            _write(root, {"a.cc": '#include "b/b.h"\n#include <vector>\n', "b/b.h": '#include "terrace/c.h"\n',
                          "libclient/include/terrace/c.h": '#include "b/b.h"\n', "d.cc": "int d;\n"})
            before = sources.Includes(root)
            self.assertEqual(before.of("a.cc"), {"a.cc", "b/b.h", "libclient/include/terrace/c.h"})
            digests = before.digest("a.cc"), before.digest("d.cc")
            _write(root, {"libclient/include/terrace/c.h": "int c;\n"})
            after = sources.Includes(root)
            self.assertNotEqual(after.digest("a.cc"), digests[0])
            self.assertEqual(after.digest("d.cc"), digests[1])


@unittest.skipUnless(shutil.which(static.CLANG), f"{static.CLANG} is not installed")
class ThreadSafety(unittest.TestCase):
    def complaints(self, text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "a.cc"
            source.write_text(text)
            done = subprocess.run([static.CLANG, "-std=c++20", f"-I{ROOT}", *static.THREAD_SAFETY, "-fsyntax-only",
                                   str(source)], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode != 0, "error:" in done.stderr, done.stderr)
            return done.stderr

    def test_a_source_of_the_tree_passes_and_fails_without_one_of_its_locks(self):
        text = (ROOT / "daemon/lines/line_queue.cc").read_text(encoding="utf-8")
        self.assertEqual(self.complaints(text), "")
        lock = "  const MutexLock lock(mutex_);\n  return left_out_;"
        self.assertEqual(text.count(lock), 1)
        self.assertIn("reading variable 'left_out_' requires holding mutex 'mutex_'",
                      self.complaints(text.replace(lock, "  return left_out_;")))

    def test_each_lock_wait_and_order_is_looked_at(self):
        def of(bodies) -> list:
            functions = "\n".join(f"  void does_{at}() {{ {body} }}" for at, body in enumerate(bodies))
            told = self.complaints(f"""
#include "core/base/sync/mutex.h"
using namespace terrace;
struct Thing {{
{functions}
  void inside() TERRACE_REQUIRES(first_) {{ value_ = 1; }}
  Mutex first_ TERRACE_ACQUIRED_BEFORE(second_), second_;
  SharedMutex shared_;
  ConditionVariable changed_;
  int value_ TERRACE_GUARDED_BY(first_) = 0;
  int seen_ TERRACE_GUARDED_BY(shared_) = 0;
}};
""")
            return [line for line in told.splitlines() if "error:" in line]

        self.assertEqual(of((
            "const MutexLock lock(first_); inside();",
            "ReleasableMutexLock lock(first_); lock.unlock(); lock.lock(); value_ = 2;",
            "const MutexLock lock(first_); changed_.wait(first_, [this]() TERRACE_REQUIRES(first_) { return value_ > 0; }); "
            "value_ = 2;",
            "const MutexLock lock(first_); { const MutexUnlock unlocked(first_); } value_ = 2;",
            "const ReaderLock lock(shared_); (void)(seen_ + 1);",
            "const WriterLock lock(shared_); seen_ = 1;",
            "const MutexLock lock(first_); const MutexLock next(second_);")), [])
        wrong = (
            ("value_ = 1;", "writing variable 'value_'"),
            ("inside();", "calling function 'inside'"),
            ("ReleasableMutexLock lock(first_); lock.unlock(); value_ = 2;", "writing variable 'value_'"),
            ("const MutexLock lock(first_); changed_.wait(first_, [this] { return value_ > 0; });",
             "reading variable 'value_'"),
            ("const MutexLock lock(first_); { const MutexUnlock unlocked(first_); value_ = 2; }", "writing variable 'value_'"),
            ("changed_.wait(first_);", "calling function 'wait'"),
            ("const ReaderLock lock(shared_); seen_ = 1;", "writing variable 'seen_'"),
            ("first_.lock();", "still held at the end of function"),
            ("const MutexLock lock(second_); const MutexLock next(first_);", "must be acquired before"))
        told = of(body for body, _ in wrong)
        self.assertEqual(len(told), len(wrong), told)
        for (body, words), line in zip(wrong, told):
            self.assertIn(words, line, body)


class PlainLocks(unittest.TestCase):
    def test_a_lock_of_std_is_found_and_a_comment_is_none(self):
        lines = ["  std::mutex mutex_;", "  mutable std::shared_mutex mutex_;", "  Mutex mutex_;",
                 "// a std::mutex, once", "  const std::lock_guard lock(mutex_);", "  std::condition_variable_any wake_;"]
        self.assertEqual(static.locks_of_std(lines), [1, 2, 5, 6])


@unittest.skipUnless(shutil.which(static.TIDY), f"{static.TIDY} is not installed")
class Tidy(unittest.TestCase):
    def test_a_planted_defect_fails_by_the_trees_own_configuration(self):
        def run(body: str) -> subprocess.CompletedProcess:
            with tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder) / "a.cc"
                source.write_text(f"#include <string>\n#include <utility>\n{body}\n")
                return subprocess.run([static.TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(source), "--",
                                       "-std=c++20"], capture_output=True, text=True, check=False)

        right = run("std::string f(std::string a) { return a; }")
        self.assertEqual((right.returncode, right.stdout), (0, ""))
        moved = run("size_t f(std::string a) { const std::string b = std::move(a); return b.size() + a.size(); }")
        self.assertNotEqual(moved.returncode, 0)
        self.assertIn("bugprone-use-after-move", moved.stdout)
        copied = run("size_t f(const std::string& a) { const std::string b = a; return b.size(); }")
        self.assertIn("performance-unnecessary-copy-initialization", copied.stdout)


if __name__ == "__main__":
    unittest.main()
