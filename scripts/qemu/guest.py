# SPDX-License-Identifier: Apache-2.0
"""What a guest is made of, as data, and the QEMU command line that makes it. Pure.

The traps that shape this (QEMU 7.2, kernel 6.1):
- KVM is not to be relied on where the host is itself a guest: instructions are always emulated (TCG).
- A host bridge with one root port reads as zeros, silently: 6.1 never programs the decoder of such a bridge, and
  QEMU needs it. Every bridge gets at least two ports, except in the topology that shows the trap.
- One region per host bridge: devices that shall have regions of their own sit below bridges of their own.
- pxb-cxl becomes the default bus: every other device names bus=pcie.0.
- An emulator that gets little processor time fails the kernel's check of its timer, and the kernel panics over it:
  no_timer_check.
- `rep stosb` to emulated CXL memory is eight times slower than plain stores: erms and fsrm are masked.
"""

import dataclasses

MIB = 1 << 20
GIB = 1 << 30
FIRST_BUS = 12      # of the first CXL host bridge; bridges are BUS_STEP buses apart
BUS_STEP = 48
WINDOW_BYTES = 4 * GIB
LABEL_BYTES = MIB
LOCAL_BYTES = 2 * GIB  # node 0; with node 1 behind it q35 puts exactly this much below 4 GiB
EXIT_PORT = 0xF4


@dataclasses.dataclass(frozen=True)
class Memdev:
    """A persistent CXL Type 3 device. `serial` tells it apart; its place in the guest does not."""

    serial: int
    size_bytes: int = 512 * MIB

    @property
    def name(self) -> str:
        return f"mem-{self.serial:x}"


@dataclasses.dataclass(frozen=True)
class Bridge:
    """A CXL host bridge with its root ports. A port holds a memdev, a tuple of memdevs behind a switch, or None."""

    ports: tuple


@dataclasses.dataclass(frozen=True)
class Topology:
    """One kind of guest. `windows` lists, for each CXL window of the memory map, the bridges (by index) it
    interleaves over. `soft_reserved_bytes` is a CPU-less NUMA node that the guest's kernel leaves to dax_hmem."""

    summary: str
    bridges: tuple = ()
    windows: tuple = ()
    soft_reserved_bytes: int = 0
    modules: tuple = ()  # loaded before anything runs; others are there for modprobe
    hosts: int = 1       # guests that share the media files, each with label areas of its own

    def memdevs(self) -> list:
        found = []
        for bridge in self.bridges:
            for port in bridge.ports:
                found += list(port) if isinstance(port, tuple) else [port] if port else []
        return found


_CXL = ("cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "libnvdimm", "nd_pmem", "device_dax", "dax_pmem")
_HMEM = ("device_dax", "dax_hmem")
_TWO_BRIDGES = (Bridge((Memdev(0xC0), None)), Bridge((Memdev(0xC1), None)))

TOPOLOGIES = {
    "plain": Topology("no special memory; for what uses the emulated backend"),
    "standard": Topology("two memdevs on two bridges, a window each; soft-reserved HMAT node", _TWO_BRIDGES,
                         ((0,), (1,)), GIB, _CXL + ("dax_hmem",)),
    "interleave": Topology("one bridge, two ports with a memdev each, one window: x2 below the bridge",
                           (Bridge((Memdev(0xC0), Memdev(0xC1))),), ((0,),), 0, _CXL),
    "two-bridges": Topology("two bridges in one window: x2 across bridges", _TWO_BRIDGES, ((0, 1),), 0, _CXL),
    "switch": Topology("two memdevs behind a switch: x2 below the switch",
                       (Bridge(((Memdev(0xC0), Memdev(0xC1)), None)),), ((0,),), 0, _CXL),
    "one-port": Topology("a bridge with a single root port: its memory reads as zeros, and nothing says so",
                         (Bridge((Memdev(0xC0),)),), ((0,),), 0, _CXL),
    "hmem": Topology("soft-reserved HMAT node only", (), (), GIB, _HMEM),
    "two-hosts": Topology("two guests over the same media: memdevs and soft-reserved node are shared", _TWO_BRIDGES,
                          ((0,), (1,)), GIB, _CXL + ("dax_hmem",), hosts=2),
}


@dataclasses.dataclass(frozen=True)
class Files:
    """What the command line refers to on this machine. `media` and `labels` are folders; label areas belong to one
    guest, media to the run."""

    kernel: str
    initramfs: str
    share: str    # the folder both sides write
    media: str
    labels: str
    exchange: str  # the folder that all guests of a run write, where there are several
    root: str = "/"


def media_files(topology: Topology) -> dict:
    """Name and size of each backing file below Files.media."""
    files = {f"{memdev.name}.raw": memdev.size_bytes for memdev in topology.memdevs()}
    if topology.soft_reserved_bytes:
        files["node1.raw"] = topology.soft_reserved_bytes
    return files


def label_files(topology: Topology) -> dict:
    return {f"{memdev.name}.lsa": LABEL_BYTES for memdev in topology.memdevs()}


def command_line(emulator: str, topology: Topology, files: Files, forwards: tuple = (), serial: str = "stdio") -> list:
    """The whole QEMU command. `forwards`: (host port, guest port) pairs, TCP on the loopback of this machine."""
    machine = "q35" + (",cxl=on" if topology.bridges else "") + (",hmat=on" if topology.soft_reserved_bytes else "")
    memory = LOCAL_BYTES + topology.soft_reserved_bytes
    command = [emulator, "-accel", "tcg,thread=multi", "-cpu", "max,-hypervisor,-erms,-fsrm,-la57", "-M", machine,
               "-m", f"{memory // MIB}M", "-smp", "2", "-nodefaults", "-no-user-config", "-display", "none",
               "-no-reboot", "-serial", serial,
               "-device", f"isa-debug-exit,iobase={EXIT_PORT:#x},iosize=0x04",
               *_share("root", files.root, readonly=True), *_share("share", files.share, readonly=False),
               *(_share("exchange", files.exchange, readonly=False) if topology.hosts > 1 else ()),
               "-netdev", "user,id=net0" + "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}"
                                                   for here, there in forwards),
               "-device", "virtio-net-pci,netdev=net0,romfile=,bus=pcie.0"]
    command += _numa(topology, files) + _cxl(topology, files)
    return command + ["-kernel", files.kernel, "-initrd", files.initramfs, "-append", kernel_command(topology)]


def kernel_command(topology: Topology) -> str:
    words = ["console=ttyS0", "quiet", "loglevel=3", "panic=-1", "pcie_ports=compat", "random.trust_cpu=on",
             "mitigations=off", "no_timer_check"]
    if topology.soft_reserved_bytes:
        # 0xefffffff is the type of soft-reserved memory; efi_fake_mem= is not configured in Debian's kernels.
        words.append(f"memmap={topology.soft_reserved_bytes // MIB}M%4G-1+0xefffffff")
    return " ".join(words)


def _share(tag: str, path: str, readonly: bool) -> list:
    return ["-fsdev", f"local,id=fs-{tag},path={_escaped(path)},security_model=none,multidevs=remap"
            + (",readonly=on" if readonly else ""),
            "-device", f"virtio-9p-pci,fsdev=fs-{tag},mount_tag={tag},bus=pcie.0"]


def _escaped(path: str) -> str:
    return path.replace(",", ",,")  # QEMU's option syntax


def _numa(topology: Topology, files: Files) -> list:
    if not topology.soft_reserved_bytes:
        return []
    command = ["-object", f"memory-backend-ram,id=node0,size={LOCAL_BYTES}",
               "-object", f"memory-backend-file,id=node1,share=on,mem-path={_escaped(files.media)}/node1.raw,"
               f"size={topology.soft_reserved_bytes}",
               "-numa", "node,nodeid=0,cpus=0-1,memdev=node0", "-numa", "node,nodeid=1,memdev=node1,initiator=0",
               "-numa", "dist,src=0,dst=1,val=20"]
    for target, latency_ns, bandwidth in ((0, 100, "20G"), (1, 300, "8G")):
        place = f"hmat-lb,initiator=0,target={target},hierarchy=memory"
        command += ["-numa", f"{place},data-type=access-latency,latency={latency_ns}",
                    "-numa", f"{place},data-type=access-bandwidth,bandwidth={bandwidth}"]
    return command


def _cxl(topology: Topology, files: Files) -> list:
    command, chassis = [], 0
    for index, bridge in enumerate(topology.bridges):
        command += ["-device", f"pxb-cxl,bus_nr={FIRST_BUS + index * BUS_STEP},bus=pcie.0,id=cxl.{index}"]
        for number, port in enumerate(bridge.ports):
            chassis += 1
            root_port = f"rp{index}-{number}"
            command += ["-device", f"cxl-rp,port={number},bus=cxl.{index},id={root_port},chassis={chassis},"
                        f"slot={2 + number}"]
            if isinstance(port, Memdev):
                command += _memdev(port, root_port, files)
            elif port:
                command += ["-device", f"cxl-upstream,bus={root_port},id=up{index}-{number}"]
                for leg, memdev in enumerate(port):
                    chassis += 1
                    down = f"down{index}-{number}-{leg}"
                    command += ["-device", f"cxl-downstream,port={leg},bus=up{index}-{number},id={down},"
                                f"chassis={chassis},slot={4 + leg}", *_memdev(memdev, down, files)]
    parts = []
    for window, bridges in enumerate(topology.windows):
        parts += [f"cxl-fmw.{window}.targets.{at}=cxl.{bridge}" for at, bridge in enumerate(bridges)]
        parts.append(f"cxl-fmw.{window}.size={WINDOW_BYTES}")
    return command + (["-M", ",".join(parts)] if parts else [])


def _memdev(memdev: Memdev, bus: str, files: Files) -> list:
    name = memdev.name
    return ["-object", f"memory-backend-file,id=media-{name},share=on,mem-path={_escaped(files.media)}/{name}.raw,"
            f"size={memdev.size_bytes}",
            "-object", f"memory-backend-file,id=labels-{name},share=on,mem-path={_escaped(files.labels)}/{name}.lsa,"
            f"size={LABEL_BYTES}",
            "-device", f"cxl-type3,bus={bus},memdev=media-{name},lsa=labels-{name},id={name},sn={memdev.serial:#x}"]
