// SPDX-License-Identifier: Apache-2.0
// What happened: the manager's events of this run, and its audit log.
import * as format from "../format";
import { table, tableState } from "../table";
import type { AuditEntry, TerraceEvent } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { badge, empty, healthTone, loading, type View } from "../view";

const eventState = tableState(0, true), auditState = tableState(0, true);
let text = "", severity = "";

function find(value: string, view: View, placeholder: string): VNode {
  return h("label", { class: "choice grow" }, h("span", null, "Find"), h("input", { type: "search", value, placeholder,
    oninput: (event: Event) => { text = (event.target as HTMLInputElement).value; view.redraw(); } }));
}
const has = (parts: (string | number | null)[]): boolean => text === "" || parts.some((part) => String(part ?? "").toLowerCase().includes(text.toLowerCase()));
const frame = (title: string, aside: string, ...children: (Child | Child[])[]): VNode =>
  h("section", { class: "card full" }, h("header", null, h("h2", null, title), h("div", { class: "aside" }, aside)), ...children);

function about(event: TerraceEvent): Child[] {
  const parts: Child[] = [];
  if (event.lease !== null) parts.push(h("a", { href: `#/leases/${event.lease}` }, `lease ${event.lease}`));
  for (const name of ["tenant", "pool", "device", "host"] as const) if (event[name]) parts.push(h("span", null, `${name} ${event[name]}`));
  return parts;
}

export function events(view: View): Child {
  const all = view.store.get("events")?.events;
  if (!all && view.store.missing("events"))
    return frame("Events", "", empty("This manager keeps no events. Its audit log says who changed what."), h("p", { class: "hint" }, h("a", { href: "#/audit" }, "Audit log")));
  if (!all) return loading();
  const found = all.filter((one) => (severity === "" || one.severity === severity) && has([one.kind, one.message, one.tenant, one.pool, one.device, one.host, one.lease]));
  const now = new Date();
  return frame("Events", `${found.length} of the newest ${all.length} of this run`,
    h("div", { class: "controls" }, find(text, view, "kind, tenant, pool, device, text"), h("label", { class: "choice" }, h("span", null, "Severity"),
      h("select", { onchange: (event: Event) => { severity = (event.target as HTMLSelectElement).value; view.redraw(); } },
        ["", "info", "warning", "critical"].map((value) => h("option", { value, key: value }, value || "all"))))),
    table("Events", found, [
      { name: "Time", show: (one) => format.time(one.time_ns, now), sort: (one) => one.id },
      { name: "Severity", show: (one) => badge(one.severity, one.severity === "info" ? "plain" : healthTone(one.severity)), sort: (one) => one.severity },
      { name: "Event", show: (one) => format.words(one.kind), sort: (one) => one.kind },
      { name: "What", show: (one) => one.message, wide: true },
      { name: "About", show: (one) => h("span", { class: "about" }, about(one)), wide: true },
    ], eventState, (one) => String(one.id), view.redraw, all.length === 0 ? "Nothing has happened in this run yet." : "No event matches."));
}

function subject(entry: AuditEntry): Child {
  const lease = /^lease (\d+)$/.exec(entry.subject);
  return lease ? h("a", { href: `#/leases/${lease[1]}` }, entry.subject) : entry.subject;
}

export function audit(view: View): Child {
  const all = view.store.get("audit")?.entries;
  if (!all) return loading();
  const found = all.filter((one) => has([one.verb, one.actor, one.tenant, one.subject, one.detail]));
  const now = new Date();
  return frame("Audit log", `${found.length} of the newest ${all.length}`,
    h("div", { class: "controls" }, find(text, view, "verb, actor, tenant, subject, text")),
    table("Audit log", found, [
      { name: "Time", show: (one) => format.time(one.wall_ns, now), sort: (one) => one.sequence },
      { name: "Verb", show: (one) => h("b", null, one.verb), sort: (one) => one.verb },
      { name: "Subject", show: subject, sort: (one) => one.subject },
      { name: "Tenant", show: (one) => one.tenant, sort: (one) => one.tenant },
      { name: "Detail", show: (one) => one.detail, wide: true },
      { name: "Actor", show: (one) => one.actor, sort: (one) => one.actor, wide: true },
    ], auditState, (one) => String(one.sequence), view.redraw, all.length === 0 ? "The audit log is empty." : "No entry matches."));
}
