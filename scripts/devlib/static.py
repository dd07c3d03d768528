# SPDX-License-Identifier: Apache-2.0
"""`static`: what clang finds in the sources without running them. Which lock protects what (-Wthread-safety), locks that say
nothing of that, and what clang-tidy has against the code (.clang-tidy)."""

import re
import time

from devlib import lint, sources
from devlib.build import configure
from devlib.commands import build_dir, build_environment, job_count, need, run_ninja
from devlib.output import Failure, duration, note, say

CLANG = "clang++-14"  # as in scripts/packages.txt: other versions warn of other things
THREAD_SAFETY_HEADER = "core/base/sync/thread_safety.h"
# Only these warnings: the others are the build's, which g++ and the fuzz preset give. The last one checks the order in
# which locks are taken.
THREAD_SAFETY = ("-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta", "-Werror=thread-safety",
                 "-Werror=thread-safety-beta")
# Where a lock of std has to stay, and why.
_STD_LOCKS_MAY = (
    "core/base/sync/mutex.h",  # made of them
    "core/schema/words.cc",    # in one function; core/schema may include nothing
    "daemon/config/log.cc",    # spdlog's own
)
_STD_LOCK = re.compile(r"\bstd::((shared_|recursive_)?(timed_)?mutex|condition_variable(_any)?|lock_guard|shared_lock|scoped_lock)\b")

# What clang-tidy looks at in CI: where a defect would cost most, and as much as two cores can do. The rest has --all.
TIDY = "clang-tidy-14"
TIDY_FIRST = ("core/base/", "core/os/", "core/litmus/", "daemon/model/", "tiering/hotness/")
_TREE = ("core", "daemon", "libclient", "tiering", "allocator", "cli", "bindings")

# Tests and benches hold locks of their own for a few lines, and say nothing of them.
_UNANNOTATED = ("tests/", "bench/", f"build/{sources.PRESET}/tests/")


def _make_generated() -> None:
    """Headers that the build makes; all of them were, where the preset is built."""
    configure(sources.PRESET)
    run_ninja([need("ninja"), "-C", str(build_dir(sources.PRESET)), f"-j{job_count()}", "terrace_schema"],
              build_environment())


def static(everything: bool = False) -> None:
    """Runs every part, also after one failed, and fails if any did. `everything`: clang-tidy over the whole tree."""
    _make_generated()
    includes, commands = sources.Includes(sources.ROOT), sources.commands()
    failed = []
    for name, part in (("locks", plain_locks), ("thread safety", lambda: thread_safety(includes, commands)),
                       ("clang-tidy", lambda: tidy(includes, commands, () if everything else TIDY_FIRST))):
        try:
            part()
        except Failure as failure:
            note(str(failure))
            failed.append(name)
    if failed:
        raise Failure(f"static: {', '.join(failed)} failed")


def locks_of_std(lines: list) -> list:
    """The numbers of lines with a lock of the standard library, which says nothing of what it protects."""
    return [number for number, line in enumerate(lines, 1) if _STD_LOCK.search(line.partition("//")[0])]


def plain_locks() -> None:
    """Every lock is one that clang knows, but for those of _STD_LOCKS_MAY."""
    problems = [f"{name}:{line}: a lock of std, of which clang does not know what it protects" for name in lint.tree_files()
                if name.endswith(lint.CXX) and not name.startswith(_UNANNOTATED) and name not in _STD_LOCKS_MAY
                for line in locks_of_std((sources.ROOT / name).read_text(encoding="utf-8").splitlines())]
    for problem in problems:
        print(problem)
    if problems:
        raise Failure(f"locks: {len(problems)} lines; use those of core/base/sync/mutex.h (docs/testing.md, Thread safety)")
    say("locks: nothing wrong")


def thread_safety(includes: sources.Includes, commands: dict) -> None:
    """Every source that reads the words of thread_safety.h, as clang understands them."""
    begin = time.monotonic()
    clang = need(CLANG)
    kept = sources.Kept("thread_safety", sources.version_of(clang), *THREAD_SAFETY)
    names = [name for name in commands
             if not name.startswith(_UNANNOTATED) and THREAD_SAFETY_HEADER in includes.of(name)]
    if not names:
        raise Failure(f"thread safety: no source reads {THREAD_SAFETY_HEADER}; the check would see nothing")
    keys = {name: (name, includes.digest(name), *commands[name]) for name in names}
    jobs = [(name, [clang, *commands[name], *THREAD_SAFETY, "-fsyntax-only", name]) for name in names
            if not kept.has(*keys[name])]
    say(f"thread safety: {len(names)} sources, {len(jobs)} to look at")
    failed = 0
    for name, code, text in sources.run_all("clang", jobs):
        if code == 0:
            kept.add(*keys[name])
        else:
            failed += 1
            print(text, end="", flush=True)
    if failed:
        raise Failure(f"thread safety: {failed} sources touch what a lock protects without it, or clang cannot read "
                      "them (docs/testing.md, Thread safety)")
    say(f"thread safety: nothing wrong, {duration(time.monotonic() - begin)}")


def tidy(includes: sources.Includes, commands: dict, folders: tuple) -> None:
    """What clang-tidy has against the sources of `folders` (empty: all), and against the headers that they read."""
    begin = time.monotonic()
    program = need(TIDY)
    config = (sources.ROOT / ".clang-tidy").read_text(encoding="utf-8")
    kept = sources.Kept("tidy", sources.version_of(program), config)

    def is_looked_at(name: str) -> bool:
        if name.startswith(_UNANNOTATED):
            return False
        # Sources that are compiled together are looked at together.
        members = includes.direct(name) if name.startswith("build/generated/together/") else [name]
        return any(member.startswith(folders or _TREE) for member in members)

    names = [name for name in commands if is_looked_at(name)]
    keys = {name: (name, includes.digest(name), *commands[name]) for name in names}
    headers = f"^{re.escape(str(sources.ROOT))}/({'|'.join(_TREE)})/"
    jobs = [(name, [program, "--quiet", f"--header-filter={headers}", name, "--", *commands[name], "-Wno-everything"])
            for name in names if not kept.has(*keys[name])]
    say(f"clang-tidy: {len(names)} sources, {len(jobs)} to look at")
    told = set()
    failed = 0
    for name, code, text in sources.run_all("clang-tidy", jobs):
        if code == 0:
            kept.add(*keys[name])
            continue
        failed += 1
        for words in text.replace(f"{sources.ROOT}/", "").split("\n"):
            if re.search(r": (warning|error): ", words) and words not in told:  # of a header each source says the same
                told.add(words)
                print(words, flush=True)
        if not re.search(r": (warning|error): ", text):
            print(text, flush=True)
    if failed:
        raise Failure(f"clang-tidy: {len(told)} findings in {failed} sources (docs/testing.md, clang-tidy)")
    say(f"clang-tidy: nothing wrong, {duration(time.monotonic() - begin)}")
