// SPDX-License-Identifier: Apache-2.0
import { arrangements, byPoolSize } from "../src/pages/planner_plan";
import { formatOf, progressText, queryOf, toolOf, type PlanDocument, type Point } from "../src/planner_run";
import { rangeOf, valueAt } from "../src/plot";
import { same, test } from "./check";

const outcome = { requests: 100, rejected: 1, rejected_share: 0.01, spilled: 3, stranded_mean_bytes: 1, stranded_peak_bytes: 2, fragmentation_p50: 0, fragmentation_p99: 0.1 };
const setup = (local: number, pool: number) => ({ hosts: 4, local_bytes: local, pool_bytes: pool, host_cores: 0, host_gpus: 0 });
const point = (fraction: number, pool: number, saving: number): Point => ({ local_fraction: fraction, setup: setup(100 * fraction, pool),
  total_bytes: 400 * fraction + pool, saving, acceptable: true, outcome });
const series = { local_used_bytes: [1], pool_used_bytes: [0], stranded_bytes: [0], fragmentation: [0] };
const best = point(0.5, 40, 0.4);
const document: PlanDocument = { trace: { requests: 100, span_ns: 1e9, peak_bytes: 1, peak_requests: 1, largest_bytes: 1 }, assumed: { rejected_max: 1, replays: 9 },
  baseline: { setup: setup(100, 0), total_bytes: 400, outcome }, without_pool: point(0.9, 0, 0.1), best, conclusion: "", over_time: { baseline: series, shown: null, of_shown: null },
  rows: [{ local_fraction: 0.5, point: best, least_rejected: null, sweep: [point(0.5, 80, 0.3), point(0.5, 0, 0.5)] }, { local_fraction: 0.1, point: null, least_rejected: 20, sweep: [] }] };

test("the kind of a trace is seen by its name, and may be chosen where it is not", () => {
  same(["pods.csv", "a.JSONL", "b.txt", "noname"].map((name) => toolOf(name) ?? null), ["plan", "tiersim", "tiersim", null]);
  same([formatOf("a.jsonl"), formatOf("b.txt")], ["mooncake", "accesses"]);
});
test("options that say nothing are not sent, and a name is no part of the address", () => {
  same(queryOf({ hosts: " 4 ", placement: "" }, "a&b=c.csv"), "hosts=4&name=a%26b%3Dc.csv");
});
test("progress in words", () => {
  same([progressText(undefined), progressText({ busy: true, computing: true, done: 50, total: 200, what: "lru at 0.1", elapsed_ns: 3e9 })],
    ["Sending the trace…", "Computing 25 % lru at 0.1, for 3 s"]);
  same(progressText({ busy: true, computing: true, done: 7, total: 0, what: "replays of the trace", elapsed_ns: 1e9 }), "Computing 7 replays of the trace, for 1 s");
});
test("every arrangement is shown, the best one is named, and one that no pool serves has no size", () => {
  same(arrangements(document).map((one) => [one.kind, one.total, one.setup?.pool_bytes ?? null]),
    [["baseline", 400, 0], ["no pool, least", 360, 0], ["pooled, best", 240, 40], ["pooled", 0, null]]);
});
test("a line by pool size has the row and its sweep, in order", () => {
  same(byPoolSize(document, (one) => one.saving), [{ fraction: 0.5, points: [[0, 0.5], [40, 0.4], [80, 0.3]] }]);
});
test("a plot has all of its lines in it, below zero, too", () => {
  const line = (points: [number, number][], steps = false) => ({ name: "", colour: "", points, steps });
  same(rangeOf([line([[0, -0.3], [10, 0.4]]), line([[5, 0.1]])]), { left: 0, right: 10, low: -0.5, top: 0.5 });
  same(rangeOf([]), { left: 0, right: 1, low: 0, top: 1 });
  same([valueAt(line([[0, 1], [10, 2]], true), 9), valueAt(line([[0, 1], [10, 2]]), 9), valueAt(line([]), 1) ?? null], [1, 2, null]);
});
