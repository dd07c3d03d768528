"""The initramfs: busybox, the first program, and the modules without which there is no root file system. Everything
else comes from the host over 9p."""

import hashlib
import os
import pathlib

from qemu.cpio import Archive
from qemu.kernel import CACHE, Kernel, closure
from qemu.skip import need_busybox

MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net"]
INIT = pathlib.Path(__file__).with_name("init")


def build(kernel: Kernel) -> pathlib.Path:
    """The archive for `kernel`, from the cache when nothing in it changed."""
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
    data = archive.bytes()
    place = CACHE / f"initramfs-{kernel.release}-{hashlib.sha256(data).hexdigest()[:16]}.cpio"
    if not place.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob(f"initramfs-{kernel.release}-*.cpio"):
            old.unlink()
        part = place.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.rename(place)
    return place
