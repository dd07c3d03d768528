# SPDX-License-Identifier: Apache-2.0
"""Hosts for the agents' tests: a manager and agents, each in a network namespace of its own, behind one bridge.

    with Fabric() as fabric:
        manager = fabric.manager()                  # started, with --listen
        b = fabric.agent("hostb")                   # started, registered
        fabric.cut(b.name, "out")                   # what hostb sends is lost; "in": what it is sent; "both"
        fabric.reconnect(b.name)

Packets are lost silently, by a queue of length 0 on one side of the host's link. Needs root, ip and tc.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

PORT = 7311
MANAGER_ADDRESS = "10.77.0.1"


def sh(*command, check=True):
    return subprocess.run([str(word) for word in command], check=check, capture_output=True, text=True, timeout=30)


def why_not():
    """Why there can be no network namespaces here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    name = f"tt{os.getpid()}x"
    try:
        sh("ip", "netns", "add", name)
        sh("ip", "-n", name, "link", "add", "tt0", "type", "bridge")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        sh("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "pfifo", "limit", "0")
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces cannot be made here: {getattr(error, 'stderr', error)}"
    finally:
        sh("ip", "netns", "del", name, check=False)
    return ""


class Host(Harness):
    """One terraced in a network namespace; everything that Harness can do."""

    def __init__(self, fabric, name, daemon_args, **options):
        super().__init__(name=name, **options)
        self.name = name
        self.fabric = fabric
        self.namespace = fabric.namespace(name)
        self.daemon_args += [str(argument) for argument in daemon_args]
        # Builds with failpoints then take less than the 10 s of a host lease that others insist on.
        self.env["TERRACE_SHORT_HOST_LEASE"] = "1"

    def daemon_command(self):
        return ["nsenter", f"--net=/run/netns/{self.namespace}"] + super().daemon_command()

    def text(self):
        """The whole log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def objects(self):
        """Memory objects on this host: name -> bytes."""
        return {file.name: file.stat().st_size for file in (self.runtime / "objects").glob("*.obj")}

    def object_bytes(self):
        return sum(self.objects().values())

    def close(self):
        super_close = super().close
        try:
            guard = int((self.runtime / "guard.lock").read_text() or 0)
            if guard and harness.process_alive(guard) and str(self.runtime) in pathlib.Path(
                    f"/proc/{guard}/cmdline").read_text():
                os.kill(guard, signal.SIGKILL)
        except (OSError, ValueError):
            pass
        super_close()

    def wait_log(self, words, timeout=30.0):
        wait_until(lambda: words in self.text(), timeout, f"'{words}' in the log of {self.name}")


class Fabric:
    def __init__(self, devices=None, host_lease="4s", build_dir=None):
        self.devices = devices or {"a": "64M", "b": "64M"}
        self.host_lease = host_lease
        self.build_dir = build_dir
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="terrace-fabric-"))
        self.hosts = {}
        self._namespaces = {}
        self._relays = {}
        self.terrace = harness.find_binary("terrace", build_dir)

    def __enter__(self):
        try:
            self.cert("init", self.directory / "ca")
            self.cert("issue", "m", "--manager", "--ca", self.directory / "ca")
            self.namespace("m")
            self._ip("m", "link", "add", "br0", "type", "bridge")
            self._ip("m", "addr", "add", f"{MANAGER_ADDRESS}/24", "dev", "br0")
            self._ip("m", "link", "set", "br0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts.values():
            host.close()
        for relay in self._relays.values():
            relay.kill()
            relay.wait()
            relay.stdout.close()
        for namespace in self._namespaces.values():
            sh("ip", "netns", "del", namespace, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def cert(self, *arguments, check=True):
        done = harness.run_terrace(self.terrace, ["cert", *arguments], dict(os.environ), timeout=30)
        if check:
            done.check_returncode()
        return done

    def tls(self, name, ca="ca"):
        files = self.directory / ca
        return ["--tls-ca", files / "ca.pem", "--tls-cert", files / f"{name}.pem", "--tls-key", files / f"{name}.key"]

    # -- the network

    def namespace(self, name):
        if name not in self._namespaces:
            namespace = f"tt{os.getpid()}{name}"
            sh("ip", "netns", "add", namespace)
            self._namespaces[name] = namespace
            sh("ip", "-n", namespace, "link", "set", "lo", "up")
        return self._namespaces[name]

    def _ip(self, name, *arguments, check=True):
        return sh("ip", "-n", self._namespaces[name], *arguments, check=check)

    def connect(self, name):
        """A link between the host and the manager's bridge."""
        number = len(self._namespaces)
        self.namespace(name)
        inner, outer = "up0", f"to{number}"
        self._ip("m", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self._namespaces[name])
        self._ip("m", "link", "set", outer, "master", "br0")
        self._ip("m", "link", "set", outer, "up")
        self._ip(name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", inner)
        self._ip(name, "link", "set", inner, "up")
        return outer

    def cut(self, name, direction="both"):
        """Loses what the host sends ("out"), what it is sent ("in"), or both."""
        host = self.hosts[name]
        if direction in ("out", "both"):
            sh("tc", "-n", host.namespace, "qdisc", "replace", "dev", "up0", "root", "pfifo", "limit", "0")
        if direction in ("in", "both"):
            sh("tc", "-n", self._namespaces["m"], "qdisc", "replace", "dev", host.outer, "root", "pfifo", "limit", "0")

    def reconnect(self, name):
        host = self.hosts[name]
        sh("tc", "-n", host.namespace, "qdisc", "del", "dev", "up0", "root", check=False)
        sh("tc", "-n", self._namespaces["m"], "qdisc", "del", "dev", host.outer, "root", check=False)

    def slow(self, name, seconds):
        """Delays what passes between host `name` and the manager, each way. The first call, before the agent is made,
        starts the relay; returns the manager's address for that agent."""
        delay_file = self.directory / f"{name}.delay"
        fresh = self.directory / f"{name}.delay.new"
        fresh.write_text(str(seconds))
        fresh.rename(delay_file)
        if name not in self._relays:
            relay = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.namespace(name)}", sys.executable,
                 str(pathlib.Path(__file__).with_name("slow_relay.py")), "7400", f"{MANAGER_ADDRESS}:{PORT}",
                 str(delay_file)], stdout=subprocess.PIPE, text=True)
            self._relays[name] = relay
            if relay.stdout.readline() != "relaying\n":
                raise harness.HarnessError(f"the relay of {name} did not start")
        return "127.0.0.1:7400"

    # -- hosts

    def manager(self, *arguments, **options):
        host = Host(self, "m", ["--listen", f"{MANAGER_ADDRESS}:{PORT}", "--host-lease", self.host_lease]
                    + self.tls("m") + list(arguments), devices=self.devices, build_dir=self.build_dir)
        self.hosts["m"] = host
        host.start(**options)
        return host

    def agent(self, name, *arguments, devices=None, start=True, wait=True, address=None, tls=None, **options):
        if tls is None and not (self.directory / "ca" / f"{name}.pem").exists():
            self.cert("issue", name, "--ca", self.directory / "ca")
        self.namespace(name)
        outer = self.connect(name)
        host = Host(self, name, ["--role", "agent", "--manager", address or f"{MANAGER_ADDRESS}:{PORT}"]
                    + (tls or self.tls(name)) + list(arguments),
                    devices=self.devices if devices is None else devices, build_dir=self.build_dir)
        host.outer = outer
        self.hosts[name] = host
        if start:
            host.start(**options)
            if wait:
                self.wait_state(name, "connected")
                host.wait_log("is registered with the manager")  # the answer may be on its way still
        return host

    def host(self, name):
        """What the manager says of a host; None: it does not know it."""
        listed = self.hosts["m"].cli("host", "list").json["hosts"]
        return next((one for one in listed if one["name"] == name), None)

    def wait_state(self, name, state, timeout=40.0):
        def there():
            host = self.host(name)
            return host if host and host["state"] == state else None
        try:
            return wait_until(there, timeout, f"host {name} being {state}", interval=0.1)
        except harness.HarnessError as error:
            raise harness.HarnessError(f"{error}\nit is {self.host(name)}\n{self.hosts['m'].log_tail()}\n"
                                       f"{self.hosts[name].log_tail()}") from None


def monotonic():
    return time.monotonic()
