# SPDX-License-Identifier: Apache-2.0
"""What the tests inside guests share: looks at devices from outside of Terrace (sysfs, cxl, ndctl, daxctl), a tenant
that is driven line by line, and the folder that both sides of a guest see. Standard library only."""

import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import terrace_harness as harness  # noqa: E402

MIB = 1 << 20
SHARE = pathlib.Path("/run/terrace-qemu")
OUT = SHARE / "out"
DAX = pathlib.Path("/sys/bus/dax/devices")
CXL = pathlib.Path("/sys/bus/cxl/devices")
NODES = pathlib.Path("/sys/devices/system/node")


def in_guest():
    return (SHARE / "job.json").is_file()


def host():
    """The number of this guest among those of its topology."""
    return json.loads((SHARE / "job.json").read_text())["host"]


def topology():
    return json.loads((SHARE / "job.json").read_text())["topology"]


def cuts():
    """How often this guest has lost its power by ask_for_power_cut()."""
    return int(os.environ.get("TERRACE_QEMU_CUTS", 0))


def ask_for_power_cut(after_s):
    """Returns never: QEMU is killed about `after_s` from now, and started again over the same media. The command that runs now
    is then started anew, with cuts() one more."""
    with open(SHARE / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": "cut", "after_s": after_s}) + "\n")
    time.sleep(after_s + 120)
    raise AssertionError("this guest asked for a power cut, and has power")


def command(*words, check=True):
    """A program's output; AssertionError with all of it when it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"$ {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def listed(*words):
    """The JSON of `cxl list`, `daxctl list` or `ndctl list`, always as a list."""
    text = command(*words).strip()
    document = json.loads(text) if text else []
    return document if isinstance(document, list) else [document]


def modprobe(*names):
    for name in names:
        command("modprobe", "-C", "/nonexistent", name)  # without the rule that ndctl's package installs


def read(path):
    return pathlib.Path(path).read_text().strip()


def memdev(serial):
    """The kernel's name of a memdev for this boot, "mem0", by serial."""
    for path in CXL.glob("mem*"):
        if int(read(path / "serial"), 0) == serial:
            return path.name
    raise AssertionError(f"no memdev with serial {serial:#x}: {sorted(path.name for path in CXL.glob('mem*'))}")


class DaxDevice:
    """A dax device as sysfs shows it now."""

    def __init__(self, path):
        self.name = path.name
        self.real = os.path.realpath(path)
        self.size = int(read(path / "size"))
        self.enabled = (path / "driver").exists()
        self.mode = {"device_dax": "devdax", "kmem": "system-ram"}.get(
            os.path.basename(os.path.realpath(path / "driver")), "disabled") if self.enabled else "disabled"
        self.target_node = int(read(path / "target_node"))
        self.ranges = []  # (physical start, bytes) of each mapping, in the device's order
        for mapping in sorted(path.glob("mapping[0-9]*"), key=lambda entry: int(entry.name.removeprefix("mapping"))):
            start, end = int(read(mapping / "start"), 0), int(read(mapping / "end"), 0)
            self.ranges.append((start, end - start + 1))

    @property
    def dynamic(self):
        return "hmem" in self.real

    def __repr__(self):
        return f"{self.name}({self.size // MIB} MiB, {self.mode})"


def dax_devices(dynamic=None):
    """name -> DaxDevice; of dynamic regions only, or of static ones only, where that is asked for. A device that goes
    while it is read is not there."""
    found = {}
    for path in DAX.glob("dax*"):
        try:
            device = DaxDevice(path)
        except OSError:
            continue
        if dynamic is None or device.dynamic == dynamic:
            found[device.name] = device
    return found


def overlaps(ranges):
    """Pairs of (start, bytes) that share a byte."""
    ordered = sorted(ranges)
    return [(first, second) for first, second in zip(ordered, ordered[1:]) if first[0] + first[1] > second[0]]


def first_byte(seed):
    """Of what the tenant's `fill` writes."""
    value = 0x9E3779B97F4A7C15 ^ (seed * 0xBF58476D1CE4E5B9 & (1 << 64) - 1)
    return (value ^ value >> 31) & 0xFF


class Tenant:
    """guest_tenant as a process: ask() sends a command and returns its answer; notices gather in .notices."""

    def __init__(self, service, *arguments):
        program = harness.find_binary("tests/guest/guest_tenant", service.build_dir)
        self.process = service.popen(program, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.notices = []
        self._answers = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        first = self._answers.get(timeout=60)
        if first != "ready":
            self.close()
            raise AssertionError(f"the tenant could not connect: {first}")

    @property
    def pid(self):
        return self.process.pid

    def _read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line.startswith("notice "):
                self.notices.append(line.removeprefix("notice "))
            else:
                self._answers.put(line.removeprefix("= "))
        self._answers.put("gone")

    def send(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout=120):
        told = self._answers.get(timeout=timeout)
        if told == "gone":
            raise AssertionError(f"the tenant ended with {self.process.wait(30)}")
        return told

    def ask(self, *words, timeout=120):
        self.send(*words)
        return self.answer(timeout)

    def expect(self, wanted, *words, timeout=120):
        told = self.ask(*words, timeout=timeout)
        if told != wanted:
            raise AssertionError(f"{' '.join(map(str, words))}: expected '{wanted}', told '{told}'")

    def kill(self):
        self.process.kill()
        self.close()

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(30)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        return self.process.returncode


class Exchange:
    """Messages between the two guests of a topology, as files in a folder that the host shares with both."""

    def __init__(self, folder=pathlib.Path("/run/terrace-exchange")):
        self.folder = folder

    def put(self, name, document):
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(document))
        part.rename(self.folder / f"{name}.json")

    def get(self, name, timeout=120):
        path = self.folder / f"{name}.json"
        deadline = time.monotonic() + timeout
        while not path.exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"the other guest did not say '{name}' within {timeout} s")
            time.sleep(0.1)
        return json.loads(path.read_text())


def plug_again():
    """Makes the soft-reserved region what the kernel finds at a boot: one device with all of its memory."""
    region = pathlib.Path(next(iter(dax_devices(dynamic=True).values())).real).parent
    driver = pathlib.Path(os.path.realpath(region / "driver"))
    (driver / "unbind").write_text(region.name)
    (driver / "bind").write_text(region.name)


def create_region(serials, decoder="decoder0.0", granularity=256):
    """A persistent region over memdevs in this order, by the cxl command: (its name, physical start). The command
    exits 0 although it created nothing, so its answer counts."""
    names = [memdev(serial) for serial in serials]
    words = ["cxl", "create-region", "-d", decoder, "-m", "-t", "pmem", "-w", len(names)]
    if len(names) > 1:
        words += ["-g", granularity]
    text = command(*words, *names, check=False)
    if '"region"' not in text:
        raise AssertionError(f"no region over {names} below {decoder}: {text}")
    region = json.loads(text[text.index("{"):])
    return region["region"], int(region["resource"])


def chardev(namespace):
    """The name of a devdax namespace's device, in what ndctl tells; empty while it is disabled."""
    return next((device["chardev"] for device in namespace.get("daxregion", {}).get("devices", [])
                 if "chardev" in device), namespace.get("chardev", ""))


def create_namespace(region, size):
    """A devdax namespace, by the ndctl command: its DaxDevice."""
    made = json.loads(command("ndctl", "create-namespace", "-r", region, "-m", "devdax", "-s", size, "-a", "2M"))
    return dax_devices()[chardev(made)]


def physical_start(device):
    """Where a dax device begins in the machine's address space."""
    return device.ranges[0][0] if device.ranges else int(read(f"{device.real}/resource"), 0)
