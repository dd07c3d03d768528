// SPDX-License-Identifier: Apache-2.0
// The acts that the pages offer: their fields, and what is said when one was done.
import type { Act } from "./act";
import * as format from "./format";
import type { Device, Lease, Quota } from "./types";

const sizeHint = "as 64M, 1.5 GiB", timeHint = "as 30s, 10m, 2h";
const optionalSize = (text: string): number | null => text === "" || text === "none" ? null : format.parseBytes(text);
const optionalCount = (text: string): number | null => text === "" || text === "none" ? null : /^\d+$/.test(text) ? Number(text) : NaN;

// 53 bits each: what a number has here.
function requestKey(): Record<string, unknown> {
  const draw = (): number => {
    const [high, low] = crypto.getRandomValues(new Uint32Array(2));
    return (high! & 0x1fffff) * 2 ** 32 + low! || 1;
  };
  return { request_high: draw(), request_low: draw() };
}

const nameOf = (lease: Lease): string => `lease ${lease.id}${lease.label ? ` (${lease.label})` : ""}`;

export function grant(pools: string[], tenant: string): Act {
  return { path: "grant", title: "Grant memory", verb: "Grant", fresh: requestKey,
    fields: [{ key: "pool", label: "Pool", value: pools[0] ?? "", options: pools.map((name): [string, string] => [name, name]) },
      { key: "tenant", label: "Tenant", value: tenant }, { key: "bytes", label: "Size", value: "64M", hint: sizeHint, read: format.parseBytes },
      { key: "label", label: "Label", value: "" },
      { key: "ttl_ns", label: "Ends after", value: "1h", hint: `${timeHint}; nothing: never`, read: (text) => text === "" ? null : format.parseDuration(text) },
      { key: "movable", label: "May be moved", value: "yes", options: [["yes", "yes"], ["no", "no"]], read: (text) => text === "yes" }],
    done: (answer: { info: Lease }) => `Granted ${nameOf(answer.info)}, ${format.bytes(answer.info.bytes)}, to ${answer.info.tenant}.` };
}
export function revoke(lease: Lease): Act {
  return { path: "revoke", title: `Revoke ${nameOf(lease)}`, verb: `Revoke lease ${lease.id}`, body: { lease: lease.id },
    fields: [{ key: "grace_ns", label: "Time to let go", value: "10s", hint: `${timeHint}; 0s: now`, read: format.parseDuration },
      { key: "reason", label: "Reason, for its holder", value: "" }],
    done: (answer: { info: Lease }) => `Lease ${lease.id} is ${format.words(answer.info.phase)}.` };
}
export function release(lease: Lease): Act {
  return { path: "release", title: `Release ${nameOf(lease)}`, verb: `Release lease ${lease.id}`, body: { lease: lease.id },
    done: () => `Lease ${lease.id} is fenced and erased.` };
}
export function cancelWaiting(lease: Lease): Act {
  return { path: "cancel_waiting", title: `Refuse request ${lease.id}`, verb: `Refuse request ${lease.id}`, body: { lease: lease.id },
    about: `${lease.tenant} waits for ${format.bytes(lease.bytes)}, and is told that the request was cancelled.`,
    fields: [{ key: "reason", label: "Reason, for who waits", value: "" }], done: () => `Request ${lease.id} waits no more.` };
}
export function drain(device: Device): Act {
  return { path: "drain", title: `Drain ${device.serial}`, verb: `Drain ${device.serial}`, body: { serial: device.serial },
    done: (answer: { progress: { left_bytes: number; moves: { blocked: boolean }[] } }) => {
      const stuck = answer.progress.moves.filter((move) => move.blocked).length;
      return `The drain of ${device.serial} has begun: ${format.bytes(answer.progress.left_bytes)} left${stuck > 0 ? `, ${stuck} of its leases will not go by themselves` : ""}.`;
    } };
}
export function compact(pool: string, run: string): Act {
  return { path: "compact", title: `Compact pool ${pool}`, verb: `Compact ${pool}`, body: { pool },
    fields: [{ key: "run_bytes", label: "Free run", value: run, hint: sizeHint, read: format.parseBytes }],
    done: (answer: { compaction: { active: boolean; left_bytes: number; device: string | null; moves: { blocked: boolean }[] } }) => {
      const stuck = answer.compaction.moves.filter((move) => move.blocked).length;
      return !answer.compaction.active ? `Pool ${pool} has such a run.`
        : `The compaction of ${pool} has begun: ${format.bytes(answer.compaction.left_bytes)} are to leave ${answer.compaction.device}${stuck > 0 ? `, ${stuck} leases will not go by themselves` : ""}.`;
    } };
}
export function undrain(device: Device): Act {
  return { path: "undrain", title: `Put ${device.serial} back`, verb: `Put ${device.serial} back into service`, body: { serial: device.serial },
    about: device.state === "failed" ? "Memory is granted on it again, and what was quarantined for the want of it is erased." : "The drain ends, and memory is granted on it again. What has moved stays where it is.",
    done: () => `${device.serial} is in service.` };
}
export function quota(tenant: string, now: Quota | null): Act {
  return { path: "set_quota", title: tenant === "*" ? "Quota of all others" : `Quota of ${tenant}`, verb: `Set the quota of ${tenant === "*" ? "others" : tenant}`, body: { tenant },
    fields: [{ key: "bytes_max", label: "Most memory", value: now?.bytes_max ? format.exactBytes(now.bytes_max) : "", hint: `${sizeHint}; nothing: no bound`, read: optionalSize },
      { key: "leases_max", label: "Most leases", value: now?.leases_max ? String(now.leases_max) : "", hint: "nothing: no bound", read: optionalCount }],
    done: () => tenant === "*" ? "The quota of all others is set." : `The quota of ${tenant} is set.` };
}
