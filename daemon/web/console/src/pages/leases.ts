// SPDX-License-Identifier: Apache-2.0
// All leases, and the life of one.
import { actButton } from "../act";
import * as acts from "../acts";
import * as format from "../format";
import { ApiError, get } from "../store";
import { table, tableState, type Column } from "../table";
import type { AuditEntry, Lease, TerraceEvent } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { card, empty, fact, loading, phaseBadge, tenantName, type View } from "../view";

const filter = { text: "", pool: "", tenant: "", phase: "" };
const state = tableState(0);

const ends = (lease: Lease): string => lease.phase === "waiting" ? "" : lease.persistent ? "never" : `in ${format.duration(lease.expires_in_ns ?? 0)}`;
export const leaseLink = (lease: Lease): VNode => h("a", { href: `#/leases/${lease.id}` }, String(lease.id));

function columns(view: View): Column<Lease>[] {
  return [
    { name: "Lease", show: leaseLink, sort: (one) => one.id, number: true },
    { name: "Label", show: (one) => one.label || h("span", { class: "none" }, "–"), sort: (one) => one.label },
    { name: "Tenant", show: (one) => tenantName(one.tenant, view), sort: (one) => one.tenant },
    { name: "Pool", show: (one) => h("a", { href: `#/map/${encodeURIComponent(one.pool)}` }, one.pool), sort: (one) => one.pool },
    { name: "Size", show: (one) => format.bytes(one.bytes), sort: (one) => one.bytes, number: true },
    { name: "State", show: (one) => phaseBadge(one.phase), sort: (one) => one.phase },
    { name: "Ends", show: ends, sort: (one) => (one.persistent ? Infinity : one.expires_in_ns ?? 0), number: true },
    { name: "Holders", show: (one) => String(one.holders), sort: (one) => one.holders, number: true },
    { name: "Mode", show: (one) => format.words(one.mode), sort: (one) => one.mode },
    { name: "Host", show: (one) => one.host, sort: (one) => one.host },
  ];
}

export function matches(lease: Lease, wanted: typeof filter): boolean {
  const text = wanted.text.toLowerCase();
  return (wanted.pool === "" || lease.pool === wanted.pool) && (wanted.tenant === "" || lease.tenant === wanted.tenant)
    && (wanted.phase === "" || lease.phase === wanted.phase)
    && (text === "" || String(lease.id) === text || lease.label.toLowerCase().includes(text) || lease.tenant.toLowerCase().includes(text)
      || lease.host.toLowerCase().includes(text));
}

function select(name: string, key: "pool" | "tenant" | "phase", values: string[], view: View): VNode {
  return h("label", { class: "choice" }, h("span", null, name), h("select", {
    onchange: (event: Event) => { filter[key] = (event.target as HTMLSelectElement).value; view.redraw(); },
    ref: (element: HTMLSelectElement) => { if (element.value !== filter[key]) element.value = filter[key]; } },
    h("option", { value: "" }, "all"), [...new Set(values)].sort().map((value) => h("option", { value, key: value }, format.words(value)))));
}

// --- one lease

interface Step { wallNs: number; what: string; text: string; key: string }
let life: { lease: number; version: number; steps: Step[]; error: string } = { lease: 0, version: -1, steps: [], error: "" };

async function askLife(id: number, view: View): Promise<void> {
  const steps: Step[] = [];
  let error = "";
  const audit = await get<{ entries: AuditEntry[] }>(`audit?subject=${encodeURIComponent(`lease ${id}`)}&limit=200`).catch((problem: Error) => {
    error = problem.message;
    return { entries: [] };
  });
  for (const one of audit.entries)
    steps.push({ wallNs: one.wall_ns, what: one.verb, text: `${one.detail}${one.actor ? ` (${one.actor})` : ""}`, key: `a${one.sequence}` });
  const events = await get<{ events: TerraceEvent[] }>(`events?lease=${id}&limit=200`).catch((problem: Error) => {
    if (!(problem instanceof ApiError && (problem.status === 404 || problem.status === 400))) error = problem.message;
    return { events: [] };
  });
  for (const one of events.events) steps.push({ wallNs: one.time_ns, what: one.kind, text: one.message, key: `e${one.id}` });
  steps.sort((left, right) => left.wallNs - right.wallNs);
  if (life.lease !== id) return;
  life.steps = steps;
  life.error = error;
  view.redraw();
}

function lifeLine(id: number, view: View): Child {
  const version = view.store.version("leases");
  if (life.lease !== id) life = { lease: id, version: -1, steps: [], error: "" };
  if (life.version !== version) {
    life.version = version;
    void askLife(id, view);
  }
  const now = new Date();
  if (life.steps.length === 0) return empty(life.error || "The audit log has nothing of it any more.");
  return h("ol", { class: "life" }, life.steps.map((step) => h("li", { key: step.key }, h("time", null, format.time(step.wallNs, now)),
    h("b", null, format.words(step.what)), h("span", null, step.text))));
}

function one(id: number, view: View): Child {
  const answer = view.store.get("leases");
  if (!answer) return loading();
  const lease = answer.leases.find((found) => found.id === id);
  const life_ = card("Life", "from the audit log and the events of this run", lifeLine(id, view));
  const back = h("p", { class: "back" }, h("a", { href: "#/leases" }, "All leases"));
  if (!lease) return h("div", { class: "columns" }, back, card(`Lease ${id}`, null, empty("It has ended, or never was.")), life_);
  return h("div", { class: "columns" }, back,
    card(`Lease ${id}${lease.label ? ` · ${lease.label}` : ""}`, [phaseBadge(lease.phase), ...actsOn(lease, view)], h("dl", { class: "facts" },
      fact("tenant", tenantName(lease.tenant, view)), fact("pool", h("a", { href: `#/map/${encodeURIComponent(lease.pool)}` }, lease.pool)),
      fact("size", format.bytes(lease.bytes)), fact("host", lease.host), fact("mode", format.words(lease.mode)), fact("ends", ends(lease)),
      fact("epoch", String(lease.epoch)), fact("holders", String(lease.holders)), fact("movable", lease.movable ? "yes" : "no"),
      fact("coherence", lease.coherence), lease.agent && fact("memory held by", lease.agent), lease.offered_to && fact("offered to", lease.offered_to),
      lease.reason && fact("taken back for", lease.reason), lease.usage && fact("used by", `${lease.usage.holder}: ${format.bytes(lease.usage.live_bytes)} live`))),
    life_,
    card("Where it lies", `${lease.extents.length} ${lease.extents.length === 1 ? "piece" : "pieces"}`, table("Pieces", lease.extents, [
      { name: "Device", show: (extent) => extent.device, sort: (extent) => extent.device },
      { name: "From", show: (extent) => format.bytes(extent.offset_bytes), sort: (extent) => extent.offset_bytes, number: true },
      { name: "Length", show: (extent) => format.bytes(extent.length_bytes), sort: (extent) => extent.length_bytes, number: true }],
      pieces, (extent) => `${extent.device} ${extent.offset_bytes}`, view.redraw, "It has no memory yet.")));
}
const pieces = tableState(0);

// What may be done to it now.
function actsOn(lease: Lease, view: View): Child[] {
  if (lease.phase === "waiting") return [actButton(view, "Refuse…", "cancel_waiting", () => acts.cancelWaiting(lease))];
  const held = lease.phase === "active" || lease.phase === "revoking";
  return [held && actButton(view, "Revoke…", "revoke", () => acts.revoke(lease)),
    (held || lease.phase === "quarantined") && actButton(view, "Release…", "release", () => acts.release(lease))];
}

export function leases(view: View): Child {
  if (view.path[0]) return one(Number(view.path[0]), view);
  const answer = view.store.get("leases");
  if (!answer) return loading();
  const all = answer.leases, found = all.filter((lease) => matches(lease, filter));
  const controls = h("div", { class: "controls" },
    h("label", { class: "choice grow" }, h("span", null, "Find"), h("input", { type: "search", value: filter.text, placeholder: "id, label, tenant or host",
      oninput: (event: Event) => { filter.text = (event.target as HTMLInputElement).value; view.redraw(); } })),
    select("Pool", "pool", all.map((lease) => lease.pool), view), select("Tenant", "tenant", all.map((lease) => lease.tenant), view),
    select("State", "phase", all.map((lease) => lease.phase), view));
  const pools = (view.store.get("status")?.pools ?? []).map((pool) => pool.name);
  const more = pools.length > 0 && actButton(view, "Grant…", "grant", () => acts.grant(pools, view.store.get("whoami")?.who.tenant ?? ""));
  return card("Leases", [more, `${format.count(found.length)} of ${format.count(all.length)}, ${format.bytes(found.reduce((sum, lease) => sum + lease.bytes, 0))}`],
    controls, table("Leases", found, columns(view), state, (lease) => String(lease.id), view.redraw,
      all.length === 0 ? "There is no lease." : "No lease matches."));
}
