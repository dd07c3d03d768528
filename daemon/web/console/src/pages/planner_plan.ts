// SPDX-License-Identifier: Apache-2.0
// The figures of terrace plan: memory that separate hosts need against a pool, by pool size and over time.
import { slotColour, stateColour } from "../colours";
import * as format from "../format";
import { plot, type Line } from "../plot";
import type { Outcome, OverTime, PlanDocument, Point, Setup } from "../planner_run";
import { table, tableState } from "../table";
import { h, type Child, type VNode } from "../vdom";
import { bar, swatch, type View } from "../view";

const state = tableState(-1);

export interface Arrangement { kind: string; fraction: number; setup: Setup | null; total: number; saving: number | null; outcome: Outcome | null;
  leastRejected: number | null; acceptable: boolean }

export function arrangements(plan: PlanDocument): Arrangement[] {
  const of = (kind: string, point: Point): Arrangement => ({ kind, fraction: point.local_fraction, setup: point.setup, total: point.total_bytes,
    saving: point.saving, outcome: point.outcome, leastRejected: null, acceptable: point.acceptable });
  const same = (left: Point | null, right: Point): boolean => left !== null && left.local_fraction === right.local_fraction && left.total_bytes === right.total_bytes && left.setup.pool_bytes === right.setup.pool_bytes;
  return [{ kind: "baseline", fraction: 1, setup: plan.baseline.setup, total: plan.baseline.total_bytes, saving: null, outcome: plan.baseline.outcome, leastRejected: null, acceptable: true },
    ...(plan.without_pool ? [of("no pool, least", plan.without_pool)] : []),
    ...plan.rows.map((row) => row.point
      ? of(`${row.point.setup.pool_bytes > 0 ? "pooled" : "no pool"}${same(plan.best, row.point) ? ", best" : ""}`, row.point)
      : { kind: "pooled", fraction: row.local_fraction, setup: null, total: 0, saving: null, outcome: null, leastRejected: row.least_rejected, acceptable: false })];
}

// One line a local fraction: the row itself and its sweep, by pool size.
export function byPoolSize(plan: PlanDocument, value: (point: Point) => number): { fraction: number; points: [number, number][] }[] {
  const fractions = [...new Set(plan.rows.map((row) => row.local_fraction))];
  return fractions.map((fraction) => ({ fraction, points: plan.rows.filter((row) => row.local_fraction === fraction)
    .flatMap((row) => [...(row.point ? [row.point] : []), ...row.sweep]).map((point): [number, number] => [point.setup.pool_bytes, value(point)])
    .sort((left, right) => left[0] - right[0]) })).filter((one) => one.points.length > 0);
}

const percent = (share: number, digits = 1): string => `${(share * 100).toFixed(digits)} %`;

function charts(plan: PlanDocument, view: View): VNode {
  const lines = (value: (point: Point) => number): Line[] => byPoolSize(plan, value).map((one, index) => ({ name: `${Math.round(one.fraction * 100)} % local`, colour: slotColour(index, view.theme), points: one.points }));
  const pools = plan.rows.flatMap((row) => [row.point, ...row.sweep]).map((point) => point?.setup.pool_bytes ?? 0);
  const right = Math.max(0, ...pools), grey = stateColour("waiting", view.theme);
  const level = (name: string, value: number, from = 0, to = right): Line => ({ name, colour: grey, dashed: true, points: [[from, value], [to, value]] });
  const allowed = plan.assumed.rejected_max / Math.max(1, plan.baseline.outcome.requests);
  const rejected = lines((point) => point.outcome.rejected_share), highest = Math.max(allowed, ...rejected.flatMap((line) => line.points.map((point) => point[1])));
  const enough = Math.max(allowed * 8, 0.01); // the interesting part is near what is allowed
  const spans = plan.over_time.baseline.local_used_bytes.length - 1;
  const timed = (name: string, slot: number, values: number[]): Line => ({ name, colour: slotColour(slot, view.theme), steps: true,
    points: values.map((value, at): [number, number] => [(plan.trace.span_ns * at) / spans, value]) });
  const of = plan.over_time.of_shown, shown = plan.over_time.shown, base: OverTime = plan.over_time.baseline;
  const share = (values: number[], whole: number): number[] => values.map((value) => value / Math.max(1, whole));
  const time = { x: format.duration, xName: "time of the trace" };
  return h("div", { class: "charts" },
    right > 0 && plot({ name: "Memory saved", x: format.bytes, xName: "shared pool", y: percent,
      lines: [...lines((point) => point.saving), ...(plan.without_pool ? [level("smaller hosts, no pool", plan.without_pool.saving)] : [])] }, view.redraw),
    right > 0 && plot({ name: "Requests rejected", x: format.bytes, xName: "shared pool", y: (value) => percent(value, 2), top: highest > enough ? enough : undefined,
      lines: [...rejected, level("allowed", allowed)] }, view.redraw),
    plot({ name: "Memory in use", ...time, y: format.bytes, lines: [timed("baseline hosts", 11, base.local_used_bytes),
      ...(of ? [timed("hosts, local", 0, of.local_used_bytes), ...(shown!.setup.pool_bytes > 0 ? [timed("pool", 1, of.pool_used_bytes)] : [])] : []),
      level("baseline's size", plan.baseline.total_bytes, 0, plan.trace.span_ns)] }, view.redraw),
    plot({ name: "Stranded and fragmented", ...time, y: percent, lines: [timed("stranded in the baseline", 11, share(base.stranded_bytes, plan.baseline.total_bytes)),
      ...(of ? [timed("stranded, of local memory", 2, share(of.stranded_bytes, shown!.setup.hosts * shown!.setup.local_bytes)),
        ...(shown!.setup.pool_bytes > 0 ? [timed("pool's free memory outside longest runs", 1, of.fragmentation)] : [])] : [])] }, view.redraw));
}

function needed(all: Arrangement[], view: View): VNode {
  const parts = (one: Arrangement) => [{ name: "local", bytes: one.setup!.hosts * one.setup!.local_bytes, colour: slotColour(0, view.theme) },
    { name: "pool", bytes: one.setup!.pool_bytes, colour: slotColour(1, view.theme) }];
  const most = Math.max(...all.map((one) => one.total));
  return h("div", null, h("ul", { class: "legend" }, parts(all[0]!).map((part) => h("li", null, swatch(part.colour), h("span", null, part.name)))), h("ul", { class: "ranks" }, all.filter((one) => one.setup !== null).map((one, index) => h("li", { key: String(index), "data-kind": one.kind,
    "data-total": String(one.total), "data-pool": String(one.setup!.pool_bytes), "data-saving": one.saving === null ? false : String(one.saving) },
    h("div", { class: "line" }, h("span", null, h("b", null, one.kind), ` ${one.setup!.hosts} × ${format.bytes(one.setup!.local_bytes)}${one.setup!.pool_bytes > 0 ? ` and a pool of ${format.bytes(one.setup!.pool_bytes)}` : ""}`),
      h("span", null, `${format.bytes(one.total)}${one.saving === null ? "" : `, saves ${percent(one.saving)}`}${one.acceptable ? "" : ", rejects too many"}`)),
    bar(parts(one), most, one.kind)))));
}

export function planFigures(plan: PlanDocument, name: string, view: View): Child {
  const all = arrangements(plan), setup = plan.baseline.setup;
  const size = (value: number | null | undefined): string => value === null || value === undefined ? "–" : format.bytes(value);
  return h("div", { class: "stack full", id: "figures", "data-of": name },
    h("section", { class: `card verdict ${plan.best ? "good" : "warning"}` }, h("header", null, h("h2", null, name), h("div", { class: "aside" }, `${format.count(plan.assumed.replays)} replays`)),
      h("p", { id: "conclusion" }, plan.conclusion),
      h("p", { class: "hint" }, `${format.count(plan.trace.requests)} requests in ${format.duration(plan.trace.span_ns)}, together at most ${format.bytes(plan.trace.peak_bytes)}; baseline: ${format.count(setup.hosts)} hosts of ${format.bytes(setup.local_bytes)}`
        + `${setup.host_cores > 0 ? `, ${setup.host_cores} cores` : ""}${setup.host_gpus > 0 ? `, ${setup.host_gpus} GPUs` : ""}; ${format.count(plan.assumed.rejected_max)} requests may be rejected`)),
    h("section", { class: "card" }, h("header", null, h("h2", null, "Memory needed")), needed(all, view)),
    h("section", { class: "card" }, h("header", null, h("h2", null, "By pool size, and over time"), h("div", { class: "aside" }, plan.over_time.shown ? "over time: the highest of each span" : "")), charts(plan, view)),
    h("section", { class: "card" }, h("header", null, h("h2", null, "Figures")), table("Figures", all, [
      { name: "", show: (one) => h("b", null, one.kind) },
      { name: "Local", show: (one) => percent(one.fraction, 0), sort: (one) => one.fraction, number: true },
      { name: "Per host", show: (one) => size(one.setup?.local_bytes), sort: (one) => one.setup?.local_bytes ?? 0, number: true },
      { name: "Pool", show: (one) => one.setup && one.setup.pool_bytes > 0 ? format.bytes(one.setup.pool_bytes) : "–", sort: (one) => one.setup?.pool_bytes ?? 0, number: true },
      { name: "Total", show: (one) => one.setup ? format.bytes(one.total) : "with any pool", sort: (one) => one.total, number: true },
      { name: "Saving", show: (one) => one.saving === null ? "–" : percent(one.saving), sort: (one) => one.saving ?? 0, number: true },
      { name: "Rejected", show: (one) => percent(one.outcome?.rejected_share ?? (one.leastRejected ?? 0) / Math.max(1, plan.baseline.outcome.requests), 2), sort: (one) => one.outcome?.rejected_share ?? 1, number: true },
      { name: "Spilled", show: (one) => one.outcome && one.setup!.pool_bytes > 0 ? percent(one.outcome.spilled / Math.max(1, one.outcome.requests)) : "–", number: true },
      { name: "Stranded", show: (one) => size(one.outcome?.stranded_mean_bytes), number: true },
      { name: "Peak", show: (one) => size(one.outcome?.stranded_peak_bytes), number: true },
      { name: "Frag p50", show: (one) => one.setup && one.setup.pool_bytes > 0 ? percent(one.outcome?.fragmentation_p50 ?? 0) : "–", number: true },
      { name: "p99", show: (one) => one.setup && one.setup.pool_bytes > 0 ? percent(one.outcome?.fragmentation_p99 ?? 0) : "–", number: true },
    ], state, (one) => `${one.kind} ${one.fraction} ${one.setup?.pool_bytes}`, view.redraw, "")));
}
