# SPDX-License-Identifier: Apache-2.0
"""Debian's own redis-server on leased memory: more data than its DDR budget, all of it read back."""

import contextlib
import random
import subprocess
import threading
import time

from demo.redis_client import RedisClient, RedisError, Values
from demo.report import Report, Ticker, mib
from terrace_harness import HarnessError, process_alive, wait_until

DDR_BUDGET = 128 << 20
DATA_BYTES = 400 << 20
LEASE_TTL_S = 12  # short, so that the demo sees renewals without waiting long
BATCH = 16


class Redis:
    """`terrace run -- redis-server`, and the values in it."""

    def __init__(self, service, report: Report):
        self._service, self._report = service, report
        self.socket = service.directory / "redis.sock"
        self.values = Values(DATA_BYTES)
        self._log = service.directory / "redis.log"
        self._pid = 0
        with open(self._log, "wb") as log:
            self.process = service.popen(
                service.terrace, "run", "--pool", "main", "--ddr", "128M", "--cxl", "1G", "--ttl", f"{LEASE_TTL_S}s",
                "--", "redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no",
                "--dir", service.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        def ready():
            if self.process.poll() is not None:
                raise HarnessError(f"redis-server ended with {self.process.returncode}:\n{self._log_text()}")
            try:
                client = RedisClient(self.socket)
            except OSError:
                return None
            try:
                return client.call("INFO", "server")
            except RedisError:  # still loading
                return None
            finally:
                client.close()

        info = bytes(wait_until(ready, 30, "an answer of redis-server")).decode()
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        self._pid = int(fields["process_id"])
        self._report.note(f"redis {fields['redis_version']} (process {self._pid}) answers")

    def load(self) -> None:
        client, done = RedisClient(self.socket), 0
        ticker, begin = Ticker("stored", self.values.total_bytes), time.monotonic()
        for first in range(0, len(self.values), BATCH):
            numbers = range(first, min(first + BATCH, len(self.values)))
            client.pipeline([("SET", f"key:{number}", self.values.get(number)) for number in numbers])
            done += sum(map(self.values.size, numbers))
            ticker.at(done)
        client.close()
        seconds = time.monotonic() - begin
        self._report.note(f"stored {len(self.values)} values, {mib(done)}, in {seconds:.1f} s "
                          f"({done / 2**20 / seconds:.0f} MiB/s)")

    def wrong_values(self) -> int:
        """Reads everything back; how many values are missing or differ."""
        client, done, wrong = RedisClient(self.socket), 0, 0
        ticker = Ticker("compared", self.values.total_bytes)
        for first in range(0, len(self.values), BATCH):
            numbers = range(first, min(first + BATCH, len(self.values)))
            replies = client.pipeline([("GET", f"key:{number}") for number in numbers])
            for number, reply in zip(numbers, replies):
                wrong += reply is None or reply != self.values.get(number)
                done += self.values.size(number)
            ticker.at(done)
        client.close()
        return wrong

    def leases(self) -> list:
        """The leases that hold redis' CXL memory (the supervisor takes them as they are needed), as `terrace lease
        show` has them; never empty."""
        held = [lease["id"] for lease in self._service.leases().values()
                if lease["phase"] == "active" and lease["label"].startswith("run:redis-server")]
        if not held:
            raise HarnessError("no lease is labelled for redis-server")
        return self._service.cli("lease", "show", *held).json["leases"]

    def stop(self) -> int:
        """Ends redis through its own protocol; the exit code of `terrace run`."""
        client = RedisClient(self.socket)
        try:
            client.call("SHUTDOWN", "NOSAVE")
        except (RedisError, OSError):
            pass  # it closes the connection instead of answering
        client.close()
        return self.process.wait(30)

    def close(self) -> None:
        """Ends whatever is left of it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._pid and process_alive(self._pid):
            subprocess.run(["kill", "-KILL", str(self._pid)], check=False)

    def _log_text(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class BackgroundReader:
    """Reads random values all the time and remembers every error and the longest time without an answer."""

    def __init__(self, redis: Redis):
        self._redis = redis
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.reads, self.longest_gap_s, self.errors = 0, 0.0, []

    def __enter__(self) -> "BackgroundReader":
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._over.set()
        self._thread.join(60)

    def _read(self) -> None:
        chance, values = random.Random(3), self._redis.values
        try:
            client = RedisClient(self._redis.socket)
            last = time.monotonic()
            while not self._over.is_set():
                number = chance.randrange(len(values))
                if client.call("GET", f"key:{number}") != values.get(number):
                    self.errors.append(f"key:{number} differs")
                now = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now - last)
                last = now
                self.reads += 1
            client.close()
        except (OSError, RedisError) as error:
            self.errors.append(str(error))


def show_redis(service, report: Report, stack) -> Redis:
    report.part("b. redis-server, unmodified, with 128 MiB of DDR and 1 GiB of CXL memory")
    redis = Redis(service, report)
    stack.callback(redis.close)
    redis.wait_ready()
    redis.load()
    wrong = redis.wrong_values()
    report.check("redis: values read back and compared", f"{len(redis.values)} values, "
                 f"{mib(redis.values.total_bytes)}, {wrong} wrong", wrong == 0)

    # The holder reports its residency every few seconds.
    least_cxl = redis.values.total_bytes - DDR_BUDGET

    def resident(leases, tier):
        return sum((lease["usage"] or {}).get(f"{tier}_bytes", 0) for lease in leases)

    def outgrown():
        with contextlib.suppress(HarnessError):
            leases = redis.leases()
            return leases if resident(leases, "cxl") >= least_cxl else None

    with contextlib.suppress(HarnessError):
        wait_until(outgrown, 20, "a usage report with all the data in it", interval=0.5)
    leases = redis.leases()
    ddr, cxl = resident(leases, "ddr"), resident(leases, "cxl")
    report.check("redis: resident in DDR, budget 128 MiB (lease show)", mib(ddr), 0 < ddr <= DDR_BUDGET)
    report.check("redis: resident in CXL (lease show)", f"{mib(cxl)} in {len(leases)} leases", cxl >= least_cxl)
    return redis
