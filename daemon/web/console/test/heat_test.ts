// SPDX-License-Identifier: Apache-2.0
import { accessesOf, columnMsMax, HeatHistory, hottestInDdr, keyOf, pictureOf, scaleOf, windowMs, windowMsMin, type Column } from "../src/heat_model";
import type { Run, RunHeat } from "../src/types";
import { same, test } from "./check";

const run = (program: string, ageMs: number, heat: RunHeat | null): Run => ({ host: "h", agent: null, pid: 7, uid: 0, tenant: "t",
  promotions_per_s: 0, demotions_per_s: 0, copy_bytes_per_s: 0, stalled_ns_per_s: 0, age_ns: ageMs * 1e6,
  figures: { program, processes: 1, live_bytes: 0, ddr_bytes: 0, cxl_bytes: 0, plain_bytes: 0, ddr_bytes_max: 0, leased_bytes: 0, sampled_bytes: 1,
    ddr_hit_permille: 0, heat,
    counters: { promotions: 0, demotions: 0, promoted_bytes: 0, demoted_bytes: 0, stalled_ns: 0, refused: 0, fallbacks: 0 } } });
const heat = (...bands: [number, number, number][]): RunHeat => ({ band_bytes: 4, heat: bands.map((band) => band[0]),
  ddr_percent: bands.map((band) => band[1]), cxl_percent: bands.map((band) => band[2]) });
const column = (at: number, bandBytes: number, ...bands: [number, number, number][]): Column =>
  ({ at, bandBytes, bands: bands.map(([value, ddr, cxl]) => ({ heat: value, ddr, cxl })) });

test("a report is a column once, however often it is answered, and goes with its run", () => {
  const history = new HeatHistory(), one = run("a", 0, heat([9, 100, 0]));
  history.note([run("a", 100, heat([9, 100, 0]))], 10_000);
  history.note([run("a", 5_090, heat([9, 100, 0]))], 15_000);
  same(history.of(keyOf(one)).length, 1);
  history.note([run("a", 50, heat([1, 0, 100]))], 15_100);
  same(history.of(keyOf(one)).map((each) => [Math.round(each.at), each.bands]), [[9_900, [{ heat: 9, ddr: 100, cxl: 0 }]], [15_050, [{ heat: 1, ddr: 0, cxl: 100 }]]]);
  history.note([run("a", 50, null)], 20_100); // says nothing now
  same(history.of(keyOf(one)).length, 2);
  history.note([run("b", 0, heat())], 20_200);
  same(history.of(keyOf(one)), []);
});
test("no more than the window is kept", () => {
  const history = new HeatHistory();
  for (let at = 0; at <= 2 * windowMs; at += 5_000) history.note([run("a", 0, heat([1, 1, 0]))], at);
  const kept = history.of(keyOf(run("a", 0, null)));
  same([kept[0]!.at, kept.length], [windowMs, windowMs / 5_000 + 1]);
});
test("time is to the right, addresses are downwards, and what has no memory is left out", () => {
  const all = [column(0, 4, [1, 100, 0], [0, 0, 0]), column(30_000, 4, [1, 0, 100], [1, 0, 50]), column(55_000, 2, [1, 0, 100])];
  const picture = pictureOf(all, 600, 80);
  same([picture.span, picture.from, picture.to], [8, 0, windowMsMin]);
  same(picture.cells.map((cell) => [cell.column, cell.band, cell.x, cell.width, cell.y, cell.height]),
    [[0, 0, 0, columnMsMax / 100, 0, 40], [1, 0, 300, columnMsMax / 100, 0, 40], [1, 1, 300, columnMsMax / 100, 40, 40], [2, 0, 550, 50, 0, 20]]);
  same(pictureOf([], 600, 80).cells, []);
});
test("the hottest of all that is shown is 1, the coolest that is used is not 0", () => {
  const scale = scaleOf([column(0, 4, [0, 1, 0], [10, 1, 0]), column(1, 4, [50, 1, 0])]);
  same([scale(0), scale(10), scale(30), scale(50)], [0, 0.2, 0.6000000000000001, 1]);
  same(scaleOf([column(0, 4, [7, 1, 0])])(7), 1);
});
test("of the hottest quarter the share in DDR", () => {
  same(hottestInDdr(column(0, 4, [90, 75, 25], [9, 0, 100], [8, 0, 100], [7, 0, 100], [0, 100, 0])), 0.75);
  same(Number.isNaN(hottestInDdr(column(0, 4, [0, 100, 0]))), true);
  same([accessesOf(0), accessesOf(1), accessesOf(17)], [0, 1, 4]);
});
