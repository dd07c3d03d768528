# SPDX-License-Identifier: Apache-2.0
"""TCP ports of loopback that nobody else takes while this process lives.

A port that the kernel picked (bind to 0, then close) is free for a moment only: until the program under test
binds it, any connection that another test opens may get it as its own end. These ports lie below the range from
which the kernel picks, and a test that has one holds an abstract socket named after it, so that two tests never
have the same one. The kernel gives both back when the process ends, however it ends.
"""
import random
import socket

LOWEST = 10000
_held = []


def _range_end():
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as text:
            first = int(text.read().split()[0])
    except OSError:
        first = 32768
    return first if first > LOWEST + 1000 else 32768


def _reserve(port):
    """The socket that says that `port` is ours; None when another test or another program has the port."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0terrace-test-port-{port}")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: the past is no obstacle
            probe.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return None
    return mark


def free_ports(count):
    """`count` different ports of 127.0.0.1, this process's own until it ends."""
    ports, end = [], _range_end()
    at = random.SystemRandom().randrange(LOWEST, end)
    for step in range(end - LOWEST):
        if len(ports) == count:
            return ports
        port = LOWEST + (at - LOWEST + step) % (end - LOWEST)
        if (mark := _reserve(port)) is not None:
            _held.append(mark)
            ports.append(port)
    raise RuntimeError(f"no {count} free ports from {LOWEST} to {end - 1}")


def free_port():
    return free_ports(1)[0]
