# SPDX-License-Identifier: Apache-2.0
"""Why this machine cannot boot guests: said as a skip, never as a pass."""

import shutil

from devlib.output import Skipped as Skip

EXIT_SKIPPED = 77  # of a test program, and of this verb
EMULATOR = "qemu-system-x86_64"


def need_emulator() -> str:
    found = shutil.which(EMULATOR)
    if found is None:
        raise Skip(f"{EMULATOR} is not installed (Debian: qemu-system-x86); `scripts/dev setup` installs it")
    return found


def need_busybox() -> str:
    found = shutil.which("busybox")
    if found is None:
        raise Skip("busybox is not installed (Debian: busybox-static); `scripts/dev setup` installs it")
    return found
