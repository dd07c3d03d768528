# SPDX-License-Identifier: Apache-2.0
"""The initramfs: busybox, the first program, the modules without which there is no root file system, and what is
opened at every start (warm.py). Everything else comes from the host over 9p."""

import hashlib
import os
import pathlib

from qemu.cpio import Archive
from qemu.kernel import CACHE, Kernel, closure
from qemu.skip import need_busybox

MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net"]
KEPT = 3
INIT = pathlib.Path(__file__).with_name("init")


def build(kernel: Kernel, warm: bytes = b"") -> pathlib.Path:
    """The archive for `kernel`, with the archive `warm` behind it; from the cache when nothing in it changed."""
    busybox = pathlib.Path(need_busybox()).read_bytes()
    init = INIT.read_bytes()
    files = closure(MODULES, (kernel.modules / "modules.dep").read_text("utf-8"),
                    (kernel.modules / "modules.builtin").read_text("utf-8"))
    archive = Archive()
    for folder in ("proc", "sys", "dev", "sbin"):
        archive.folder(folder)
    archive.device("dev/console", 5, 1)
    archive.file("bin/busybox", busybox, 0o755)
    archive.link("bin/sh", "busybox")
    archive.file("init", init, 0o755)
    listed = []
    for number, name in enumerate(files):
        inside = f"modules/{number:02}-{pathlib.PurePath(name).name}"
        archive.file(inside, (kernel.modules / name).read_bytes())
        listed.append("/" + inside)
    archive.file("modules.list", "".join(f"{path}\n" for path in listed).encode())
    data = archive.bytes() + warm
    place = CACHE / f"initramfs-{kernel.release}-{hashlib.sha256(data).hexdigest()[:16]}.cpio"
    if not place.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        _forget_old()
        part = place.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.rename(place)
    return place


def _forget_old() -> None:
    """Every build of the tree makes another archive. One that a running guest was started from may go: it was read."""
    archives = sorted(CACHE.glob("initramfs-*.cpio"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-KEPT]:
        old.unlink(missing_ok=True)
