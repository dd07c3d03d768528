// SPDX-License-Identifier: Apache-2.0
// What an operator looks at first: is it well, how full is it, who has it, what happened.
import { chart, type Series } from "../chart";
import { stateColour } from "../colours";
import * as format from "../format";
import type { Finding, Health, History, Lease, Pool, PoolHistory, TerraceEvent, AuditEntry } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { badge, bar, card, empty, fact, healthTone, legend, loading, poolParts, prose, tenantColour, tenantName, type View } from "../view";

function finding(one: Finding): VNode {
  return h("li", { key: `${one.code} ${one.name}`, class: `finding ${healthTone(one.severity)}` },
    h("div", { class: "what" }, badge(one.severity, healthTone(one.severity)), h("b", null, `${format.words(one.code)}${one.name ? `: ${one.name}` : ""}`),
      h("span", { class: "since" }, `for ${format.duration(one.lasted_ns)}`)),
    h("p", null, prose(one.text)), h("p", { class: "advice" }, prose(one.advice)));
}

function verdict(health: Health): VNode {
  const { severity, critical, warnings } = health.summary;
  const said = severity === "healthy" ? "Nothing is wrong" : [critical > 0 && `${critical} critical`, warnings > 0 && `${warnings} ${warnings === 1 ? "warning" : "warnings"}`]
    .filter(Boolean).join(", ");
  return h("section", { class: `card verdict ${healthTone(severity)}` },
    h("header", null, h("h2", null, "Health"), h("div", { class: "aside" }, said)),
    health.findings.length > 0 ? h("ul", { class: "findings" }, health.findings.map(finding))
      : h("p", { class: "hint" }, "Devices, store, queues, fences, hosts and certificates are as they should be."));
}

function poolRow(pool: Pool, view: View): VNode {
  const parts = poolParts(pool, view.theme);
  return h("div", { class: "pool", key: pool.name },
    h("div", { class: "line" }, h("a", { href: `#/map/${encodeURIComponent(pool.name)}` }, pool.name),
      h("span", null, `${format.bytes(pool.grantable_bytes)} grantable of ${format.bytes(pool.capacity_bytes)} · longest free run ${format.bytes(pool.largest_free_bytes)} · ${format.count(pool.leases)} ${pool.leases === 1 ? "lease" : "leases"}${pool.waiting > 0 ? ` · ${pool.waiting} waiting` : ""}`)),
    bar(parts, pool.capacity_bytes, `Pool ${pool.name}`), legend(parts));
}

function tenants(leases: Lease[], view: View): VNode {
  const use = new Map<string, { bytes: number; leases: number }>();
  for (const lease of leases) {
    const one = use.get(lease.tenant) ?? { bytes: 0, leases: 0 };
    one.bytes += lease.bytes;
    ++one.leases;
    use.set(lease.tenant, one);
  }
  const top = [...use].sort((left, right) => right[1].bytes - left[1].bytes).slice(0, 8);
  const most = top[0]?.[1].bytes ?? 0;
  return h("ul", { class: "ranks" }, top.map(([tenant, one]) => h("li", { key: tenant },
    h("div", { class: "line" }, tenantName(tenant, view), h("span", null, `${format.bytes(one.bytes)} · ${format.count(one.leases)} ${one.leases === 1 ? "lease" : "leases"}`)),
    bar([{ name: tenant, bytes: one.bytes, colour: tenantColour(tenant, view.theme) }], most, tenant))));
}

// Per second between each row and the one before it; before the first is none, and it is as the second.
export function rates(totals: number[], ageNs: number[]): number[] {
  return totals.map((_, row) => {
    const at = Math.max(row, 1), seconds = at < totals.length ? (ageNs[at - 1]! - ageNs[at]!) / 1e9 : 0;
    return seconds > 0 ? Math.max(0, totals[at]! - totals[at - 1]!) / seconds : 0;
  });
}

function poolChart(pool: PoolHistory, history: History, view: View): VNode {
  const series = (name: string, state: string, values: number[]): Series => ({ name, colour: stateColour(state, view.theme), values });
  const all = [series("leased", "leased", pool.leased_bytes), series("scrubbing", "scrubbing", pool.scrubbing_bytes),
    series("quarantined", "quarantined", pool.quarantined_bytes), series("absent", "absent", pool.absent_bytes)];
  return chart({ name: `Pool ${pool.name}`, ageNs: history.age_ns, stacked: true, show: format.bytes,
    series: all.filter((one, at) => at === 0 || one.values.some((value) => value > 0)), most: Math.max(...pool.capacity_bytes) }, view.redraw);
}

function hour(history: History, view: View): Child {
  if (history.age_ns.length < 2) return empty("The manager notes a row every ten seconds; there will be a picture soon.");
  const line = (name: string, label: string, state: string, values: number[], show: (value: number) => string): VNode =>
    chart({ name, ageNs: history.age_ns, stacked: false, show, series: [{ name: label, colour: stateColour(state, view.theme), values }] }, view.redraw);
  const sum = (pick: (pool: PoolHistory) => number[]): number[] =>
    history.age_ns.map((_, at) => history.pools.reduce((total, pool) => total + pick(pool)[at]!, 0));
  return h("div", { class: "charts" }, history.pools.slice(0, 8).map((pool) => poolChart(pool, history, view)),
    line("Grants", "grants", "leased", rates(history.grants, history.age_ns), format.rate),
    line("Commits of the store", "commits", "scrubbing", rates(history.commits, history.age_ns), format.rate),
    line("Leases", "leases", "transferring", sum((pool) => pool.leases), format.count),
    line("Queue", "waiting", "revoking", sum((pool) => pool.waiting), format.count));
}

function happened(view: View): VNode {
  const now = new Date();
  const events = view.store.get("events")?.events, audit = view.store.get("audit")?.entries;
  const row = (key: string, wallNs: number, tone: string, what: string, text: string): VNode =>
    h("li", { key, class: tone }, h("time", null, format.time(wallNs, now)), h("b", null, format.words(what)), h("span", null, text));
  const newestFirst = (events ?? []).slice().sort((left: TerraceEvent, right: TerraceEvent) => right.id - left.id);
  const rows = events ? newestFirst.slice(0, 12).map((one) => row(`e${one.id}`, one.time_ns, one.severity, one.kind, one.message))
    : (audit ?? []).slice(0, 12).map((one: AuditEntry) => row(`a${one.sequence}`, one.wall_ns, "", one.verb, [one.subject, one.detail].filter(Boolean).join(": ")));
  return h("ol", { class: "events" }, rows.length > 0 ? rows : [h("li", null, empty("Nothing yet."))]);
}

function queue(view: View): Child {
  const waiting = view.store.get("queue")?.waiting ?? [];
  if (waiting.length === 0) return empty("No grant waits.");
  return h("ul", { class: "ranks" }, waiting.slice(0, 6).map((one) => h("li", { key: String(one.lease) },
    h("div", { class: "line" }, tenantName(one.tenant, view),
      h("span", null, `${format.bytes(one.bytes)} of ${one.pool} · place ${one.place} · waits ${format.duration(one.waited_ns)}, at most ${format.duration(one.ends_in_ns)} more`)))),
    waiting.length > 6 && h("li", null, `${waiting.length - 6} more`));
}

function hosts(view: View): Child {
  const all = view.store.get("hosts")?.hosts ?? [];
  if (all.length === 0) return empty("This machine only: no further host has registered.");
  return h("ul", { class: "ranks" }, all.slice(0, 8).map((host) => h("li", { key: host.name }, h("div", { class: "line" },
    h("span", null, h("b", null, host.name), " ", badge(host.state, host.state === "connected" ? "good" : "warning")),
    h("span", null, `${format.count(host.leases)} leases, ${format.bytes(host.leased_bytes)}`)))));
}

export function overview(view: View): Child {
  const status = view.store.get("status"), health = view.store.get("health"), history = view.store.get("history");
  if (!status || !health) return loading();
  const server = status.server;
  const leases = view.store.get("leases")?.leases.filter((lease) => lease.phase !== "waiting") ?? [];
  const events = view.store.get("events") ? h("a", { href: "#/events" }, "all events") : h("a", { href: "#/audit" }, "audit log");
  const stack = (...cards: Child[]): VNode => h("div", { class: "stack" }, cards);
  return h("div", { class: "columns" },
    stack(verdict(health),
      card("Tenants", h("a", { href: "#/tenants" }, "all tenants"), leases.length > 0 ? tenants(leases, view) : empty("Nobody has a lease.")),
      card("Queue", `${server.waiting} waiting`, queue(view))),
    stack(card("Capacity", `${status.pools.length} ${status.pools.length === 1 ? "pool" : "pools"}`,
      status.pools.length > 0 ? status.pools.map((pool) => poolRow(pool, view)) : empty("There is no pool yet: terrace pool create makes one.")),
    card("Last events", events, happened(view))),
    h("section", { class: "card full" }, h("header", null, h("h2", null, "The last hour")), history ? hour(history, view) : loading()),
    card("Hosts", h("a", { href: "#/hosts" }, "all hosts"), hosts(view)),
    card("Manager", `version ${server.version}`, h("dl", { class: "facts" }, fact("process", String(server.pid)), fact("runs for", format.duration(server.uptime_ns)),
      fact("connections", `${server.connections} of ${format.count(server.connections_max)}`), fact("open files", `${server.descriptors} of ${format.count(server.descriptors_max)}`),
      fact("commits", format.count(server.store_commits)), fact("to erase", format.bytes(server.scrub_queued_bytes)), fact("state", server.state_file))));
}
