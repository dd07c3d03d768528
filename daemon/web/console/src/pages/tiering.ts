// What holders said of their use: how much of their data is in DDR, and how much in leased memory.
import { stateColour } from "../colours";
import * as format from "../format";
import { table, tableState } from "../table";
import type { Lease, Usage } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { bar, card, legend, loading, tenantName, type View } from "../view";
import { leaseLink } from "./leases";

const state = tableState(3, true);
type Told = Lease & { usage: Usage };

export function tiering(view: View): Child {
  const all = view.store.get("leases")?.leases;
  if (!all) return loading();
  const told = all.filter((lease): lease is Told => lease.usage !== null);
  const ddr = view.theme.dark ? "#d2a05d" : "#a36e2b", cxl = stateColour("leased", view.theme);
  const sum = (pick: (usage: Usage) => number): number => told.reduce((total, lease) => total + pick(lease.usage), 0);
  const parts = (usage: { ddr: number; cxl: number }) => [{ name: "DDR", bytes: usage.ddr, colour: ddr }, { name: "leased memory", bytes: usage.cxl, colour: cxl }];
  const total = { ddr: sum((usage) => usage.ddr_bytes), cxl: sum((usage) => usage.cxl_bytes) };
  const split = (lease: Told): VNode => bar(parts({ ddr: lease.usage.ddr_bytes, cxl: lease.usage.cxl_bytes }),
    lease.usage.ddr_bytes + lease.usage.cxl_bytes, lease.usage.holder);
  return h("div", { class: "columns" },
    told.length > 0 && card("Where data lies", `${told.length} ${told.length === 1 ? "program" : "programs"} report`,
      bar(parts(total), total.ddr + total.cxl, "all programs"), legend(parts(total))),
    h("section", { class: "card full" }, h("header", null, h("h2", null, "Programs"), h("div", { class: "aside" }, "as they report it, no measurement of the manager's")),
      table("Programs", told, [
        { name: "Program", show: (lease) => lease.usage.holder, sort: (lease) => lease.usage.holder },
        { name: "Tenant", show: (lease) => tenantName(lease.tenant, view), sort: (lease) => lease.tenant },
        { name: "Lease", show: leaseLink, sort: (lease) => lease.id, number: true },
        { name: "In leased memory", show: (lease) => format.bytes(lease.usage.cxl_bytes), sort: (lease) => lease.usage.cxl_bytes, number: true },
        { name: "In DDR", show: (lease) => format.bytes(lease.usage.ddr_bytes), sort: (lease) => lease.usage.ddr_bytes, number: true },
        { name: "Live in the lease", show: (lease) => format.bytes(lease.usage.live_bytes), sort: (lease) => lease.usage.live_bytes, number: true },
        { name: "Split", show: split },
        { name: "Reported", show: (lease) => `${format.duration(lease.usage.age_ns)} ago`, sort: (lease) => lease.usage.age_ns, number: true },
      ], state, (lease) => String(lease.id), view.redraw, "No program reports its use. Those under terrace run do."),
      h("p", { class: "hint" }, "Hit ratios and moves between tiers are known to each program only: terrace top and terrace tier map show them on its host.")));
}
