// SPDX-License-Identifier: Apache-2.0
// Small charts of the last hour, as SVG: areas that are stacked, or one line. The pointer shows the moment below it.
import * as format from "./format";
import { h, type VNode } from "./vdom";

export interface Series { name: string; colour: string; values: number[] }
export interface Chart {
  name: string;
  ageNs: number[]; // of each value, the oldest first
  series: Series[];
  stacked: boolean;
  most?: number;   // the top of the scale; else the greatest value
  show: (value: number) => string;
}

const width = 600, height = 120, minuteNs = 60e9;
const spans = [5, 15, 30, 60]; // minutes

// The least of them that has all rows.
export function spanOf(oldestNs: number): number {
  return (spans.find((minutes) => oldestNs <= minutes * minuteNs) ?? 60) * minuteNs;
}

// "Nice" tops: 1, 2 or 5 times a power of ten.
export function topOf(most: number): number {
  if (most <= 0) return 1;
  const power = Math.pow(10, Math.floor(Math.log10(most)));
  return ([1, 2, 5, 10].find((step) => step * power >= most) ?? 10) * power;
}

// The points of each series, the lower edge of a stacked one behind the upper.
export function stack(series: number[][]): { low: number[]; high: number[] }[] {
  const base: number[] = new Array(series[0]?.length ?? 0).fill(0);
  return series.map((values) => {
    const low = base.slice();
    values.forEach((value, at) => { base[at]! += value; });
    return { low, high: base.slice() };
  });
}

let pointed: { chart: string; at: number } | null = null;

export function chart(what: Chart, redraw: () => void): VNode {
  const moments = what.ageNs.length;
  const greatest = Math.max(0, ...(what.stacked ? stack(what.series.map((one) => one.values)).map((one) => Math.max(0, ...one.high))
    : what.series.map((one) => Math.max(0, ...one.values))));
  const top = what.most ?? topOf(greatest * 1.1);
  const y = (value: number): number => height - 2 - (height - 6) * (top > 0 ? value / top : 0);
  const span = spanOf(what.ageNs[0] ?? 0);
  const x = (ageNs: number): number => width * (1 - Math.min(1, ageNs / span));
  const points = (values: number[]): string[] => values.map((value, at) => `${x(what.ageNs[at]!).toFixed(1)},${y(value).toFixed(1)}`);
  const shapes = what.stacked
    ? stack(what.series.map((one) => one.values)).map(({ low, high }, index) => h("polygon", {
      points: [...points(high), ...points(low).reverse()].join(" "), style: { fill: what.series[index]!.colour } }))
    : what.series.map((one) => h("polyline", { points: points(one.values).join(" "), class: "line", style: { stroke: one.colour } }));
  const at = pointed?.chart === what.name ? Math.min(pointed.at, moments - 1) : moments - 1;
  const point = (event: PointerEvent): void => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const age = span * (1 - (event.clientX - box.left) / box.width);
    let best = 0;
    what.ageNs.forEach((one, index) => { if (Math.abs(one - age) < Math.abs(what.ageNs[best]! - age)) best = index; });
    pointed = { chart: what.name, at: best };
    redraw();
  };
  const leave = (): void => { pointed = null; redraw(); };
  const now = what.series.map((one) => `${one.name} ${what.show(one.values[moments - 1] ?? 0)}`).join(", ");
  const moment = moments === 0 ? "" : at === moments - 1 ? "now" : `${format.duration(what.ageNs[at]!)} ago`;
  const values = moments === 0 ? [] : what.series.map((one) => h("span", null,
    h("span", { class: "swatch", "aria-hidden": "true", style: { background: one.colour } }),
    `${one.name} `, h("b", null, what.show(one.values[at] ?? 0))));
  return h("figure", { class: "chart", key: what.name },
    h("figcaption", null, h("span", { class: "name" }, what.name), h("span", { class: "values" }, values), h("span", { class: "moment" }, moment)),
    h("div", { class: "plot" },
      h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
        "aria-label": `${what.name}, the last ${span / minuteNs} minutes. Now: ${now}`, onpointermove: point, onpointerleave: leave },
        [0.25, 0.5, 0.75].map((part) => h("line", { class: "grid", x1: "0", x2: String(width), y1: y(top * part).toFixed(1), y2: y(top * part).toFixed(1) })),
        shapes,
        pointed?.chart === what.name && h("line", { class: "pointer", x1: x(what.ageNs[at]!).toFixed(1), x2: x(what.ageNs[at]!).toFixed(1),
          y1: "0", y2: String(height) })),
      h("span", { class: "top" }, what.show(top))),
    h("div", { class: "axis" }, h("span", null, `${span / minuteNs} min ago`), h("span", null, "now")));
}
