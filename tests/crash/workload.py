# SPDX-License-Identifier: Apache-2.0
"""Clients for the crash runs: lease_load processes and one person at the CLI, all of them journalled."""

import contextlib
import dataclasses
import random
import threading

from checks import Broken, extents_of, stop_and_join
from journal import Granted, Journal, read_load
from terrace_harness import HarnessError, wait_until


@dataclasses.dataclass(frozen=True)
class Workload:
    """What clients do: arguments of lease_load, and what the person at the CLI chooses from."""
    load: tuple = ()
    acts: tuple = ("grant", "grant", "renew", "release", "revoke")
    pause: float = 0.0  # between two CLI commands, seconds
    loads: int = 1


CHANGING = ("--mix", "all")
WORKLOADS = {
    "churn": Workload(),
    "change": Workload(CHANGING, ("grant", "resize", "resize", "transfer", "transfer", "release", "revoke")),
    "drain": Workload(CHANGING, ("grant", "drain", "drain", "release")),
    "full": Workload(("--leases-max", 14, "--size-max", "24M", "--wait", "2s"), ("grant", "grant", "release", "revoke")),
    "policy": Workload((), ("quota", "quota", "reserve", "unreserve")),
    "calm": Workload(("--pause-ms", 1300), ("grant", "release"), 1.5),  # leaves the store time to fold its journal
    "all": Workload((*CHANGING, "--wait", "1s"), ("grant", "grant", "renew", "release", "revoke", "resize", "transfer",
                                                  "drain", "quota", "reserve", "unreserve"), loads=3),
}


class Clients:
    """lease_load processes and a thread that uses the CLI, working against one Harness until stop()."""

    def __init__(self, harness, load_program, seed, workload):
        self._harness = harness
        self._random = random.Random(seed)
        self._workload = workload
        self._over = threading.Event()
        self.cli_journal = Journal()
        self._grants, self._unanswered = 0, {}  # labels of CLI grants whose answer was lost -> whether movable
        self._reservations, self._reserved = 0, {}  # id -> tenant, of those acknowledged
        self._outputs, self._processes = [], []
        for number in range(workload.loads):
            path = harness.directory / f"load-{number}.out"
            with open(path, "wb") as out:
                self._processes.append(harness.popen(
                    load_program, "--pool", "p", "--seed", seed * 16 + number, "--ttl", "600s",
                    "--peer-tenant", f"peer-{number}", *self._sizes(), *workload.load, stdout=out,
                    stderr=open(f"{path}.err", "wb")))
            self._outputs.append(path)
        self._thread = threading.Thread(target=self._use_cli, daemon=True)

    def _sizes(self):
        return () if "--leases-max" in self._workload.load else ("--leases-max", 5, "--size-max", "6M")

    def start(self):
        self._thread.start()

    def loads_journal(self):
        """What the load clients were told so far."""
        journal = Journal()
        for path in self._outputs:
            journal.merge(read_load(path))
        return journal

    def acknowledged(self):
        return self.loads_journal().acknowledged

    def check_running(self):
        """A load client that ended by itself saw a broken promise, or crashed."""
        for process, path in zip(self._processes, self._outputs):
            if process.poll() is not None:
                raise Broken(self._last_words(process.returncode, path))

    @staticmethod
    def _last_words(code, path):
        last = path.read_text(errors="replace").splitlines()[-3:]
        errors = path.with_name(path.name + ".err").read_text(errors="replace")[:4000]
        return f"{path.name}: a client ended with {code}: {last}\n{errors}"

    def wait_going_on(self, answers, timeout=60):
        """Until the load clients had that many more answers: nothing hangs after a restart."""
        before = self.loads_journal().answers
        try:
            wait_until(lambda: self.check_running() or self.loads_journal().answers >= before + answers, timeout,
                       "clients going on after the restart")
        except HarnessError as error:
            last = {path.name: path.read_text(errors="replace").splitlines()[-4:] for path in self._outputs}
            raise Broken(f"{error}; they said last {last}\n{self._harness.log_tail()}") from None

    def stop(self):
        """Ends all clients; the daemon must be running, so that open operations can finish. Returns the Journal of
        everything that was acknowledged."""
        self._over.set()
        self.check_running()
        for process, path in zip(self._processes, self._outputs):
            code = stop_and_join(process)
            if code != 0:
                raise Broken(self._last_words(code, path))
        if self._thread.is_alive():
            self._thread.join(90)
        if self._thread.is_alive():
            raise Broken("a CLI command did not return within 90 s")
        journal = self.loads_journal()
        journal.merge(self.cli_journal)
        # A lease that the CLI ended for another client is lost to that client for a reason.
        return journal

    def close(self):
        self._over.set()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._thread.is_alive():
            self._thread.join(90)

    # -- the person at the CLI

    def _use_cli(self):
        while not self._over.is_set():
            self._settle()
            with contextlib.suppress(IndexError):  # nothing there to act on yet
                getattr(self, f"_cli_{self._random.choice(self._workload.acts)}")()
            self._over.wait(self._workload.pause)

    def _cli(self, *arguments):
        return self._harness.cli(*arguments, check=False, timeout=80)

    def _any(self):
        return self._random.choice(self.cli_journal.live())

    def _cli_grant(self):
        journal = self.cli_journal
        if len(journal.live()) > 6:
            return
        self._grants += 1
        label = f"cli-{self._grants}"
        movable = self._random.random() < 0.5
        journal.grant_asked()
        result = self._cli("lease", "grant", "--pool", "p", "--size", f"{self._random.randint(1, 8)}M", "--ttl", "600s",
                           "--label", label, *(("--movable",) if movable else ("--on-fence", "kill")))
        if result.code == 0:
            self._granted(result.json["lease"], movable)
        elif result.code == 4:  # no capacity: nothing was granted
            journal.grant_refused()
        else:
            self._unanswered[label] = movable

    def _granted(self, lease, movable):
        self.cli_journal.grant_acknowledged(
            lease["id"], Granted(lease["epoch"], lease["bytes"], extents_of(lease), movable))

    def _settle(self):
        """Looks whether grants without an answer took place: otherwise lost replies would fill the pool."""
        for label, movable in list(self._unanswered.items()):
            result = self._cli("lease", "show", label)
            if result.code == 0:
                self._granted(result.json["leases"][0], movable)
            elif result.code == 3:  # no such lease
                self.cli_journal.grant_refused()
            else:
                return
            del self._unanswered[label]

    def _cli_renew(self):
        self._cli("lease", "renew", self._any(), "--ttl", "600s")

    def _cli_release(self):
        lease_id = self._any()
        self.cli_journal.add("releasing", lease_id)
        if self._cli("lease", "release", lease_id).code == 0:
            self.cli_journal.add("released", lease_id)

    def _cli_revoke(self):
        lease_id = self._random.choice(self.loads_journal().live())
        self.cli_journal.add("revoking", lease_id)
        if self._cli("lease", "revoke", lease_id, "--grace", "300ms", "--reason", "crash run").code == 0:
            self.cli_journal.add("revoked", lease_id)

    def _cli_resize(self):
        self._change("resize", self._any(), "lease", "resize", f"{self._random.randint(1, 8)}M", "--yes")

    def _cli_transfer(self):
        self._change("transfer", self._any(), "lease", "transfer", "--yes", "--to-tenant",
                     f"crash-{self._random.randint(0, 3)}")

    def _change(self, operation, lease_id, noun, verb, *arguments):
        self.cli_journal.change_asked(operation, lease_id)
        result = self._cli(noun, verb, lease_id, *arguments)
        if result.code == 0:
            lease = result.json["lease"]
            self.cli_journal.change_acknowledged(lease_id, lease["epoch"], lease["bytes"], extents_of(lease))
        elif result.code in (2, 4):  # refused: nothing changed; 7, busy, may be this very change, going on after a crash
            self.cli_journal.change_refused(lease_id)

    def _cli_drain(self):
        device = self._random.choice(("emu:a", "emu:b"))
        if self._cli("device", "drain", device).code == 0:
            # A lease that nobody holds moves only after `reconnect_ns` (core/base/limits.h): some last longer.
            self._over.wait(self._random.choice((0.2, 1.0, 2.5, 8.0)))
        self._cli("device", "undrain", device)

    def _cli_quota(self):
        tenant = f"crash-quota-{self._random.randint(0, 3)}"
        key, size = ("quota", tenant), self._random.randint(1, 9) << 20
        if self.cli_journal.settings.get(key, {None}) == {None} or self._random.random() < 0.5:
            self._set(key, size, "quota", "set", tenant, "--bytes", size)
        else:
            self._set(key, None, "quota", "remove", tenant)

    def _cli_reserve(self):
        if len(self._reserved) >= 3:
            return
        self._reservations += 1
        tenant = f"crash-reserve-{self._reservations}"
        result = self._set(("reservation", tenant), 2 << 20, "reserve", "create", "p", tenant, "2M")
        if result.code == 0:
            self._reserved[result.json["reservation"]["id"]] = tenant

    def _cli_unreserve(self):
        number, tenant = self._random.choice(list(self._reserved.items()))
        del self._reserved[number]
        self._set(("reservation", tenant), None, "reserve", "remove", number)

    def _set(self, key, value, *arguments):
        """Carries a setting out; an answer that never came leaves both values right."""
        self.cli_journal.setting_asked(key, value)
        result = self._cli(*arguments)
        if result.code == 0:
            self.cli_journal.setting_acknowledged(key, value)
        return result
