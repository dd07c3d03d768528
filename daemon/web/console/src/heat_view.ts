// SPDX-License-Identifier: Apache-2.0
// The heat map of a run: its heap from top to bottom, time to the right, the hotter the stronger the colour of the tier.
import { stateColour, type Theme } from "./colours";
import * as format from "./format";
import { accessesOf, HeatHistory, hottestInDdr, keyOf, pictureOf, scaleOf, type Band, type Cell, type Column } from "./heat_model";
import { inks, prepare } from "./map_canvas";
import type { Run } from "./types";
import { h, type Child, type VNode } from "./vdom";
import { card, empty, swatch, type View } from "./view";

const height = 192;
const history = new HeatHistory();
let noted = -1;       // the answer that history has
let chosen = "";      // the run that is shown
let width = 0;        // of the picture
let drawn = "";       // what the canvas has
let cells: Cell[] = [];
let pointed: Cell | null = null;
let watched: Element | null = null;
let redrawLast = (): void => {};
const watch = new ResizeObserver((entries) => {
  const now = Math.floor(entries[0]!.contentRect.width);
  if (now === width || now <= 0) return;
  width = now;
  redrawLast();
});

export function tierColours(theme: Theme): { ddr: string; cxl: string } {
  return { ddr: theme.dark ? "#d2a05d" : "#a36e2b", cxl: stateColour("leased", theme) };
}

function mix(from: string, to: string, share: number): string {
  const part = (text: string, at: number): number => parseInt(text.slice(at, at + 2), 16);
  return `#${[1, 3, 5].map((at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share).toString(16).padStart(2, "0")).join("")}`;
}

function colourOf(band: Band, hotness: number, theme: Theme): string {
  const tiers = tierColours(theme);
  return mix(inks(theme).free, mix(tiers.cxl, tiers.ddr, band.ddr / (band.ddr + band.cxl)), hotness);
}

function draw(canvas: HTMLCanvasElement, columns: Column[], theme: Theme): void {
  const context = prepare(canvas, width, height), hotness = scaleOf(columns);
  cells = pictureOf(columns, width, height).cells;
  for (const cell of cells) {
    const band = columns[cell.column]!.bands[cell.band]!;
    context.fillStyle = colourOf(band, hotness(band.heat), theme);
    context.fillRect(cell.x, cell.y, cell.width, cell.height);
  }
}

function point(event: PointerEvent, view: View): void {
  const box = (event.currentTarget as Element).getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  pointed = cells.find((cell) => x >= cell.x && x < cell.x + cell.width && y >= cell.y && y < cell.y + cell.height) ?? null;
  view.redraw();
}

function share(part: number, of: Band): string { return format.percent(part, of.ddr + of.cxl); }

function said(columns: Column[]): string {
  const last = columns[columns.length - 1]!, column = pointed && columns[pointed.column], band = column?.bands[pointed!.band];
  if (column && band) {
    const first = pointed!.band * column.bandBytes;
    return `${format.bytes(first)} to ${format.bytes(first + column.bandBytes)}, ${format.duration((last.at - column.at) * 1e6)} before the last report: `
      + `${format.rate(accessesOf(band.heat))} to a granule, ${share(band.ddr, band)} in DDR, ${share(band.cxl, band)} in leased memory.`;
  }
  const hottest = hottestInDdr(last);
  return `${last.bands.length} bands of ${format.bytes(last.bandBytes)}. `
    + (Number.isNaN(hottest) ? "Nothing is used now." : `Of the hottest quarter of what is used now ${format.percent(hottest, 1)} lies in DDR.`);
}

function scale(theme: Theme): VNode {
  const tiers = tierColours(theme), steps = [0, 0.2, 0.6, 1];
  const row = (name: string, colour: string): VNode => h("li", { "data-name": name, "data-colour": colour },
    steps.map((step) => swatch(mix(inks(theme).free, colour, step))), h("span", null, name));
  return h("ul", { class: "legend" }, row("in DDR", tiers.ddr), row("in leased memory", tiers.cxl), h("li", null, "from not used to hottest"));
}

export function heatMap(runs: Run[], view: View): Child {
  if (view.store.version("runs") !== noted) {
    noted = view.store.version("runs");
    history.note(runs, performance.now());
  }
  const told = runs.filter((run) => history.of(keyOf(run)).length > 0).sort((left, right) => right.figures.sampled_bytes - left.figures.sampled_bytes);
  if (told.length === 0)
    return card("Where accesses go", null, empty("No run says it. Those under terrace run do whose policy looks at accesses."));
  const run = told.find((one) => keyOf(one) === chosen) ?? told[0]!, key = keyOf(run), columns = history.of(key);
  const picture = pictureOf(columns, Math.max(width, 1), height);
  const name = (one: Run): string => `${one.figures.program} · ${one.tenant} · ${one.agent ?? one.host}${one.pid === null ? "" : ` · ${one.pid}`}`;
  const state = [key, noted, width, view.theme.dark].join();
  const place = (element: Element): void => {
    redrawLast = view.redraw;
    if (watched === element) return;
    watched = element;
    drawn = "";
    watch.disconnect();
    watch.observe(element);
    width = Math.floor(element.clientWidth);
  };
  return h("section", { class: "card full" }, h("header", null, h("h2", null, "Where accesses go"),
    h("div", { class: "aside" }, "of the run's largest heap, as it estimates them; since this page was opened")),
    told.length > 1 && h("div", { class: "controls" }, h("label", { class: "choice" }, h("span", null, "Run"),
      h("select", { value: key, onchange: (event: Event) => { chosen = (event.target as HTMLSelectElement).value; pointed = null; view.redraw(); } },
        told.map((one) => h("option", { value: keyOf(one), selected: one === run, key: keyOf(one) }, name(one)))))),
    h("div", { class: "map heat", ref: place },
      h("canvas", { id: "heat", role: "img", "aria-label": `Heat map of ${name(run)}, ${columns.length} reports. ${said(columns)}`,
        onpointermove: (event: PointerEvent) => point(event, view), onpointerleave: () => { pointed = null; view.redraw(); },
        ref: (canvas: HTMLCanvasElement) => {
          if (width === 0 || (drawn === state && canvas.width !== 300)) return;
          draw(canvas, columns, view.theme);
          drawn = state;
        } })),
    h("div", { class: "axis" }, h("span", null, `${format.duration((picture.to - picture.from) * 1e6)} ago`),
      h("span", null, `${name(run)}: 0 B at the top, ${format.bytes(picture.span)} at the bottom`), h("span", null, "now")),
    h("p", { class: "hint", id: "heat-said" }, said(columns)), scale(view.theme));
}
