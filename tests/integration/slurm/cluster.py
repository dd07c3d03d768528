# SPDX-License-Identifier: Apache-2.0
"""A private Slurm of one node on loopback: munged, slurmctld and slurmd as plain processes, without systemd.

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
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
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
NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={node_port} CPUs={cpus} State=UNKNOWN
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
    def __init__(self, plugstack, cpus=16, more=""):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="terrace-slurm-"))
        self.directory.chmod(0o755)
        self.keep = bool(os.environ.get("TERRACE_TEST_KEEP"))
        self.processes = {}
        ports = dict(zip(("controller_port", "node_port"), free_ports(2)))
        for name in ("state", "spool", "jobs"):
            (self.directory / name).mkdir()
        (self.directory / "jobs").chmod(0o777)
        (self.directory / "plugstack.conf").write_text("".join(f"{line}\n" for line in plugstack))
        (self.directory / "slurm.conf").write_text(
            CONFIGURATION.format(directory=self.directory, node=NODE, cpus=cpus, more=more, **ports))
        (self.directory / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.env = {**os.environ, "SLURM_CONF": str(self.directory / "slurm.conf"),
                    "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
                    # A sanitized `terrace` wants to be the first library, and tasks have preloads of their own.
                    "ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0", "detect_leaks=0")))}

    def __enter__(self):
        try:
            self._start_munged()
            self._start("slurmctld", "slurmctld", "-D")
            self._start("slurmd", "slurmd", "-D", "-N", NODE)
            wait_until(lambda: "idle" in self.try_run("sinfo", "-h", "-o", "%T").stdout, 120, "an idle node", interval=0.3)
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

    def stepds(self):
        """Pids of slurmstepd processes of this cluster."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                name = (entry / "comm").read_text().strip()
                environment = (entry / "environ").read_bytes() if name == "slurmstepd" else b""
            except OSError:
                continue
            if os.fsencode(self.env["SLURM_CONF"]) in environment:
                found.append(int(entry.name))
        return found

    def text(self, name):
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def tail(self, name):
        return f"-- {name}\n" + "\n".join(self.text(name).splitlines()[-25:])

    def close(self):
        if "slurmctld" in self.processes:
            self.try_run("scancel", "--user=root", "--signal=KILL", "--full", timeout=30)
        for name in ("slurmd", "slurmctld", "munged"):
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
