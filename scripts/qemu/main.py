# SPDX-License-Identifier: Apache-2.0
"""`scripts/dev qemu`: tests in guests, a guest with a shell, or one script in a guest."""

import argparse
import math
import os
import pathlib
import sys
import termios
import time

from devlib.commands import ROOT
from devlib.output import Failure, note, say
from qemu import runner
from qemu.guest import TOPOLOGIES
from qemu.machine import Job, Machine, RunFolder

sys.path.insert(0, str(ROOT / "tests/guest"))
from catalog import PYTHON, GuestTest  # noqa: E402


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("tests", nargs="*", metavar="TEST", help="names or patterns of guest tests; `shell` for a guest "
                      "to use by hand; `run FILE [ARGUMENT...]` for one Python or shell script in a guest; default: all")
    verb.add_argument("--list", action="store_true", help="show the tests and topologies")
    verb.add_argument("--ci", action="store_true", help="only CI's selection")
    verb.add_argument("--topology", default="standard", choices=sorted(TOPOLOGIES), help="of `shell` and `run` "
                      "(default: standard)")
    verb.add_argument("--preset", default=runner.PRESET, help=f"build to use (default: {runner.PRESET}, which is "
                      "optimised and has failpoints)")
    verb.add_argument("--no-build", action="store_true", help="take the programs as they are built")
    verb.add_argument("--build-dir", default="", metavar="DIR", help="take the programs of this build folder instead")
    verb.add_argument("--kernel", default="", metavar="DIR", help="an unpacked kernel package (also "
                      "$TERRACE_QEMU_KERNEL); default: Debian's, downloaded once")
    verb.add_argument("--limit", type=int, default=600, metavar="S", help="time limit of `run` (default 600)")
    verb.add_argument("--forward", default="", metavar="PORT,...", help="ports of each guest of `run` that other guests "
                      "reach at 10.0.2.2, port $TERRACE_QEMU_PORT_<host>_<PORT>")
    verb.add_argument("--json", default="", metavar="FILE", help="also write the results here")
    verb.add_argument("--keep", action="store_true", help="keep the folder with outputs, logs and media files")


def qemu(arguments: argparse.Namespace) -> None:
    if arguments.list:
        runner.show_list()
    elif arguments.tests[:1] == ["shell"]:
        _shell(arguments)
    elif arguments.tests[:1] == ["run"]:
        _run_script(arguments)
    else:
        tests = runner.select(arguments.tests, arguments.ci)
        began = time.monotonic()
        machine = _runner(arguments)
        limit_s = runner.CI_LIMIT_S if arguments.ci and not arguments.tests else math.inf
        runner.conclude(machine.run(tests, limit_s), began, arguments.json)


def ci_selection() -> None:
    """CI's stage: its selection, in the preset that other stages have built, within a time of its own."""
    began = time.monotonic()
    machine = runner.Runner(targets=runner.CI_TARGETS)
    runner.conclude(machine.run(runner.select([], True), runner.CI_LIMIT_S), began, "")


def _runner(arguments: argparse.Namespace) -> runner.Runner:
    return runner.Runner(arguments.preset, arguments.kernel, arguments.keep, not arguments.no_build,
                         arguments.build_dir)


def _run_script(arguments: argparse.Namespace) -> None:
    if len(arguments.tests) < 2:
        raise Failure("run: which file?", 2)
    script = pathlib.Path(arguments.tests[1]).resolve()
    if not script.is_file():
        raise Failure(f"run: {script} is not there", 2)
    interpreter = PYTHON if script.suffix == ".py" else () if os.access(script, os.X_OK) else ("/bin/bash",)
    argv = (*interpreter, str(script), *arguments.tests[2:])
    topology = TOPOLOGIES[arguments.topology]
    ports = tuple(int(port) for port in arguments.forward.split(",") if port)
    test = GuestTest(script.stem, (argv,) * topology.hosts, arguments.topology, arguments.limit,
                     forwards=(ports,) * topology.hosts)
    machine = _runner(arguments)
    began = time.monotonic()
    machine.show_output = True
    runner.conclude(machine.run([test]), began, arguments.json)


def _shell(arguments: argparse.Namespace) -> None:
    machine = _runner(arguments)
    topology = TOPOLOGIES[arguments.topology]
    say(f"qemu: a guest ({arguments.topology}: {topology.summary})")
    note("`exit` ends it, and so does Ctrl-A X; Ctrl-C goes to the guest. The host's files are there, read-only: what")
    note("is written stays in the guest, but for /run/terrace-qemu/out.")
    job = Job(shell=("/bin/bash", "--rcfile", str(ROOT / "scripts/qemu/shellrc"), "-i"),
              environment=tuple(machine.environment().items()))
    terminal = termios.tcgetattr(0) if sys.stdin.isatty() else None
    with RunFolder(topology, arguments.keep) as folder:
        guest = Machine(folder, 0, machine.kernel, machine.initramfs, job, console=True)
        try:
            guest.wait()
        finally:
            guest.close()
            if terminal:
                termios.tcsetattr(0, termios.TCSADRAIN, terminal)
