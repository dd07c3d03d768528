"""Clients for the crash runs: lease_load processes and one person at the CLI, all of them journalled."""

import contextlib
import random
import threading

from checks import Broken, extents_of, stop_and_join
from journal import Granted, Journal, read_load
from terrace_harness import HarnessError, wait_until


class Clients:
    """`loads` lease_load processes and a thread that uses the CLI, working against one Harness until stop()."""

    def __init__(self, harness, load_program, seed, loads=1, revoke=True, pause_ms=0):
        self._harness = harness
        self._random = random.Random(seed)
        self._revoke = revoke
        self._over = threading.Event()
        self.cli_journal = Journal()
        self._grants, self._unanswered = 0, []  # labels of CLI grants, and of those whose answer was lost
        self._outputs, self._processes = [], []
        for number in range(loads):
            path = harness.directory / f"load-{number}.out"
            with open(path, "wb") as out:
                self._processes.append(harness.popen(
                    load_program, "--pool", "p", "--seed", seed * 16 + number, "--leases-max", 5, "--size-max", "6M",
                    "--ttl", "600s", "--pause-ms", pause_ms, stdout=out, stderr=open(f"{path}.err", "wb")))
            self._outputs.append(path)
        self._thread = threading.Thread(target=self._use_cli, daemon=True)

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
                self._random.choice((self._cli_grant, self._cli_grant, self._cli_renew, self._cli_release,
                                     self._cli_revoke))()

    def _cli(self, *arguments):
        return self._harness.cli(*arguments, check=False, timeout=80)

    def _cli_grant(self):
        journal = self.cli_journal
        if len(journal.live()) > 6:
            return
        self._grants += 1
        label = f"cli-{self._grants}"
        journal.grant_asked()
        result = self._cli("lease", "grant", "--pool", "p", "--size", f"{self._random.randint(1, 8)}M", "--ttl", "600s",
                           "--label", label)
        if result.code == 0:
            self._granted(result.json["lease"])
        elif result.code == 4:  # no capacity: nothing was granted
            journal.grant_refused()
        else:
            self._unanswered.append(label)

    def _granted(self, lease):
        self.cli_journal.grant_acknowledged(lease["id"], Granted(lease["epoch"], lease["bytes"], extents_of(lease)))

    def _settle(self):
        """Looks whether grants without an answer took place: otherwise lost replies would fill the pool."""
        for label in list(self._unanswered):
            result = self._cli("lease", "show", label)
            if result.code == 0:
                self._granted(result.json["leases"][0])
            elif result.code == 3:  # no such lease
                self.cli_journal.grant_refused()
            else:
                return
            self._unanswered.remove(label)

    def _cli_renew(self):
        self._cli("lease", "renew", self._random.choice(self.cli_journal.live()), "--ttl", "600s")

    def _cli_release(self):
        lease_id = self._random.choice(self.cli_journal.live())
        self.cli_journal.add("releasing", lease_id)
        if self._cli("lease", "release", lease_id).code == 0:
            self.cli_journal.add("released", lease_id)

    def _cli_revoke(self):
        if not self._revoke:
            return
        lease_id = self._random.choice(self.loads_journal().live())
        self.cli_journal.add("revoking", lease_id)
        if self._cli("lease", "revoke", lease_id, "--grace", "300ms", "--reason", "crash run").code == 0:
            self.cli_journal.add("revoked", lease_id)
