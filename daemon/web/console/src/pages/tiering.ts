// SPDX-License-Identifier: Apache-2.0
// What programs say of their memory: runs by tier, with what moves, and the use of each lease.
import * as format from "../format";
import { heatMap, tierColours } from "../heat_view";
import { table, tableState } from "../table";
import type { Lease, Run, Usage } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { bar, card, legend, loading, tenantName, type View } from "../view";
import { leaseLink } from "./leases";

const state = tableState(3, true), runState = tableState(4, true);
type Told = Lease & { usage: Usage };

function runsTable(runs: Run[], leftOut: number, view: View): Child {
  const hits = (run: Run): string => run.figures.ddr_hit_permille === null ? "–" : format.percent(run.figures.ddr_hit_permille, 1000);
  return h("section", { class: "card full" }, h("header", null, h("h2", null, "Runs"),
    h("div", { class: "aside" }, leftOut > 0 ? `${format.count(leftOut)} further ones are left out` : "those of containers and further hosts, too")),
    table("Runs", runs, [
      { name: "Program", show: (run) => run.figures.program, sort: (run) => run.figures.program },
      { name: "Tenant", show: (run) => tenantName(run.tenant, view), sort: (run) => run.tenant },
      { name: "Host", show: (run) => run.agent ?? run.host, sort: (run) => run.agent ?? run.host },
      { name: "In DDR", show: (run) => format.bytes(run.figures.ddr_bytes), sort: (run) => run.figures.ddr_bytes, number: true },
      { name: "In leased memory", show: (run) => format.bytes(run.figures.cxl_bytes), sort: (run) => run.figures.cxl_bytes, number: true },
      { name: "Hits in DDR", show: hits, sort: (run) => run.figures.ddr_hit_permille ?? -1, number: true },
      { name: "Rise a second", show: (run) => format.count(run.promotions_per_s), sort: (run) => run.promotions_per_s, number: true },
      { name: "Sink a second", show: (run) => format.count(run.demotions_per_s), sort: (run) => run.demotions_per_s, number: true },
      { name: "No room", show: (run) => format.count(run.figures.counters.refused + run.figures.counters.fallbacks),
        sort: (run) => run.figures.counters.refused + run.figures.counters.fallbacks, number: true },
      { name: "Reported", show: (run) => `${format.duration(run.age_ns)} ago`, sort: (run) => run.age_ns, number: true },
    ], runState, (run) => `${run.agent ?? ""} ${run.pid ?? ""} ${run.tenant} ${run.figures.program}`, view.redraw, "No program reports. Those under terrace run do, once they hold leases."));
}

export function tiering(view: View): Child {
  const all = view.store.get("leases")?.leases;
  if (!all) return loading();
  const told = all.filter((lease): lease is Told => lease.usage !== null);
  const { ddr, cxl } = tierColours(view.theme), runs = view.store.get("runs");
  const sum = (pick: (usage: Usage) => number): number => told.reduce((total, lease) => total + pick(lease.usage), 0);
  const parts = (usage: { ddr: number; cxl: number }) => [{ name: "DDR", bytes: usage.ddr, colour: ddr }, { name: "leased memory", bytes: usage.cxl, colour: cxl }];
  const total = { ddr: sum((usage) => usage.ddr_bytes), cxl: sum((usage) => usage.cxl_bytes) };
  const split = (lease: Told): VNode => bar(parts({ ddr: lease.usage.ddr_bytes, cxl: lease.usage.cxl_bytes }),
    lease.usage.ddr_bytes + lease.usage.cxl_bytes, lease.usage.holder);
  return h("div", { class: "columns" },
    told.length > 0 && card("Where data lies", `${told.length} ${told.length === 1 ? "program" : "programs"} report`,
      bar(parts(total), total.ddr + total.cxl, "all programs"), legend(parts(total))),
    runsTable(runs?.runs ?? [], runs?.left_out ?? 0, view),
    runs && runs.runs.length > 0 && heatMap(runs.runs, view),
    h("section", { class: "card full" }, h("header", null, h("h2", null, "Leases in use"), h("div", { class: "aside" }, "as they report it, no measurement of the manager's")),
      table("Leases in use", told, [
        { name: "Program", show: (lease) => lease.usage.holder, sort: (lease) => lease.usage.holder },
        { name: "Tenant", show: (lease) => tenantName(lease.tenant, view), sort: (lease) => lease.tenant },
        { name: "Lease", show: leaseLink, sort: (lease) => lease.id, number: true },
        { name: "In leased memory", show: (lease) => format.bytes(lease.usage.cxl_bytes), sort: (lease) => lease.usage.cxl_bytes, number: true },
        { name: "In DDR", show: (lease) => format.bytes(lease.usage.ddr_bytes), sort: (lease) => lease.usage.ddr_bytes, number: true },
        { name: "Live in the lease", show: (lease) => format.bytes(lease.usage.live_bytes), sort: (lease) => lease.usage.live_bytes, number: true },
        { name: "Split", show: split },
        { name: "Reported", show: (lease) => `${format.duration(lease.usage.age_ns)} ago`, sort: (lease) => lease.usage.age_ns, number: true },
      ], state, (lease) => String(lease.id), view.redraw, "No program reports its use. Those under terrace run do."),
      h("p", { class: "hint" }, "What each process and range does, and which single granules are hot, is known on its host only: terrace top and terrace tier map show it there.")));
}
