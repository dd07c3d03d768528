// SPDX-License-Identifier: Apache-2.0
// Further hosts and their agents.
import * as format from "../format";
import { table, tableState } from "../table";
import { h, type Child } from "../vdom";
import { badge, loading, type View } from "../view";

const state = tableState(0);

export function hosts(view: View): Child {
  const all = view.store.get("hosts")?.hosts;
  if (!all) return loading();
  return h("section", { class: "card full" }, h("header", null, h("h2", null, "Hosts"), h("div", { class: "aside" }, `${all.length} further`)), table("Hosts", all, [
    { name: "Host", show: (host) => h("b", null, host.name), sort: (host) => host.name },
    { name: "State", show: (host) => badge(host.state, host.state === "connected" ? "good" : host.state === "self-fenced" ? "critical" : "warning"), sort: (host) => host.state },
    { name: "Last word", show: (host) => host.address || host.last_contact_ns ? `${format.duration(host.last_contact_ns)} ago` : "not since the start", sort: (host) => host.last_contact_ns, number: true },
    { name: "Counts as fenced", show: (host) => host.ends_in_ns > 0 ? `in ${format.duration(host.ends_in_ns)}` : "–", number: true },
    { name: "Leases", show: (host) => format.count(host.leases), sort: (host) => host.leases, number: true },
    { name: "Leased", show: (host) => format.bytes(host.leased_bytes), sort: (host) => host.leased_bytes, number: true },
    { name: "Certificate", show: (host) => host.certificate_days_left === null ? "–" : h("span", { class: host.certificate_ends_soon ? "warning" : "" }, `${host.certificate_days_left} days`), number: true },
    { name: "Fencing takes", show: (host) => host.fence_ns === null ? "–" : format.duration(host.fence_ns), number: true },
    { name: "Version", show: (host) => host.version },
    { name: "Address", show: (host) => host.address },
    { name: "Sees", show: (host) => host.devices.join(", "), wide: true },
    { name: "Remark", show: (host) => host.detail, wide: true },
  ], state, (host) => host.name, view.redraw, "This machine only: no further host has registered."));
}
