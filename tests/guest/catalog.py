"""The tests that run inside guests: what each needs, how long it may take, and whether CI runs it. Data only: the
host reads this without any of the guest's means.

A command is an argument list; {tree} and {build} stand for the source tree and the build folder, both of which are
inside a guest where they are outside. Tests of one topology share a boot, in this order, unless `alone`.
"""

import dataclasses

PYTHON = ("/usr/bin/python3", "-B")


@dataclasses.dataclass(frozen=True)
class GuestTest:
    name: str
    commands: tuple          # one per host of the topology
    topology: str = "standard"
    limit_s: int = 120
    ci: bool = True
    _: dataclasses.KW_ONLY
    alone: bool = False      # a boot of its own: it leaves devices in a state that others do not expect
    boots: int = 1           # over the same media and label areas; the commands see TERRACE_QEMU_BOOT=0, 1, ...
    outside: str = ""        # function of outside.py that then looks at the media files, on this side
    forwards: tuple = ()     # per host, the guest ports that get a port of this machine


def _script(*arguments) -> tuple:
    return ((*PYTHON, *arguments),)


def _cli(family: str) -> GuestTest:
    return GuestTest(f"cli-{family}", _script(f"{{tree}}/tests/integration/cli/{family}_test.py"), "plain", 900, False)


def _hardware(topology: str, outside: str = "placement", ci: bool = False) -> GuestTest:
    return GuestTest(f"hardware-{topology}", _script("{tree}/tests/guest/hardware_test.py"), topology, 120, ci,
                     alone=True, outside=outside)


TESTS = (
    # The guests themselves.
    _hardware("standard", ci=True), _hardware("interleave"), _hardware("two-bridges"), _hardware("switch"),
    _hardware("one-port", ""),
    # The integration tests of the tree, with the emulated backend: the programs do on this kernel what they do outside.
    _cli("status"), _cli("daemon"), _cli("pool"), _cli("lease"), _cli("compose"), _cli("policy"),
    GuestTest("session", _script("{tree}/tests/integration/session/session_test.py"), "plain", 600),
    GuestTest("shim-run", _script("{tree}/tests/integration/shim/run_test.py"), "plain", 900, ci=False),
    GuestTest("shim", _script("{tree}/tests/integration/shim/shim_test.py"), "plain", 1800, ci=False),
)
