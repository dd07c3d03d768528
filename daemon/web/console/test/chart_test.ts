// SPDX-License-Identifier: Apache-2.0
import { spanOf, stack, topOf } from "../src/chart";
import { rates } from "../src/pages/overview";
import { same, test } from "./check";

test("tops of scales are round, and not below the values", () => { same([0, 1, 3, 7, 12, 480].map(topOf), [1, 1, 5, 10, 20, 500]); });
test("a chart is as long as what there is, an hour at most", () => {
  same([0, 300e9, 301e9, 1900e9, 4000e9].map((age) => spanOf(age) / 60e9), [5, 5, 15, 60, 60]);
});
test("stacked series lie on each other", () => {
  same(stack([[1, 2], [10, 20]]), [{ low: [0, 0], high: [1, 2] }, { low: [1, 2], high: [11, 22] }]);
  same(stack([]), []);
});
test("rates are per second, and a counter that begins anew is none", () => {
  same(rates([100, 120, 5], [20e9, 10e9, 0]), [2, 2, 0]);
  same([rates([7], [0]), rates([], [])], [[0], []]);
});
