// SPDX-License-Identifier: Apache-2.0
// Where the accesses of runs went, over the last minutes: what each report said of the bands of its heap. Pure; the manager
// keeps the last report of a run only, so that a picture begins when the page is opened.
import type { Run } from "./types";

export interface Band { heat: number; ddr: number; cxl: number } // heat: 0 none, else 1 + 8 × log2 of accesses a second
export interface Column { at: number; bandBytes: number; bands: Band[] } // at: when it was reported, ms of the page's clock

export const windowMs = 600_000;      // what is kept and shown at most
export const windowMsMin = 60_000;    // a picture that has just begun moves, too
export const columnMsMax = 15_000;    // a report counts for so long, unless another comes
const columnMs = 5_000;               // as a run reports
const sameReportMs = 1_000;           // ages are of different moments

export function keyOf(run: Run): string {
  return `${run.agent ?? ""} ${run.host} ${run.pid ?? ""} ${run.tenant} ${run.figures.program}`;
}

export class HeatHistory {
  private readonly runs = new Map<string, Column[]>();

  // What the manager answered at `now`.
  note(runs: Run[], now: number): void {
    const there = new Set(runs.map(keyOf));
    for (const key of [...this.runs.keys()]) if (!there.has(key)) this.runs.delete(key);
    for (const run of runs) {
      const heat = run.figures.heat, key = keyOf(run), at = now - run.age_ns / 1e6;
      if (!heat) continue;
      const columns = this.runs.get(key) ?? [];
      const last = columns[columns.length - 1];
      if (last && at <= last.at + sameReportMs) continue;
      columns.push({ at, bandBytes: heat.band_bytes, bands: heat.heat.map((value, band) =>
        ({ heat: value, ddr: heat.ddr_percent[band] ?? 0, cxl: heat.cxl_percent[band] ?? 0 })) });
      while (columns[0]!.at < at - windowMs) columns.shift();
      this.runs.set(key, columns);
    }
  }
  of(key: string): Column[] { return this.runs.get(key) ?? []; }
}

export interface Cell { x: number; y: number; width: number; height: number; column: number; band: number }
export interface Picture { cells: Cell[]; span: number; from: number; to: number } // span: bytes of the heap; from, to: ms

// What lies where in a picture of that size: time to the right, the heap's start at the top. Bands without memory are left out.
export function pictureOf(columns: Column[], width: number, height: number): Picture {
  const last = columns[columns.length - 1];
  if (!last) return { cells: [], span: 0, from: 0, to: 0 };
  const to = last.at + columnMs;
  const from = to - Math.min(windowMs, Math.max(windowMsMin, to - columns[0]!.at));
  const span = columns.reduce((most, one) => Math.max(most, one.bandBytes * one.bands.length), 0);
  const x = (at: number): number => Math.round((width * (Math.max(from, at) - from)) / (to - from));
  const cells: Cell[] = [];
  columns.forEach((one, column) => {
    const left = x(one.at), right = x(Math.min(columns[column + 1]?.at ?? to, one.at + columnMsMax));
    const y = (band: number): number => Math.round((height * band * one.bandBytes) / span);
    one.bands.forEach((band, at) => {
      if (band.ddr + band.cxl === 0 || right <= left) return;
      cells.push({ x: left, y: y(at), width: right - left, height: Math.max(1, y(at + 1) - y(at)), column, band: at });
    });
  });
  return { cells, span, from, to };
}

// From 0 (not used) to 1 (as hot as the hottest of all that is shown).
export function scaleOf(columns: Column[]): (heat: number) => number {
  let low = Infinity, high = 0;
  for (const column of columns) for (const band of column.bands) if (band.heat > 0) {
    low = Math.min(low, band.heat);
    high = Math.max(high, band.heat);
  }
  return (heat) => heat <= 0 ? 0 : high === low ? 1 : 0.2 + (0.8 * (heat - low)) / (high - low);
}

export function accessesOf(heat: number): number { return heat <= 0 ? 0 : 2 ** ((heat - 1) / 8); }

// Of the hottest quarter of what is used: the share that lies in DDR, 0 to 1. NaN: nothing is used.
export function hottestInDdr(column: Column): number {
  const used = column.bands.filter((band) => band.heat > 0).sort((left, right) => right.heat - left.heat);
  const hottest = used.slice(0, Math.max(1, Math.round(used.length / 4)));
  const sum = (pick: (band: Band) => number): number => hottest.reduce((all, band) => all + pick(band), 0);
  return used.length === 0 ? NaN : sum((band) => band.ddr) / sum((band) => band.ddr + band.cxl);
}
