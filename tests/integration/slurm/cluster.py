# SPDX-License-Identifier: Apache-2.0
"""A private Slurm of one node, or several, on loopback: munged, slurmctld and slurmd as plain processes, without systemd.

    with Cluster(plugstack=["required /x/terrace_spank.so socket=/y"]) as slurm:
        slurm.run("srun", "--terrace=1G", "true")

Ports, key, directories and configuration are its own; the commands find it by SLURM_CONF. Needs root: slurmd starts tasks as
other users.
"""

import ctypes
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_ports  # noqa: E402
from terrace_harness import process_alive, wait_until  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "squeue")
NODE = "tnode"

CONFIGURATION = """
ClusterName=terrace
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PlugStackConfig={directory}/plugstack.conf
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=300
InactiveLimit=0
MaxArraySize=1001
SlurmdParameters=config_overrides
{more}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_not():
    """Why there can be no cluster here; empty when there can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


class Cluster:
    def __init__(self, plugstack, cpus=16, more="", nodes=1):
        """Of several nodes each has an address of loopback's, a port and a slurmd of its own: Debian's slurmd is built for one
        a host, and takes another for another host by that."""
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="terrace-slurm-"))
        self.directory.chmod(0o755)
        self.keep = bool(os.environ.get("TERRACE_TEST_KEEP"))
        self.processes = {}
        self.nodes = [NODE, *(f"{NODE}{number}" for number in range(2, nodes + 1))]
        controller_port, *ports = free_ports(1 + nodes)
        node_lines = [f"NodeName={name} NodeHostname={'localhost' if name == NODE else name} NodeAddr=127.0.0.{number} Port={port} "
                      f"CPUs={cpus} State=UNKNOWN" for number, (name, port) in enumerate(zip(self.nodes, ports), 1)]
        for name in ("state", "spool", "jobs", *(f"spool/{node}" for node in self.nodes)):
            (self.directory / name).mkdir()
        (self.directory / "jobs").chmod(0o777)
        (self.directory / "plugstack.conf").write_text("".join(f"{line}\n" for line in plugstack))
        (self.directory / "slurm.conf").write_text(
            CONFIGURATION.format(directory=self.directory, nodes="\n".join(node_lines), more=more, controller_port=controller_port))
        (self.directory / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.env = {**os.environ, "SLURM_CONF": str(self.directory / "slurm.conf"),
                    "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
                    # A sanitized `terrace` wants to be the first library, and tasks have preloads of their own.
                    "ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0", "detect_leaks=0")))}

    def __enter__(self):
        try:
            self._start_munged()
            self._start("slurmctld", "slurmctld", "-D")
            for node in self.nodes:
                self.start_node(node)
            wait_until(lambda: self.try_run("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle"] * len(self.nodes), 120,
                       "idle nodes", interval=0.3)
        except BaseException:
            print(self.tail("slurmctld"), self.tail("slurmd"), file=sys.stderr)
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self, name, *command):
        out = (self.directory / f"{name}.out").open("ab")
        with out:
            self.processes[name] = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                    cwd=self.directory, preexec_fn=_die_with_parent)

    def start_node(self, node=NODE):
        self._start(f"slurmd-{node}", "slurmd", "-D", "-N", node)

    def _start_munged(self):
        """As its user: it insists on folders that nobody else can write."""
        user = pwd.getpwnam("munge")
        folder = self.directory / "munge"
        folder.mkdir(mode=0o700)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        for path in (folder, folder / "key"):
            os.chown(path, user.pw_uid, user.pw_gid)
        out = (self.directory / "munged.out").open("ab")
        with out:
            # --force: the socket's folder below /tmp may be entered by all, which it would only warn of.
            self.processes["munged"] = subprocess.Popen(
                ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/socket",
                 f"--pid-file={folder}/pid", f"--seed-file={folder}/seed", f"--log-file={folder}/log"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, user=user.pw_uid, group=user.pw_gid,
                extra_groups=[], preexec_fn=_die_with_parent)
        wait_until(lambda: (folder / "socket").exists(), 60, "munged's socket")
        folder.chmod(0o755)
        (self.directory / "munge.socket").symlink_to(folder / "socket")

    def try_run(self, *command, timeout=300.0, env=None, **options):
        return subprocess.run([str(word) for word in command], env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
                              cwd=self.directory / "jobs", **options)

    def run(self, *command, code=0, **options):
        done = self.try_run(*command, **options)
        if done.returncode != code:
            raise AssertionError(f"expected exit {code}: $ {' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout}"
                                 f"{done.stderr}\n{self.tail('slurmd')}")
        return done

    def start(self, *command, **options):
        """In the background, with pipes."""
        return subprocess.Popen([str(word) for word in command], env=self.env, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.directory / "jobs",
                                preexec_fn=_die_with_parent, **options)

    def submit(self, *arguments):
        """The id of a batch job."""
        return self.run("sbatch", "--parsable", *arguments).stdout.strip().split(";")[0]

    def state(self, job):
        shown = self.try_run("scontrol", "-o", "show", "job", job).stdout
        return [word.partition("=")[2] for word in shown.split() if word.startswith("JobState=")]

    def wait_state(self, job, *states, timeout=180.0):
        wait_until(lambda: set(self.state(job)) and set(self.state(job)) <= set(states), timeout,
                   f"job {job} in {' or '.join(states)} (now {self.state(job)})", interval=0.2)

    def node_state(self):
        return self.run("sinfo", "-h", "-o", "%T").stdout.strip()

    def kill_node(self, node):
        """As if the host had lost its power: no slurmd, and no slurmstepd that it started."""
        process = self.processes.pop(f"slurmd-{node}")
        process.kill()
        process.wait()
        for pid in self.stepds(node):
            os.kill(pid, signal.SIGKILL)

    def stepds(self, node=None):
        """Pids of slurmstepd processes of this cluster, or of one node of it."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                name = (entry / "comm").read_text().strip()
                environment = (entry / "environ").read_bytes() if name == "slurmstepd" else b""
            except OSError:
                continue
            if os.fsencode(self.env["SLURM_CONF"]) not in environment:
                continue
            if node is None or f"slurmd-{node}.log" in self._files(entry):
                found.append(int(entry.name))
        return found

    @staticmethod
    def _files(process):
        """Names of a process's open files; a slurmstepd has its node's log among them."""
        names = set()
        try:
            for link in (process / "fd").iterdir():
                names.add(os.path.basename(os.readlink(link)))
        except OSError:
            pass  # it ended meanwhile
        return names

    def text(self, name):
        """The log of slurmctld, or those of all nodes' slurmd."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob(f"{name}*.log")))

    def tail(self, name):
        return f"-- {name}\n" + "\n".join(self.text(name).splitlines()[-25:])

    def close(self):
        if "slurmctld" in self.processes:
            self.try_run("scancel", "--user=root", "--signal=KILL", "--full", timeout=30)
        for name in [name for name in self.processes if name.startswith("slurmd-")] + ["slurmctld", "munged"]:
            process = self.processes.pop(name, None)
            if process is not None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._end_leftovers()
        if self.keep:
            print(f"kept: {self.directory}", file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end_leftovers(self):
        """slurmstepd outlives slurmd by design."""
        for pid in self.stepds():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not process_alive(pid), 30, f"the end of slurmstepd {pid}")
        self.processes.clear()
