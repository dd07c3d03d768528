# SPDX-License-Identifier: Apache-2.0
"""Cases that did not run, and whether this machine could have run them.

A case of a unit test says what it lacks by a word of tests/support/skip.h; a Python test by its reason. Both stand
in ctest's log. NEEDS and REASONS say how to find out whether the machine has it; where it has, the skip is a defect
of the test or of the set-up, and CI fails. A reason that is not listed is told as that: add it.
"""

import ctypes
import ctypes.util
import os
import pathlib
import re
import shutil
import subprocess

_CASE = re.compile(r"^skipped (case|in part)\t(\w+)\t([^\t]*)\t(.*)$")
_PYTHON = re.compile(r"^(?P<name>\w+ \(.*\)).*\.\.\. skipped (?P<quote>['\"])(?P<reason>.*)(?P=quote)$")
_PYTHON_TAIL = re.compile(r"^.*\.\.\. skipped (?P<quote>['\"])(?P<reason>.*)(?P=quote)$")  # after a docstring


def _root() -> bool:
    return os.geteuid() == 0


def _kernel(major: int, minor: int) -> bool:
    numbers = [int(number) for number in re.findall(r"\d+", os.uname().release)[:2]]
    return numbers >= [major, minor]


def _capable(bit: int) -> bool:
    """Root of a container lacks some."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", pathlib.Path("/proc/self/status").read_text(encoding="utf-8"), re.M)
    return effective is not None and bool(int(effective.group(1), 16) >> bit & 1)


def _own_mounts() -> bool:
    return _root() and _capable(21)  # CAP_SYS_ADMIN


def _locked_memory() -> bool:
    return _capable(14)  # CAP_IPC_LOCK


def _userfaultfd() -> bool:
    try:
        os.close(os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _memory_policy() -> bool:
    """A container's filter may forbid these calls, to root as well. Asks for nothing: no address, no policy."""
    libc = ctypes.CDLL(None, use_errno=True)
    x86_64_mbind, x86_64_move_pages = 237, 279
    if os.uname().machine != "x86_64" or not pathlib.Path("/sys/devices/system/node/node0").exists():
        return False
    for number, arguments in ((x86_64_mbind, (0, 0, 0, 0, 0, 0)), (x86_64_move_pages, (0, 0, 0, 0, 0, 0))):
        if libc.syscall(number, *arguments) != 0:
            return False
    return True


def _user_namespaces() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def _never() -> bool:
    return False


def _always() -> bool:
    return True


# Words of Needs in tests/support/skip.h.
NEEDS = {
    "root": _root,
    "mount": _own_mounts,
    "failpoints": _always,  # the preset of the tests has them
    "userfaultfd": _userfaultfd,
    "pagemap_scan": lambda: _kernel(6, 7),
    "time_slice": lambda: _kernel(6, 12),
    "pins": lambda: _userfaultfd() and _kernel(6, 7),
    "migration": lambda: _userfaultfd() and _kernel(6, 7),
    "direct_io": _never,  # the file system of /var/tmp decides
    "locked_memory": _locked_memory,
    "memory_policy": _memory_policy,
    "seccomp": lambda: "Seccomp_filters" in pathlib.Path("/proc/self/status").read_text(encoding="utf-8"),
    "disk_tmp": _never,
    "cpu_kinds": _never,
    "refused_users": _never,
    "races": _never,
    "shells": lambda: all(shutil.which(name) for name in ("zsh", "fish")),
    "pidfds": lambda: _kernel(6, 9),
    "second_node": lambda: pathlib.Path("/sys/devices/system/node/node1").exists(),
}

# Reasons of Python tests, by what they begin with. Those of the first list say that a case belongs to another
# variant of the same tests, which has run it.
OTHER_VARIANT = ("glibc's own", "the library is not in it", "small blocks are another malloc's",
                 "another malloc would take", "nothing is folded", "nothing moves", "glibc's malloc has its locks",
                 "the program's own malloc tells", "is for ", "is about ",
                 "skipped: needs the soft-reserved memory of a guest", "the first lease is elsewhere",
                 "everybody has the right here")
REASONS = (
    ("only root", _root),
    ("needs root", _root),
    ("not root, or that user cannot run", _never),
    ("this user cannot run the program where it was built", _never),  # a home directory that others may not enter
    ("this user cannot read the package where it was built", _never),
    ("needs the right to mount", _own_mounts),
    ("no namespace of our own", _user_namespaces),
    ("this kernel has no /dev/userfaultfd", _userfaultfd),
    ("this build has no failpoints", _always),
    ("no slice of a thread's own", NEEDS["time_slice"]),
    ("torch has no CUDA", _never),
    ("no CUDA", _never),
    ("no static C library", lambda: bool(list(pathlib.Path("/usr/lib").glob("*/libc.a")))),
    ("not on this machine: libseccomp", lambda: bool(ctypes.util.find_library("seccomp"))),
    ("not on this machine: ", _never),  # programs by name: checked below
)


def _has_programs(reason: str) -> bool:
    names = reason.removeprefix("not on this machine: ").split(", ")
    return all(shutil.which(name) for name in names)


def could_have_run(needs: str, reason: str):
    """Whether the machine has what a skipped case lacked; None where nobody has said how to find out."""
    if needs:
        return NEEDS[needs]() if needs in NEEDS else None
    if reason.startswith(OTHER_VARIANT):
        return False
    if reason.startswith("not on this machine: ") and "libseccomp" not in reason:
        return _has_programs(reason)
    for begin, has in REASONS:
        if reason.startswith(begin):
            return has()
    found = re.match(r"(?:python3-)?([\w-]+) is not installed", reason) or re.match(r"no ([\w-]+)$", reason)
    if found:
        return shutil.which(found.group(1)) is not None
    return None


class Skip:
    def __init__(self, name: str, needs: str, reason: str, whole: bool):
        self.name, self.needs, self.reason, self.whole = name, needs, reason, whole


def read_log(text: str) -> list:
    """The skips of a ctest log, in its order; each once."""
    found, seen = [], set()
    last = ""
    for line in text.splitlines():
        case = _CASE.match(line)
        python = _PYTHON.match(line) or _PYTHON_TAIL.match(line)
        skip = None
        if case:
            skip = Skip(case.group(3), case.group(2), case.group(4), case.group(1) == "case")
        elif python:
            name = line.partition(" ")[0] if line.startswith("test_") else last
            skip = Skip(name, "", python.group("reason"), True)
        elif line.startswith("test_"):
            last = line.partition(" ")[0]  # unittest puts a docstring and the result on the next line
        if skip is not None and (skip.name, skip.reason) not in seen:
            seen.add((skip.name, skip.reason))
            found.append(skip)
    return found


def report(text: str) -> list:
    """Prints the skipped cases by reason, and returns those that this machine could have run."""
    found = read_log(text)
    by_reason = {}
    for skip in found:
        by_reason.setdefault((skip.needs, skip.reason), []).append(skip)
    for (needs, reason), skips in sorted(by_reason.items()):
        names = ", ".join(skip.name for skip in skips[:3]) + (f" and {len(skips) - 3} more" if len(skips) > 3 else "")
        print(f"skipped {len(skips)}: {f'[{needs}] ' if needs else ''}{reason} ({names})")
        if could_have_run(needs, reason) is None:
            print(f"  nobody has said how to find out whether this machine could run {'it' if len(skips) == 1 else 'them'}")
    whole = sum(skip.whole for skip in found)
    print(f"skipped cases: {whole}, and {len(found) - whole} in part", flush=True)
    return [skip for skip in found if could_have_run(skip.needs, skip.reason)]
