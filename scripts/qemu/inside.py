# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a guest, and the runner of what the host asked for. Standard library only: this is the host's
python3, with the host's files below it.

/run/terrace-qemu is the folder shared with the host:
  job.json      what to do: {"host", "topology", "modules", "memdevs", "soft_reserved", "exchange", "environment", "commands" |
                "shell"}
  events.jsonl  what happened, a line each: init, start, end, quit (scripts/qemu/machine.py reads it meanwhile)
  out/          a file per command with its output; commands may leave files of their own there
/run/terrace-exchange is shared by all guests of the topology, where there are several.
"""

import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import traceback

SHARE = pathlib.Path("/run/terrace-qemu")
EXCHANGE = pathlib.Path("/run/terrace-exchange")
EXIT_PORT = 0xF4  # isa-debug-exit: QEMU ends with (value << 1) | 1
OOPS = re.compile(r"\b(BUG:|Oops|general protection fault|kernel BUG at|unable to handle|blocked for more than)")


def tell(event: str, **fields) -> None:
    with open(SHARE / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "uptime": uptime(), **fields}) + "\n")


def uptime() -> float:
    return float(pathlib.Path("/proc/uptime").read_text("ascii").split()[0])


def leave(code: int) -> None:
    """Ends the guest. Only seven bits of `code` survive."""
    os.sync()
    try:
        with open("/dev/port", "wb", buffering=0) as port:
            port.seek(EXIT_PORT)
            port.write(bytes([min(code, 125)]))
    finally:
        ctypes.CDLL(None).reboot(0x4321FEDC)  # RB_POWER_OFF, should the port not be there
        os._exit(1)


class KernelLog:
    """What the kernel said since the last look; only complaints that mean a defect are of interest, and the lines
    behind each (`context`), which say where it was."""

    CONTEXT_LINES = 40

    def __init__(self):
        self.context = []
        self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        self.complaints()

    def complaints(self) -> list:
        found, self.context, left = [], [], 0
        while True:
            try:
                record = os.read(self._file, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                return found
            except OSError:  # EPIPE: records were overwritten before they were read
                continue
            text = record.partition(";")[2].splitlines()[0]
            if OOPS.search(text):
                found.append(text)
                left = self.CONTEXT_LINES
            if left > 0:
                self.context.append(text)
                left -= 1


def load_modules(job: dict) -> None:
    for module in job["modules"]:
        # -C: a rule of the ndctl package would start `ndctl load-keys` instead of loading libnvdimm.
        done = subprocess.run(["modprobe", "-C", "/nonexistent", module], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"modprobe {module}: {done.stderr.strip()}")
    cxl, dax = pathlib.Path("/sys/bus/cxl/devices"), pathlib.Path("/sys/bus/dax/devices")
    wait(lambda: len(list(cxl.glob("mem*"))) >= job["memdevs"], "the memdevs")
    wait(lambda: len(list(cxl.glob("pmem*"))) >= job["memdevs"], "the memdevs' label areas")
    if job["soft_reserved"]:
        wait(lambda: any("hmem" in os.path.realpath(path) for path in dax.glob("dax*")), "the soft-reserved node")


def wait(condition, what: str, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not appear within {limit_s:g} s")
        time.sleep(0.05)


def bring_up_network() -> None:
    for command in (["ip", "link", "set", "eth0", "up"], ["ip", "addr", "add", "10.0.2.15/24", "dev", "eth0"],
                    ["ip", "route", "add", "default", "via", "10.0.2.2"]):
        subprocess.run(["/bin/busybox", *command], check=False, capture_output=True)


def mount_exchange() -> None:
    EXCHANGE.mkdir()
    subprocess.run(["/bin/busybox", "mount", "-t", "9p", "-o", "trans=virtio,version=9p2000.L,cache=none", "exchange",
                    str(EXCHANGE)], check=True)


def run_command(command: dict, environment: dict, log: KernelLog) -> None:
    """One program to its end or its time limit; what it left running is ended and named."""
    name = command["name"]
    tell("start", name=name, limit_s=command["limit_s"])
    begin = time.monotonic()
    with open(SHARE / "out" / f"{name}.log", "ab") as output:
        process = subprocess.Popen(command["argv"], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env={**environment, "TERRACE_QEMU_TEST": name}, cwd=command["cwd"],
                                   start_new_session=True)
        try:
            code = process.wait(command["limit_s"])
        except subprocess.TimeoutExpired:
            code = 124
            output.write(waits_in_kernel().encode())
            kill_all_others()
            process.wait()
        left = kill_all_others()
        complaints = log.complaints()
        output.write("".join(f"kernel: {line}\n" for line in log.context).encode())
    tell("end", name=name, code=code, seconds=round(time.monotonic() - begin, 2), left=left, kernel=complaints)


def waits_in_kernel() -> str:
    """Where in the kernel each thread stands that no signal wakes: what a test that hangs waits for."""
    text = ""
    for thread in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            name, _, rest = (thread / "stat").read_text("ascii", "replace").partition("(")[2].rpartition(")")
            if rest.split()[0] == "D":
                text += f"{name}[{thread.name}] waits in the kernel:\n{(thread / 'stack').read_text('ascii')}"
        except OSError:
            continue  # it ended meanwhile
    return text


def kill_all_others() -> list:
    """Ends every process but process 1 and this one; returns what they were."""
    killed = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in (1, os.getpid()):
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            state = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
            if words != [b""] and state not in "ZX":  # kernel threads have no command line
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(" ".join(word.decode("utf-8", "replace") for word in words[:4]).strip())
        except OSError:
            continue  # it ended meanwhile
    return killed


def work() -> int:
    job = json.loads((SHARE / "job.json").read_text("utf-8"))
    tell("init")
    log = KernelLog()
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                   "LC_ALL": "C.UTF-8", "TERM": "linux", **job["environment"]}
    os.environ.update(environment)
    if os.path.exists("/proc/sys/kernel/hostname"):
        pathlib.Path("/proc/sys/kernel/hostname").write_text(f"guest{job['host']}", "ascii")
    bring_up_network()
    if job["exchange"]:
        mount_exchange()
    load_modules(job)
    tell("ready")
    if "shell" in job:
        return interactive(job["shell"], environment)
    for command in job["commands"]:
        run_command(command, environment, log)
    return 0


def interactive(argv: list, environment: dict) -> int:
    """A program on the console, with job control."""
    def take_terminal():
        os.setsid()
        terminal = os.open("/dev/ttyS0", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(terminal, number)
        import fcntl
        import termios
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.run(argv, env=environment, preexec_fn=take_terminal, check=False).returncode


def main() -> None:
    worker = os.fork()
    if worker == 0:
        code = 1
        try:
            os.setsid()
            code = work()
        except BaseException as error:  # whatever it is, the host must hear of it
            traceback.print_exc()
            tell("failed", reason=f"{type(error).__name__}: {error}")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code & 0xFF)
    while True:  # process 1 adopts what others leave behind
        ended, status = os.wait()
        if ended == worker:
            break
    code = os.waitstatus_to_exitcode(status)
    tell("quit", code=code)
    leave(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
