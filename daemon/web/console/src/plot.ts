// SPDX-License-Identifier: Apache-2.0
// Lines over a number (a pool's size, a time), as SVG: what chart.ts is for the last hour. The pointer shows the values at
// the nearest place.
import { topOf } from "./chart";
import { h, type VNode } from "./vdom";

export interface Line { name: string; colour: string; points: [number, number][]; dashed?: boolean; steps?: boolean }
export interface Plot {
  name: string;
  lines: Line[];
  x: (value: number) => string;
  y: (value: number) => string;
  xName: string;
  top?: number | undefined; // of the scale; higher values are cut off
}

const width = 600, height = 150;

export function rangeOf(lines: Line[]): { left: number; right: number; low: number; top: number } {
  const xs = lines.flatMap((line) => line.points.map((point) => point[0])), ys = lines.flatMap((line) => line.points.map((point) => point[1]));
  const least = ys.reduce((low, value) => Math.min(low, value), 0), most = ys.reduce((high, value) => Math.max(high, value), 0);
  const left = xs.reduce((low, value) => Math.min(low, value), Infinity), right = xs.reduce((high, value) => Math.max(high, value), -Infinity);
  return { left: Number.isFinite(left) ? left : 0, right: Number.isFinite(right) ? right : 1, low: least < 0 ? -topOf(-least) : 0, top: topOf(most) };
}

// The value that counts at `x`: of stairs the one before it, else the nearest.
export function valueAt(line: Line, x: number): number | undefined {
  let best: [number, number] | undefined;
  for (const point of line.points)
    if (line.steps ? point[0] <= x : best === undefined || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best?.[1];
}

let pointed: { plot: string; x: number } | null = null;

export function plot(what: Plot, redraw: () => void): VNode {
  const range = rangeOf(what.lines), top = what.top ?? range.top, span = range.right - range.left || 1;
  const x = (value: number): number => (width * (value - range.left)) / span;
  const y = (value: number): number => 4 + (height - 8) * (1 - (Math.max(range.low, Math.min(top, value)) - range.low) / (top - range.low || 1));
  const path = (line: Line): string => line.points.flatMap(([at, value], index) =>
    line.steps && index > 0 ? [`${x(at).toFixed(1)},${y(line.points[index - 1]![1]).toFixed(1)}`, `${x(at).toFixed(1)},${y(value).toFixed(1)}`]
      : [`${x(at).toFixed(1)},${y(value).toFixed(1)}`]).join(" ");
  const at = pointed?.plot === what.name ? Math.max(range.left, Math.min(range.right, pointed.x)) : range.right;
  const point = (event: PointerEvent): void => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    pointed = { plot: what.name, x: range.left + (span * (event.clientX - box.left)) / box.width };
    redraw();
  };
  const values = what.lines.map((line) => ({ line, value: valueAt(line, at) })).filter((one) => one.value !== undefined);
  return h("figure", { class: "chart", key: what.name, "data-plot": what.name },
    h("figcaption", null, h("span", { class: "name" }, what.name),
      h("span", { class: "values" }, values.map(({ line, value }) => h("span", { key: line.name },
        h("span", { class: "swatch", "aria-hidden": "true", style: { background: line.colour } }), `${line.name} `, h("b", null, what.y(value!))))),
      h("span", { class: "moment" }, `at ${what.x(at)}`)),
    h("div", { class: "plot tall" },
      h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", onpointermove: point,
        onpointerleave: () => { pointed = null; redraw(); },
        "aria-label": `${what.name}, by ${what.xName}. At ${what.x(at)}: ${values.map(({ line, value }) => `${line.name} ${what.y(value!)}`).join(", ")}` },
        [0.25, 0.5, 0.75].map((part) => h("line", { class: "grid", x1: "0", x2: String(width), y1: y(range.low + (top - range.low) * part).toFixed(1), y2: y(range.low + (top - range.low) * part).toFixed(1) })),
        range.low < 0 && h("line", { class: "pointer", x1: "0", x2: String(width), y1: y(0).toFixed(1), y2: y(0).toFixed(1) }),
        what.lines.map((line) => h("polyline", { key: line.name, points: path(line), class: line.dashed ? "line dashed" : "line", style: { stroke: line.colour } })),
        pointed?.plot === what.name && h("line", { class: "pointer", x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: "0", y2: String(height) })),
      h("span", { class: "top" }, what.y(top))),
    h("div", { class: "axis" }, h("span", null, what.x(range.left)), h("span", null, what.xName), h("span", null, what.x(range.right))));
}
