# SPDX-License-Identifier: Apache-2.0
"""A guest with a kernel of Debian's, busybox, and a shell that this side gives commands to."""

import pathlib
import shutil
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))
from qemu import kernel as kernels  # noqa: E402
from qemu.cpio import Archive  # noqa: E402
from qemu.skip import Skip, need_busybox  # noqa: E402

QEMU = "qemu-system-x86_64"
PATIENCE_S = 180  # instructions are emulated, and the machine may be busy
# Memory is put online as it comes, where it can be taken away again. Commands come over the second serial port.
WORDS = "console=ttyS0 quiet panic=-1 no_timer_check memhp_default_state=online_movable"
INIT = b"""#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod $module; done </modules.list
mkdir /far
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo READY
while read -r line; do eval "$line"; done
"""


def why_not():
    """Why no guest can be started here; empty: one can."""
    if shutil.which(QEMU) is None:
        return f"{QEMU} is not installed"
    try:
        need_busybox()
        kernels.find()
    except Skip as skip:
        return str(skip)
    return ""


class Image:
    """What a guest boots: the kernel, and an archive with its first program and modules."""

    def __init__(self, folder):
        kernel = kernels.find()
        archive = Archive()
        for name in ("proc", "sys", "dev", "sbin"):
            archive.folder(name)
        archive.device("dev/console", 5, 1)
        archive.file("bin/busybox", pathlib.Path(need_busybox()).read_bytes(), 0o755)
        archive.link("bin/sh", "busybox")
        archive.file("init", INIT, 0o755)
        listed = []
        for number, name in enumerate(kernels.closure(["virtio_pci", "virtio_mem"], (kernel.modules / "modules.dep").read_text("utf-8"),
                                                      (kernel.modules / "modules.builtin").read_text("utf-8"))):
            listed.append(f"/modules/{number:02}.ko\n")
            archive.file(listed[-1].strip(), (kernel.modules / name).read_bytes())
        archive.file("modules.list", "".join(listed).encode())
        self.kernel = kernel.boots
        self.initrd = pathlib.Path(folder) / "initrd"
        self.initrd.write_bytes(archive.bytes())

    def words(self, shell, log):
        """QEMU's words, less its memory; `shell` and `log` are paths."""
        return [QEMU, "-accel", "tcg", "-cpu", "max,-la57", "-machine", "q35", "-nodefaults", "-no-user-config",
                "-display", "none", "-no-reboot", "-kernel", str(self.kernel), "-initrd", str(self.initrd), "-append", WORDS,
                "-serial", f"file:{log}", "-serial", f"unix:{shell},server=on,wait=off"]


class Shell:
    """Commands in the guest, one after the other."""

    def __init__(self, path, alive):
        """`alive` raises when the machine has ended."""
        deadline = time.monotonic() + PATIENCE_S
        self.stream = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.stream.connect(str(path))
                break
            except OSError:
                alive()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.stream.settimeout(PATIENCE_S)
        self.lines = self.stream.makefile("rb")
        self.number = 0
        while b"READY" not in self.lines.readline():
            alive()

    def run(self, command):
        """What it printed."""
        self.number += 1
        self.stream.sendall(f"{command}; echo @@{self.number}\n".encode())
        said = []
        while True:
            line = self.lines.readline()
            assert line, "the guest has ended"
            if line.strip() == b"@@%d" % self.number:
                return b"".join(said).decode().replace("\r", "")
            said.append(line)

    def far_bytes(self):
        """Of the node that is leased memory."""
        said = self.run("grep MemTotal /sys/devices/system/node/node1/meminfo 2>/dev/null")
        return int(said.split()[3]) << 10 if said.strip() else 0

    def fill(self, first, last):
        """Numbers, a line each, in memory of that node; their checksum."""
        self.run("mountpoint -q /far || mount -t tmpfs -o mpol=bind:1,size=100% far /far")
        self.run(f"seq {first} {last} >/far/numbers")
        return self.sum()

    def sum(self):
        return self.run("sha256sum </far/numbers").split()[0]

    def close(self):
        self.lines.close()
        self.stream.close()


def numbers(first, last):
    """What fill() wrote."""
    return b"".join(b"%d\n" % number for number in range(first, last + 1))
