# SPDX-License-Identifier: Apache-2.0
"""What a guest opens at every start: put into its memory with the initramfs instead of being fetched over 9p.

Opening a file over 9p is a round trip through QEMU's main thread, beside two busy processors: a program with twenty
libraries makes twenty at each start, Python a hundred. Only speed depends on this list; what is missing from it is
found in the host's root file system.
"""

import os
import pathlib
import re
import stat
import subprocess

from devlib.commands import ROOT
from qemu.cpio import Archive
from qemu.guest import TOPOLOGIES
from qemu.kernel import Kernel, closure

TREE_PROGRAMS = ("daemon/terraced", "cli/terrace", "tests/guest/guest_tenant", "allocator/libterrace_malloc.so",
                 "allocator/libterrace_heap.so")
PROGRAMS = ("/usr/bin/python3", "/bin/bash", "/usr/sbin/modprobe", "/usr/bin/daxctl", "/usr/bin/ndctl", "/usr/bin/cxl")
PYTHON_MODULES = "ctypes json pathlib queue shutil signal socket subprocess tempfile threading unittest fcntl termios mmap"
SCRIPTS = ("scripts/qemu/inside.py", "tests/support/*.py", "tests/guest/*.py")
MODULES_ON_DEMAND = ("kmem",)
MODULE_INDEX = ("modules.dep", "modules.dep.bin", "modules.alias.bin", "modules.symbols.bin", "modules.builtin.bin",
                "modules.builtin.alias.bin", "modules.softdep")


def files(build: pathlib.Path, kernel: Kernel) -> list:
    """Paths, some of them symbolic links."""
    programs = [str(build / program) for program in TREE_PROGRAMS] + list(PROGRAMS)
    programs = [program for program in programs if os.path.exists(program)]
    ldd = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    found = programs + libraries(ldd) + _python_files()
    found += [str(path) for pattern in SCRIPTS for path in sorted(ROOT.glob(pattern))]
    wanted = {name for topology in TOPOLOGIES.values() for name in topology.modules} | set(MODULES_ON_DEMAND)
    order = closure(sorted(wanted), (kernel.modules / "modules.dep").read_text("utf-8"),
                    (kernel.modules / "modules.builtin").read_text("utf-8"))
    found += [str(kernel.modules / name) for name in [*MODULE_INDEX, *order]]
    return list(dict.fromkeys(path for path in found if os.path.exists(path)))


def libraries(ldd_text: str) -> list:
    """The paths in what ldd says: "libz.so.1 => /lib/libz.so.1 (0x7f...)", "/lib64/ld-linux... (0x...)"."""
    return re.findall(r"(?:^\s*|=> )(/\S+) \(0x", ldd_text, re.MULTILINE)


def _python_files() -> list:
    show = (f"import {', '.join(PYTHON_MODULES.split())}, sys\n"
            "for module in list(sys.modules.values()):\n"
            "  for name in ('__file__', '__cached__'):\n"
            "    if getattr(module, name, None): print(getattr(module, name))\n")
    told = subprocess.run(["/usr/bin/python3", "-B", "-c", show], capture_output=True, text=True, check=True).stdout
    return [path for path in told.split("\n") if path.startswith("/")]


def archive(paths: list, prefix: str = "warm") -> bytes:
    """An archive of the files below `prefix`, at their real places, and of the links on the last step of the way.
    Folders keep their modes: they become the upper side of the guest's overlay."""
    made, done = Archive(), set()

    def folders(path: str) -> None:
        if path != "/" and path not in done:
            folders(os.path.dirname(path))
            done.add(path)
            made.folder(prefix + path, stat.S_IMODE(os.stat(path).st_mode))

    for path in paths:
        place = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        while place not in done:
            folders(os.path.dirname(place))
            done.add(place)
            if os.path.islink(place):
                target = os.readlink(place)
                made.link(prefix + place, target)
                place = os.path.normpath(os.path.join(os.path.dirname(place), target))
                place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
            else:
                status = os.stat(place)
                made.file(prefix + place, pathlib.Path(place).read_bytes(), stat.S_IMODE(status.st_mode),
                          int(status.st_mtime))
    return made.bytes()
