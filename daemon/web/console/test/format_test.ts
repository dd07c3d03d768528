// SPDX-License-Identifier: Apache-2.0
import { bytes, duration, exactBytes, parseBytes, parseDuration, percent, rate, time } from "../src/format";
import { same, test } from "./check";

test("sizes have three digits at most behind none that says nothing", () => {
  same([0, 1023, 1024, 1536, 64 * 2 ** 20, 1.5 * 2 ** 30, 123.4 * 2 ** 30, 4 * 2 ** 40].map(bytes),
    ["0 B", "1023 B", "1 KiB", "1.50 KiB", "64 MiB", "1.50 GiB", "123 GiB", "4 TiB"]);
});
test("durations", () => {
  same([1500, 5e6, 59e9, 61e9, 3600e9, 49 * 3600e9].map(duration), ["2 µs", "5 ms", "59 s", "1 min 1 s", "1 h 0 min", "2 d 1 h"]);
  same([59.4e9, 59.9e9, 119.4e9, 119.9e9].map(duration), ["59 s", "1 min 0 s", "1 min 59 s", "2 min 0 s"]);
});
test("shares that are not nothing and not all do not read so", () => {
  same([percent(0, 10), percent(1, 1000), percent(999, 1000), percent(10, 10), percent(1, 0)], ["0 %", "< 1 %", "> 99 %", "100 %", "0 %"]);
});
test("sizes and durations are read as the command line reads them, and nothing else is one", () => {
  same(["64M", "1.5 GiB", "4096", "2t", "7 KB"].map(parseBytes), [64 * 2 ** 20, 1.5 * 2 ** 30, 4096, 2 * 2 ** 40, 7 * 1024]);
  same(["", "0", "-1", "64 elephants", "1e9", "1 MB 2", "99999999P"].map((text) => Number.isNaN(parseBytes(text))), [true, true, true, true, true, true, true]);
  same([64 * 2 ** 20, 1026 * 2 ** 20, 1.5 * 2 ** 30, 4097].map(exactBytes), ["64 MiB", "1026 MiB", "1536 MiB", "4097 B"]);
  same([64 * 2 ** 20, 1026 * 2 ** 20, 4097].map((value) => parseBytes(exactBytes(value))), [64 * 2 ** 20, 1026 * 2 ** 20, 4097]);
  same(["30s", "10m", "2h", "1d", "250ms", "0s", "1.5s"].map(parseDuration), [3e10, 6e11, 7.2e12, 8.64e13, 2.5e8, 0, 1.5e9]);
  same(["", "10", "1y", "-1s", "1 h 2"].map((text) => Number.isNaN(parseDuration(text))), [true, true, true, true, true]);
});
test("rates", () => { same([0, 0.123, 2.34, 45.6].map(rate), ["0 /s", "0.12 /s", "2.3 /s", "46 /s"]); });
test("a time of today has no date", () => {
  const now = new Date(2026, 10, 27, 12, 0, 0);
  same(time(new Date(2026, 10, 27, 9, 5, 7).getTime() * 1e6, now), "09:05:07");
  same(time(new Date(2026, 10, 26, 9, 5, 7).getTime() * 1e6, now), "2026-11-26 09:05:07");
});
