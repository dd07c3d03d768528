# SPDX-License-Identifier: Apache-2.0
"""What must hold after any crash, checked from outside: through the CLI and through new clients."""

import time

from terrace_harness import wait_until


class Broken(Exception):
    """A promise was broken. The text says which, and what was seen."""


ENDING = ("revoking", "fencing", "scrubbing", "transferring")
HELD = ("active", "revoking")
FRESH_BYTES = 8 << 20


def extents_of(lease):
    return tuple((extent["device"], extent["offset_bytes"], extent["length_bytes"]) for extent in lease["extents"])


def check_disjoint(leases):
    """No byte of a device is in two leases, whatever their phases."""
    by_device = {}
    for lease in leases.values():
        for device, offset, length in extents_of(lease):
            by_device.setdefault(device, []).append((offset, offset + length, lease["id"]))
    for device, ranges in by_device.items():
        ranges.sort()
        for (_, end, first), (begin, _, second) in zip(ranges, ranges[1:]):
            if begin < end:
                raise Broken(f"{device}: bytes {begin}..{end} are in lease {first} and in lease {second}")


def check_accounting(pool, leases):
    """free + leased + scrubbing + quarantined = capacity, and the list of leases gives the same sums."""
    parts = {key: pool[f"{key}_bytes"] for key in ("free", "leased", "scrubbing", "quarantined")}
    if sum(parts.values()) != pool["capacity_bytes"]:
        raise Broken(f"the pool's parts {parts} do not add up to {pool['capacity_bytes']}")
    if parts["quarantined"] != 0:
        raise Broken(f"{parts['quarantined']} bytes are quarantined although nothing failed")
    listed = sum(lease["bytes"] for lease in leases.values())
    if listed != pool["capacity_bytes"] - parts["free"]:
        raise Broken(f"leases add up to {listed}, the pool has {pool['capacity_bytes'] - parts['free']} in use")


def check_acknowledged(journal, leases):
    """Everything that was acknowledged is there, as it was acknowledged; nothing else is."""
    if journal.broken:
        raise Broken("; ".join(journal.broken))
    causes = journal.releasing | journal.revoking
    for lease_id in sorted(journal.lost - causes):
        raise Broken(f"lease {lease_id} was lost although nobody took it back")
    held = {lease_id: lease for lease_id, lease in leases.items() if lease["phase"] in HELD}
    for lease_id, granted in journal.granted.items():
        lease = held.get(lease_id)
        if lease is None:
            if lease_id not in causes:
                raise Broken(f"lease {lease_id} was acknowledged and is not there")
            continue
        if lease_id in journal.released:
            raise Broken(f"the release of lease {lease_id} was acknowledged, and it is still {lease['phase']}")
        if lease_id in journal.revoked and lease["phase"] == "active":
            raise Broken(f"the revocation of lease {lease_id} was acknowledged, and it is still active")
        seen = (lease["epoch"], lease["bytes"], extents_of(lease))
        told = (granted.epoch, granted.bytes, granted.extents)
        if not as_told(granted, *seen):
            raise Broken(f"lease {lease_id} was acknowledged as {told} and is now {seen}")
    epochs = [granted.epoch for granted in journal.granted.values()]
    if len(set(epochs)) != len(epochs):
        raise Broken("two grants carry the same LeaseEpoch")
    unknown = sorted(set(held) - set(journal.granted))
    if len(unknown) > journal.open_grants:
        raise Broken(f"leases {unknown} exist, but only {journal.open_grants} grants were left open")


def as_told(granted, epoch, size, extents):
    """Whether a lease is what its holder was told. What an open change may have made of it is right as well, and a
    movable lease may be elsewhere, under a later LeaseEpoch."""
    resized = "resize" in granted.open
    stepped = granted.movable or not {"move", "transfer"}.isdisjoint(granted.open)
    if epoch < granted.epoch or (epoch != granted.epoch and not stepped):
        return False
    if size != granted.bytes and not resized:
        return False
    return granted.extents is None or resized or epoch != granted.epoch or extents == granted.extents


def check_settings(journal, harness):
    """Quotas and reservations are as they were acknowledged last."""
    quotas = {quota["tenant"]: quota["bytes_max"] for quota in harness.cli("quota", "list").json["quotas"]}
    reservations = {one["tenant"]: one["bytes"] for one in harness.cli("reserve", "list").json["reservations"]}
    for (kind, name), right in journal.settings.items():
        seen = (quotas if kind == "quota" else reservations).get(name)
        if seen not in right:
            raise Broken(f"the {kind} of {name} is {seen}; acknowledged or still open is {sorted(map(str, right))}")


def check_audit(journal, harness):
    """The audit log counts without a gap, and names every grant, release and revocation that was acknowledged."""
    entries = harness.cli("audit", "--limit", "0").json["entries"]
    sequences = [entry["sequence"] for entry in entries]
    if sequences != list(range(1, len(sequences) + 1)):
        gaps = [sequence for sequence, before in zip(sequences[1:], sequences) if sequence != before + 1]
        raise Broken(f"the audit log has {len(sequences)} entries from {sequences[:1]}, with gaps before {gaps[:5]}")
    said = {(entry["verb"], entry["subject"]) for entry in entries}
    for verb, leases in (("grant", journal.granted), ("revoke", journal.revoked)):
        missing = [lease_id for lease_id in leases if (verb, f"lease {lease_id}") not in said]
        if missing:
            raise Broken(f"the audit log has no {verb} of leases {sorted(missing)[:8]}, which were acknowledged")
    ended = ("release", "revoke", "expire", "fence")
    missing = [one for one in journal.released if not any((verb, f"lease {one}") in said for verb in ended)]
    if missing:
        raise Broken(f"the audit log has no end of leases {sorted(missing)[:8]}, whose release was acknowledged")


def check_stamped(harness, holder, stamped):
    """The bytes that somebody left in these leases are still theirs."""
    for lease_id in stamped:
        result = harness.run(holder, "--verify", lease_id, check=False)
        if result.code != 0:
            raise Broken(f"lease {lease_id} was left stamped, and is not intact any more: {result}")


def check_live(harness):
    """What can be checked while clients work: the daemon's own invariants and disjoint extents."""
    harness.check_invariants()
    check_disjoint(harness.leases())


def check_all(harness, journal, holder):
    """Every promise, with no client running. Ends with an empty pool. `holder` is tests/support/stubborn_holder."""
    for device in harness.cli("device", "list").json["devices"]:
        if device["state"] == "draining":
            harness.cli("device", "undrain", device["serial"])
    wait_until(lambda: not any(lease["phase"] in ENDING for lease in harness.leases().values()), 30,
               "the end of every fence and scrub", interval=0.1)
    harness.check_invariants()
    leases = harness.leases()
    check_disjoint(leases)
    check_acknowledged(journal, leases)
    pool = harness.cli("pool", "show", "p").json["pool"]
    check_accounting(pool, {lease_id: lease for lease_id, lease in leases.items() if lease["pool"] == "p"})
    check_settings(journal, harness)
    check_audit(journal, harness)
    check_stamped(harness, holder, [lease_id for lease_id in journal.stamped if lease_id in leases])
    for reservation in harness.cli("reserve", "list").json["reservations"]:
        harness.cli("reserve", "remove", reservation["id"])

    newest = max([granted.epoch for granted in journal.granted.values()], default=0)
    if pool["free_bytes"] >= FRESH_BYTES:  # clients may have left it full: then the lease over all of it must do
        newest = grant_fresh(harness, holder, FRESH_BYTES, newest)

    for lease_id, lease in leases.items():
        if lease["phase"] == "active":
            harness.cli("lease", "release", lease_id)
    capacity = harness.wait_free("p")["capacity_bytes"]
    grant_fresh(harness, holder, capacity, newest)
    harness.wait_free("p")
    harness.check_invariants()


def grant_fresh(harness, holder, size, newest):
    """Grants a lease, reads all of it as zeros, releases it. Its LeaseEpoch, which must be above `newest`."""
    result = harness.run(holder, "--pool", "p", "--size", size, "--expect-zeros", check=False)
    if result.code != 0:
        raise Broken(f"a new lease of {size} bytes does not read as zeros, or was not granted: {result}")
    epoch = int(result.out.split()[2])
    if epoch <= newest:
        raise Broken(f"a new lease got LeaseEpoch {epoch}, not above {newest}")
    return epoch


def stop_and_join(process, timeout=60.0):
    """SIGTERM, then waits. Returns the exit code."""
    if process.poll() is None:
        process.terminate()
    begin = time.monotonic()
    try:
        return process.wait(timeout)
    except Exception as error:
        process.kill()
        process.wait()
        raise Broken(f"a client did not stop within {time.monotonic() - begin:.0f} s") from error
