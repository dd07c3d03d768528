// SPDX-License-Identifier: Apache-2.0
// The figures of terrace tiersim: policies side by side at each share of DDR.
import { slotColour } from "../colours";
import * as format from "../format";
import type { PolicyResult, TiersimDocument } from "../planner_run";
import { table, tableState } from "../table";
import { h, type Child, type VNode } from "../vdom";
import type { View } from "../view";

const state = tableState(-1);
const share = (value: number): string => value.toFixed(3);

export function policiesOf(results: PolicyResult[]): string[] { return [...new Set(results.map((one) => one.policy))]; }

// A group of bars a share of DDR, a bar a policy.
function bars(title: string, results: PolicyResult[], value: (one: PolicyResult) => number, show: (value: number) => string, view: View): VNode {
  const policies = policiesOf(results), most = Math.max(...results.map(value), 1e-9);
  return h("section", { class: "card" }, h("header", null, h("h2", null, title)), [...new Set(results.map((one) => one.ddr_fraction))].map((fraction) =>
    h("div", { class: "group", key: String(fraction) }, h("h3", null, `${(fraction * 100).toFixed(fraction < 0.01 ? 2 : 0)} % of the objects in DDR`),
      h("ul", { class: "ranks" }, results.filter((one) => one.ddr_fraction === fraction).map((one) => h("li", { key: one.policy },
        h("div", { class: "line" }, h("span", null, one.policy), h("span", null, show(value(one)))),
        h("div", { class: "bar", role: "img", "aria-label": `${one.policy}: ${show(value(one))}` },
          h("div", { style: { width: `${(100 * value(one)) / most}%`, background: slotColour(policies.indexOf(one.policy), view.theme) } }))))))));
}

export function tiersimFigures(document: TiersimDocument, name: string, view: View): Child {
  const results = document.results;
  return h("div", { class: "stack full", id: "figures", "data-of": name },
    h("section", { class: "card verdict good" }, h("header", null, h("h2", null, name)),
      h("p", null, `${format.count(document.requests)} requests, ${format.count(document.uses)} uses of ${format.count(document.objects)} objects of ${format.bytes(document.granule_bytes)}, `
        + `${format.count(document.re_references)} re-references${document.look_ahead_requests > 0 ? `, ${format.count(document.look_ahead_requests)} requests announced ahead` : ""}`),
      h("p", { class: "hint" }, "Caches are upper bounds: they copy at once and for nothing. Belady knows what comes.")),
    h("div", { class: "columns" },
      bars("Re-references that hit DDR", results, (one) => one.re_reference_hit_share, share, view),
      bars("Bytes copied", results, (one) => one.bytes_copied, format.bytes, view),
      bars("Stall", results, (one) => one.stall_s, (value) => `${value.toFixed(value >= 1 ? 2 : 4)} s`, view),
      bars("Moves", results, (one) => one.promotions + one.demotions, format.count, view)),
    h("section", { class: "card" }, h("header", null, h("h2", null, "Figures")), table("Figures", results, [
      { name: "Policy", show: (one) => h("b", { "data-policy": one.policy, "data-share": String(one.ddr_fraction), "data-hits": String(one.hits) }, one.policy), sort: (one) => one.policy },
      { name: "DDR", show: (one) => String(one.ddr_fraction), sort: (one) => one.ddr_fraction, number: true },
      { name: "Hits", show: (one) => share(one.hits / Math.max(1, document.uses)), sort: (one) => one.hits, number: true },
      { name: "Re-ref hits", show: (one) => share(one.re_reference_hit_share), sort: (one) => one.re_reference_hit_share, number: true },
      { name: "Of Belady", show: (one) => share(one.hits_over_belady), sort: (one) => one.hits_over_belady, number: true },
      { name: "Promoted", show: (one) => format.count(one.promotions), sort: (one) => one.promotions, number: true },
      { name: "Demoted", show: (one) => format.count(one.demotions), sort: (one) => one.demotions, number: true },
      { name: "Copied", show: (one) => format.bytes(one.bytes_copied), sort: (one) => one.bytes_copied, number: true },
      { name: "Stall", show: (one) => `${one.stall_s.toFixed(one.stall_s >= 1 ? 2 : 4)} s`, sort: (one) => one.stall_s, number: true },
      { name: "Time/Belady", show: (one) => share(one.memory_time_over_belady), sort: (one) => one.memory_time_over_belady, number: true },
    ], state, (one) => `${one.policy} ${one.ddr_fraction}`, view.redraw, "")));
}
