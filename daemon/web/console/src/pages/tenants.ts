// SPDX-License-Identifier: Apache-2.0
// Who has how much, and what bounds that.
import { actButton } from "../act";
import * as acts from "../acts";
import * as format from "../format";
import { table, tableState } from "../table";
import type { Lease, Quota } from "../types";
import { h, type Child } from "../vdom";
import { bar, loading, tenantColour, tenantName, type View } from "../view";

const state = tableState(1, true), reserved = tableState(0);

interface Tenant { name: string; bytes: number; leases: number; waiting: number; quota: Quota | null; pools: Set<string> }

export function gather(leases: Lease[], quotas: Quota[]): Tenant[] {
  const all = new Map<string, Tenant>();
  const of = (name: string): Tenant => {
    let one = all.get(name);
    if (!one) all.set(name, one = { name, bytes: 0, leases: 0, waiting: 0, quota: null, pools: new Set() });
    return one;
  };
  for (const lease of leases) {
    const one = of(lease.tenant);
    if (lease.phase === "waiting") ++one.waiting;
    else {
      one.bytes += lease.bytes;
      ++one.leases;
      one.pools.add(lease.pool);
    }
  }
  for (const quota of quotas) if (quota.tenant !== "*") of(quota.tenant).quota = quota;
  return [...all.values()];
}

export function tenants(view: View): Child {
  const leases = view.store.get("leases")?.leases, quotas = view.store.get("quotas")?.quotas;
  if (!leases || !quotas) return loading();
  const all = gather(leases, quotas), others = quotas.find((quota) => quota.tenant === "*");
  const bound = (one: Tenant): number => (one.quota ?? others)?.bytes_max ?? 0;
  const rest = others ? `others: ${others.bytes_max ? format.bytes(others.bytes_max) : "any size"}, ${others.leases_max ? `${format.count(others.leases_max)} leases` : "any number"}` : "no bound for others";
  return h("div", { class: "columns" },
    h("section", { class: "card full" }, h("header", null, h("h2", null, "Tenants"), h("div", { class: "aside" }, actButton(view, "Quota of others…", "set_quota", () => acts.quota("*", others ?? null)), rest)), table("Tenants", all, [
      { name: "Tenant", show: (one) => tenantName(one.name, view), sort: (one) => one.name },
      { name: "Has", show: (one) => format.bytes(one.bytes), sort: (one) => one.bytes, number: true },
      { name: "Leases", show: (one) => format.count(one.leases), sort: (one) => one.leases, number: true },
      { name: "Of its quota", show: (one) => bound(one) ? h("span", { class: "quota" }, bar([{ name: "used", bytes: Math.min(one.bytes, bound(one)), colour: tenantColour(one.name, view.theme) }], bound(one), "quota"),
        `${format.percent(one.bytes, bound(one))} of ${format.bytes(bound(one))}`) : h("span", { class: "none" }, "no bound"), sort: (one) => bound(one) ? one.bytes / bound(one) : 0 },
      { name: "Most leases", show: (one) => { const most = (one.quota ?? others)?.leases_max; return most ? format.count(most) : "–"; }, number: true },
      { name: "Waiting", show: (one) => String(one.waiting), sort: (one) => one.waiting, number: true },
      { name: "Acts", show: (one) => actButton(view, "Quota…", "set_quota", () => acts.quota(one.name, one.quota)) },
      { name: "Pools", show: (one) => [...one.pools].sort().join(", ") },
    ], state, (one) => one.name, view.redraw, "Nobody has a lease, and there is no quota.")),
    h("section", { class: "card full" }, h("header", null, h("h2", null, "Reservations")), table("Reservations", view.store.get("reservations")?.reservations ?? [], [
      { name: "Id", show: (one) => String(one.id), sort: (one) => one.id, number: true },
      { name: "Pool", show: (one) => one.pool, sort: (one) => one.pool },
      { name: "Tenant", show: (one) => tenantName(one.tenant, view), sort: (one) => one.tenant },
      { name: "Size", show: (one) => format.bytes(one.bytes), sort: (one) => one.bytes, number: true },
      { name: "Used", show: (one) => format.bytes(one.used_bytes), sort: (one) => one.used_bytes, number: true },
      { name: "Ends", show: (one) => one.expires_in_ns === null ? "never" : `in ${format.duration(one.expires_in_ns)}`, number: true },
    ], reserved, (one) => String(one.id), view.redraw, "Nothing is reserved.")));
}
