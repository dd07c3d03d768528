"""`static`: what clang finds in the sources without running them. Which lock protects what (-Wthread-safety)."""

import time

from devlib import sources
from devlib.build import configure
from devlib.commands import build_dir, build_environment, job_count, need, run_ninja
from devlib.output import Failure, duration, note, say

CLANG = "clang++-14"  # as in scripts/packages.txt: other versions warn of other things
THREAD_SAFETY_HEADER = "core/base/sync/thread_safety.h"
# Only these warnings: the others are the build's, which g++ and the fuzz preset give. The last one checks the order in
# which locks are taken.
THREAD_SAFETY = ("-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta", "-Werror=thread-safety",
                 "-Werror=thread-safety-beta")
# Tests and benches hold locks of their own for a few lines, and say nothing of them.
_UNANNOTATED = ("tests/", "bench/", f"build/{sources.PRESET}/tests/")


def _make_generated() -> None:
    """Headers that the build makes; all of them were, where the preset is built."""
    configure(sources.PRESET)
    run_ninja([need("ninja"), "-C", str(build_dir(sources.PRESET)), f"-j{job_count()}", "terrace_schema"],
              build_environment())


def static() -> None:
    """Runs every part, also after one failed, and fails if any did."""
    _make_generated()
    includes, commands = sources.Includes(sources.ROOT), sources.commands()
    failed = []
    for part in (thread_safety,):
        try:
            part(includes, commands)
        except Failure as failure:
            note(str(failure))
            failed.append(part.__name__.replace("_", " "))
    if failed:
        raise Failure(f"static: {', '.join(failed)} failed")


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
