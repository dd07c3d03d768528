// SPDX-License-Identifier: Apache-2.0
// What every page is given, and small parts that several show.
import { slotColour, stateColour, tenantSlots, type Theme } from "./colours";
import * as format from "./format";
import type { Store } from "./store";
import type { Pool } from "./types";
import { h, type Child, type VNode } from "./vdom";

export interface View {
  store: Store;
  theme: Theme;
  path: string[]; // behind the page's name: "#/map/main" has ["main"]
  redraw: () => void;
}

let slots = new Map<string, number>();
export function nameTenants(tenants: string[]): void { slots = tenantSlots(tenants); }
export function tenantColour(tenant: string, theme: Theme): string { return slotColour(slots.get(tenant) ?? 0, theme); }

export function swatch(colour: string): VNode {
  return h("span", { class: "swatch", "aria-hidden": "true", style: { background: colour } });
}
export function tenantName(tenant: string, view: View): VNode {
  return h("span", { class: "tenant" }, swatch(tenantColour(tenant, view.theme)), h("span", null, tenant));
}
export function badge(text: string, tone: string): VNode {
  return h("span", { class: `badge ${tone}` }, format.words(text));
}
export function phaseBadge(phase: string): VNode {
  const tone = phase === "active" ? "good" : phase === "quarantined" ? "critical"
    : phase === "waiting" || phase === "pending" ? "plain" : "warning";
  return badge(phase, tone);
}
export function empty(text: string): VNode { return h("p", { class: "empty" }, text); }
export function loading(): VNode { return h("p", { class: "empty" }, "Asking the manager…"); }
export function card(title: string, aside: Child | Child[], ...children: (Child | Child[])[]): VNode {
  return h("section", { class: "card" },
    h("header", null, h("h2", null, title), h("div", { class: "aside" }, ...[aside].flat())), ...children);
}
export function fact(name: string, value: Child): VNode {
  return h("div", { class: "fact" }, h("dt", null, name), h("dd", null, value));
}

export interface Part { name: string; bytes: number; colour: string }

// What a pool's capacity is, in the order in which bars and charts stack it.
export function poolParts(pool: Pool, theme: Theme): Part[] {
  const outOfService = Math.max(0, pool.free_bytes - pool.grantable_bytes);
  const parts: [string, number, string][] = [["leased", pool.leased_bytes, "leased"], ["scrubbing", pool.scrubbing_bytes,
    "scrubbing"], ["quarantined", pool.quarantined_bytes, "quarantined"], ["absent", pool.absent_bytes, "absent"],
    ["free, out of service", outOfService, "waiting"], ["free", pool.free_bytes - outOfService, "free"]];
  return parts.filter(([name, bytes]) => bytes > 0 || name === "leased" || name === "free")
    .map(([name, bytes, state]) => ({ name, bytes, colour: stateColour(state, theme) }));
}

// A sentence of the manager's: what it has in backquotes is a command.
export function prose(text: string): Child[] {
  return (text.charAt(0).toUpperCase() + text.slice(1)).split("`").map((part, at) => (at % 2 === 1 ? h("code", null, part) : part));
}

export function bar(parts: Part[], whole: number, title: string): VNode {
  const text = parts.map((part) => `${part.name} ${format.bytes(part.bytes)}`).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": `${title}: ${text}` },
    parts.filter((part) => part.bytes > 0).map((part) => h("div", { title: `${part.name}: ${format.bytes(part.bytes)}`,
      style: { width: `${whole > 0 ? (part.bytes / whole) * 100 : 0}%`, background: part.colour } })));
}
export function legend(parts: Part[]): VNode {
  return h("ul", { class: "legend" }, parts.map((part) =>
    h("li", null, swatch(part.colour), h("span", null, part.name), h("b", null, format.bytes(part.bytes)))));
}

export function healthTone(severity: string): string {
  return severity === "critical" ? "critical" : severity === "warning" ? "warning" : "good";
}
