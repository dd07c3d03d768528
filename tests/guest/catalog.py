# SPDX-License-Identifier: Apache-2.0
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
    return GuestTest(f"cli-{family}", _script(f"{{tree}}/tests/integration/cli/{family}_test.py"), "plain", 1800, False)


def _hardware(topology: str, outside: str = "placement", ci: bool = False) -> GuestTest:
    return GuestTest(f"hardware-{topology}", _script("{tree}/tests/guest/hardware_test.py"), topology, 120, ci,
                     alone=True, outside=outside)


def _guest(name: str, file: str, topology: str, limit_s: int, ci: bool = True, *arguments, **options) -> GuestTest:
    return GuestTest(name, _script(f"{{tree}}/tests/guest/{file}_test.py", *arguments), topology, limit_s, ci, **options)


def _shared_space(memory: str) -> GuestTest:
    return GuestTest(f"shared-space-{memory}", _script("{tree}/tests/guest/shared_space_test.py", "--memory", memory) * 2,
                     "two-hosts", 600)


def _kv_space(memory: str) -> GuestTest:
    return GuestTest(f"kv-space-{memory}", _script("{tree}/tests/guest/kv_space_test.py", "--memory", memory) * 2,
                     "two-hosts", 600)


PINS_SHORT = ("Pins.test_a_page_in_a_pipe_shows_its_old_bytes_and_keeps_the_memory",
              "Pins.test_direct_input_under_way_ends_before_the_fence",
              "Pins.test_a_holder_that_agreed_is_ended_and_the_memory_is_back_at_once")

TESTS = (
    # The guests themselves, without Terrace.
    _hardware("standard", ci=True), _hardware("interleave"), _hardware("two-bridges"), _hardware("switch"),
    _hardware("one-port", ""),
    # What is seen, and what doctor says of it.
    _guest("inventory", "doctor", "standard", 240),
    _guest("doctor-one-port", "doctor", "one-port", 120, False),
    _guest("doctor-fix", "doctor", "hmem", 300),
    # Leases that are dax devices of a dynamic region.
    _guest("session-devdax", "session_real", "hmem", 600),
    _guest("devdax", "devdax", "hmem", 600, False, "Life", alone=True),
    _guest("devdax-restarts", "devdax", "hmem", 1800, False, "Restarts", alone=True),
    _guest("pins-devdax", "pins", "hmem", 900, False, alone=True),
    _guest("pins-devdax-short", "pins", "hmem", 400, True, *PINS_SHORT, alone=True),
    _guest("devdax-path", "lease_path", "hmem", 600, True, "--kind", "devdax", alone=True),
    _guest("devdax-crash", "lease_crash", "hmem", 1200, False, "--kind", "devdax", alone=True),
    # Dax memory as a memory node of the guest: a pool of it, and back.
    _guest("numa", "numa", "hmem", 900, alone=True),
    # Tiered ranges between that node and node 0.
    _guest("node-range", "node_range", "hmem", 300, False, alone=True),
    # Leases that are namespaces of a composed region.
    _guest("pmem", "lease_path", "standard", 900, False, "--kind", "pmem", alone=True),
    _guest("pins-pmem", "pins", "standard", 1800, False, "--kind", "pmem", alone=True),
    _guest("pins-pmem-short", "pins", "standard", 600, True, "--kind", "pmem", PINS_SHORT[0], alone=True),
    _guest("pmem-reboot", "reboot", "standard", 300, True, "--kind", "pmem", boots=2),
    _guest("pmem-crash", "lease_crash", "standard", 1200, False, "--kind", "pmem", alone=True),
    _guest("regions", "pmem", "standard", 600, alone=True),
    _guest("regions-one-bridge", "pmem", "interleave", 240, False),
    _guest("regions-two-bridges", "pmem", "two-bridges", 240, False),
    _guest("regions-one-port", "pmem", "one-port", 240),
    _guest("region-crash", "region_crash", "standard", 600, False, alone=True),
    _guest("interleave", "interleave", "interleave", 240, outside="placement", alone=True),
    _guest("interleave-switch", "interleave", "switch", 240, False, outside="placement", alone=True),
    _guest("interleave-two-bridges", "interleave", "two-bridges", 240, False, outside="placement", alone=True),
    # Two hosts, one memory: a manager and an agent over the same soft-reserved node.
    GuestTest("two-hosts", _script("{tree}/tests/guest/two_hosts_test.py") * 2, "two-hosts", 900,
              forwards=((7311,), ())),
    # Two hosts, one tensor space: writers and readers on both, killed at random.
    _shared_space("coherent"), _shared_space("noncoherent"),
    # Two hosts, one KV space: processes killed and stopped on both, and one guest's power is cut.
    _kv_space("coherent"), _kv_space("noncoherent"),
    # Two hosts with leases of a manager: KV spaces in them, handed over, taken away, and lost with a guest's power.
    GuestTest("kv-leases", _script("{tree}/tests/guest/kv_leases_test.py") * 2, "two-hosts", 900, forwards=((7312,), ())),
    # One lease on both hosts, and one KV space in it; the power of one is cut.
    GuestTest("kv-hosts", _script("{tree}/tests/guest/kv_hosts_test.py") * 2, "two-hosts", 900, forwards=((7313,), ())),
    # The integration tests of the tree, with the emulated backend: the programs do on this kernel what they do outside.
    _cli("status"), _cli("daemon"), _cli("pool"), _cli("lease"), _cli("compose"), _cli("policy"),
    GuestTest("session", _script("{tree}/tests/integration/session/session_test.py"), "plain", 600, ci=False),
    GuestTest("shim-run", _script("{tree}/tests/integration/shim/run_test.py"), "plain", 900, ci=False),
    *(GuestTest(f"shim-{suite}", _script(f"{{tree}}/tests/integration/shim/shim_{suite}_test.py"), "plain", 900, ci=False)
      for suite in ("heap", "blocks", "fork", "programs")),
)
