# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: Debian's own package, downloaded and unpacked below .cache, never installed."""

import hashlib
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess

from devlib.commands import ROOT
from devlib.output import Failure, Heartbeat, note, say
from qemu.skip import Skip

CACHE = ROOT / ".cache/qemu"
SERIES = "6.1"
DOWNLOAD_LIMIT_S = 300
VARIABLE = "TERRACE_QEMU_KERNEL"  # an unpacked package: DIR/boot/vmlinuz-*, DIR/lib/modules/*
_PACKAGE = re.compile(r"^linux-image-(6\.1\.\d+-\d+)-amd64-unsigned$")


class Kernel:
    """An unpacked kernel package: `image`, `release` and `modules` (the folder that holds modules.dep)."""

    def __init__(self, folder: pathlib.Path):
        folder = folder.resolve()  # the guest finds it by this path before its root is in place
        images = sorted(folder.glob("boot/vmlinuz-*"))
        if len(images) != 1:
            raise Failure(f"{folder} holds {len(images)} of boot/vmlinuz-*, expected one unpacked kernel package "
                          f"(dpkg -x PACKAGE.deb {folder})")
        self.folder = folder
        self.image = images[0]
        self.release = self.image.name.removeprefix("vmlinuz-")
        self.boots = self.image  # what QEMU is given: see uncompressed()
        self.modules = folder / "lib/modules" / self.release
        if not self.modules.is_dir():
            raise Failure(f"{self.modules} is missing: {folder} has a kernel without its modules")


def newest(names: list) -> str:
    """The package with the highest version among `names`; empty when none is a kernel of the series."""
    found = [(tuple(int(part) for part in re.findall(r"\d+", match.group(1))), match.group(0))
             for match in map(_PACKAGE.match, names) if match]
    return max(found)[1] if found else ""


def find(explicit: str = "") -> Kernel:
    """The kernel to boot: `explicit`, else $TERRACE_QEMU_KERNEL, else the cached one, else a download. Skip when
    there is none and none can be had."""
    named = explicit or os.environ.get(VARIABLE, "")
    if named:
        kernel = Kernel(pathlib.Path(named).resolve())
    else:
        unpacked = sorted(CACHE.glob("linux-image-*/boot/vmlinuz-*"), key=lambda path: path.stat().st_mtime)
        kernel = Kernel(unpacked[-1].parents[1]) if unpacked else _download()
    if not (kernel.modules / "modules.dep").is_file():
        _depmod(kernel)
    kernel.boots = uncompressed(kernel)
    return kernel


def uncompressed(kernel: Kernel) -> pathlib.Path:
    """The kernel's own ELF image, which QEMU can start by its PVH entry: Debian compresses kernels with xz, and
    unpacking that under emulation takes a third of a boot. The image as it is where it has no such entry."""
    configuration = kernel.folder / f"boot/config-{kernel.release}"
    if not configuration.is_file() or "CONFIG_PVH=y" not in configuration.read_text("utf-8"):
        return kernel.image
    image = kernel.image.read_bytes()
    place = CACHE / f"vmlinux-{kernel.release}-{hashlib.sha256(image).hexdigest()[:16]}"
    if not place.is_file():
        data = payload(image)
        if not data:
            return kernel.image
        CACHE.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.rename(place)
    return place


def payload(image: bytes) -> bytes:
    """The ELF image inside a bzImage (Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length); empty
    when it is compressed in another way than with xz."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        return b""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    try:
        data = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[begin:begin + length])
    except lzma.LZMAError:
        return b""
    return data if data.startswith(b"\x7fELF") else b""


def _download() -> Kernel:
    for program in ("apt-cache", "apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise Skip(f"no kernel: {program} is not here to fetch one, and {VARIABLE} names none")
    listed = subprocess.run(["apt-cache", "search", "--names-only", "^linux-image-6\\.1\\..*-amd64-unsigned$"],
                            capture_output=True, text=True, check=False).stdout
    package = newest([line.split(" ")[0] for line in listed.splitlines()])
    if not package:
        raise Skip(f"no kernel: apt knows no linux-image-{SERIES}.*-amd64-unsigned (apt-get update?), and {VARIABLE} "
                   "names none")
    say(f"qemu: fetching {package} (about 70 MB, once; unpacked below {CACHE.relative_to(ROOT)}, not installed)")
    folder, work = CACHE / package, CACHE / f"{package}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with Heartbeat(f"apt-get download {package}"):
        trouble = _fetch(package, work)
    archives = list(work.glob("*.deb"))
    if trouble or not archives:
        shutil.rmtree(work, ignore_errors=True)
        raise Skip(f"no kernel: apt-get could not download {package}: {trouble or 'no archive came'}")
    with Heartbeat("unpacking"):
        subprocess.run(["dpkg", "-x", str(archives[0]), str(work)], check=True, stdin=subprocess.DEVNULL)
    archives[0].unlink()
    work.rename(folder)  # only a whole package gets the name under which it is looked for
    note(f"kernel in {folder.relative_to(ROOT)}")
    return Kernel(folder)


def _fetch(package: str, folder: pathlib.Path) -> str:
    """Downloads a package's archive into a folder; why that failed, or nothing. A mirror that says nothing is not waited
    for without end."""
    command = ["apt-get", "-q", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30", "-o",
               "Acquire::Retries=2", "download", package]
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=DOWNLOAD_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"it took longer than {DOWNLOAD_LIMIT_S} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def _depmod(kernel: Kernel) -> None:
    """The package leaves modules.dep to its installation."""
    program = shutil.which("depmod") or shutil.which("depmod", path="/usr/sbin:/sbin")
    if program is None:
        raise Skip("depmod is not installed (Debian: kmod); `scripts/dev setup` installs it")
    done = subprocess.run([program, "-b", str(kernel.folder), kernel.release], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise Failure(f"depmod could not index {kernel.modules}: {done.stderr.strip()}")


def closure(wanted: list, dependencies: str, builtin: str) -> list:
    """The files of the modules named in `wanted` and of all they need, in an order in which they can be loaded.
    `dependencies` is the text of modules.dep, `builtin` that of modules.builtin. Failure for an unknown name."""
    def name_of(path: str) -> str:
        return path.rpartition("/")[2].partition(".")[0].replace("-", "_")

    needs = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    path_of = {name_of(path): path for path in needs}
    in_kernel = {name_of(path) for path in builtin.split()}
    order = []

    def add(path: str) -> None:
        if path not in order:
            for other in reversed(needs[path]):  # modules.dep lists the direct need first
                add(other)
            order.append(path)

    for module in wanted:
        name = module.replace("-", "_")
        if name in path_of:
            add(path_of[name])
        elif name not in in_kernel:
            raise Failure(f"the guest's kernel has no module {module}")
    return order
