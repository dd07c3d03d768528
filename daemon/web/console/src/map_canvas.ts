// SPDX-License-Identifier: Apache-2.0
// Draws the pool map: once for each answer of the manager, and what the pointer or the keyboard is at on a second canvas
// above it, so that moving the pointer costs the outline only.
import { stateColour, timeLeftColour, type Theme } from "./colours";
import { boxes, headHeight, heightOf, rowGap, rowHeight, type Piece, type Place, type Strip } from "./map_model";
import { tenantColour } from "./view";
import type { Lease } from "./types";

export type ColourBy = "tenant" | "state" | "time";

export function colourOf(lease: Lease, by: ColourBy, theme: Theme): string {
  if (by === "state") return stateColour(lease.phase, theme);
  if (by === "time") return timeLeftColour(lease.persistent, lease.expires_in_ns ?? 0, theme);
  return tenantColour(lease.tenant, theme);
}

interface Inks { free: string; absent: string; text: string; muted: string; accent: string; page: string; warning: string }
export function inks(theme: Theme): Inks {
  return theme.dark
    ? { free: "#2b333f", absent: "#20262f", text: "#e7ecf3", muted: "#97a3b4", accent: "#ffffff", page: "#181d24", warning: "#e8b54a" }
    : { free: "#e6eaf0", absent: "#f3f5f8", text: "#1b2430", muted: "#5f6c7d", accent: "#111827", page: "#ffffff", warning: "#b57912" };
}

// A canvas of `width` by `height` pixels of the page, as sharp as the screen.
export function prepare(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const scale = window.devicePixelRatio || 1;
  const wide = Math.round(width * scale), high = Math.round(height * scale);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function drawGround(context: CanvasRenderingContext2D, strip: Strip, width: number, ink: Inks): void {
  const usable = strip.device.present && strip.device.state !== "failed";
  context.fillStyle = usable ? ink.free : ink.absent;
  for (const box of boxes(strip, 0, strip.granules, width)) context.fillRect(box.x, box.y, box.width, box.height);
  if (usable) return;
  context.save(); // hatched: nobody can have it
  context.strokeStyle = ink.muted;
  context.globalAlpha = 0.35;
  context.beginPath();
  for (const box of boxes(strip, 0, strip.granules, width)) context.rect(box.x, box.y, box.width, box.height);
  context.clip();
  context.beginPath();
  for (let x = -strip.height; x < width; x += 8) {
    context.moveTo(x, strip.top + strip.height);
    context.lineTo(x + strip.height, strip.top);
  }
  context.stroke();
  context.restore();
}

function drawPieces(context: CanvasRenderingContext2D, strip: Strip, width: number, colour: (lease: Lease) => string): void {
  const byColour = new Map<string, Piece[]>();
  for (const piece of strip.pieces) {
    const found = colour(piece.lease);
    const list = byColour.get(found);
    if (list) list.push(piece);
    else byColour.set(found, [piece]);
  }
  context.globalAlpha = strip.device.present ? 1 : 0.5; // nobody reaches it now
  for (const [found, pieces] of byColour) {
    context.fillStyle = found;
    for (const piece of pieces)
      for (const box of boxes(strip, piece.first, piece.end, width)) context.fillRect(box.x, box.y, box.width, box.height);
  }
  context.globalAlpha = 1;
}

// Lines between granules, and between leases, where there is room for them.
function drawJoints(context: CanvasRenderingContext2D, strip: Strip, width: number, ink: Inks): void {
  const cell = width / strip.perRow;
  context.fillStyle = ink.page;
  if (cell >= 5) {
    for (let row = 0; row < strip.rows; ++row)
      for (let at = 1; at < Math.min(strip.perRow, strip.granules - row * strip.perRow); ++at)
        context.fillRect(Math.floor(at * cell) - 1, strip.top + headHeight + row * (rowHeight + rowGap), 1, rowHeight);
    return;
  }
  for (const piece of strip.pieces) {
    const box = boxes(strip, piece.first, Math.min(piece.end, piece.first + strip.perRow), width)[0]!;
    if (box.width >= 3) context.fillRect(box.x, box.y, 1, box.height);
  }
}

// The rim of a run, as one shape where it goes over several rows.
export function outline(context: CanvasRenderingContext2D, strip: Strip, first: number, end: number, width: number): void {
  const all = boxes(strip, first, end, width), from = all[0]!, to = all[all.length - 1]!;
  if (all.length > 2 || (all.length === 2 && from.x < to.width)) {
    const top = from.y + 0.75, bottom = to.y + to.height - 0.75, left = 0.75, right = width - 0.75;
    context.beginPath();
    context.moveTo(from.x + 0.75, top);
    context.lineTo(right, top);
    context.lineTo(right, to.y - rowGap / 2);
    context.lineTo(to.width - 0.75, to.y - rowGap / 2);
    context.lineTo(to.width - 0.75, bottom);
    context.lineTo(left, bottom);
    context.lineTo(left, from.y + from.height + rowGap / 2);
    context.lineTo(from.x + 0.75, from.y + from.height + rowGap / 2);
    context.closePath();
    context.stroke();
    return;
  }
  for (const box of boxes(strip, first, end, width))
    context.strokeRect(box.x + 0.75, box.y + 0.75, Math.max(1, box.width - 1.5), box.height - 1.5);
}

export function drawMap(canvas: HTMLCanvasElement, all: Strip[], width: number, colour: (lease: Lease) => string,
  title: (strip: Strip) => [string, string], theme: Theme): void {
  const context = prepare(canvas, width, heightOf(all));
  const ink = inks(theme);
  const longest = all.reduce((best, strip) => Math.max(best, strip.largest ? strip.largest.end - strip.largest.first : 0), 0);
  let marked = false;
  for (const strip of all) {
    const [name, state] = title(strip);
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = ink.text;
    context.textBaseline = "middle";
    context.fillText(name, 0, strip.top + headHeight / 2 - 1);
    const after = context.measureText(name).width + 10;
    context.font = "12.5px system-ui, sans-serif";
    context.fillStyle = ink.muted;
    context.fillText(state, after, strip.top + headHeight / 2 - 1, Math.max(10, width - after));
    drawGround(context, strip, width, ink);
    drawPieces(context, strip, width, colour);
    drawJoints(context, strip, width, ink);
    if (!marked && strip.largest && strip.largest.end - strip.largest.first === longest) {
      marked = true;
      context.strokeStyle = ink.accent;
      context.lineWidth = 1.5;
      context.setLineDash([4, 3]);
      outline(context, strip, strip.largest.first, strip.largest.end, width);
      context.setLineDash([]);
    }
  }
}

// All of a lease, wherever it lies, what a drain or a compaction would move, the place that this clears, and where to.
export function drawMarks(canvas: HTMLCanvasElement, all: Strip[], width: number, lease: Lease | null, moves: Set<number>,
  theme: Theme, cleared: Place[] = [], targets: Place[] = []): void {
  const context = prepare(canvas, width, heightOf(all));
  const ink = inks(theme);
  context.strokeStyle = ink.warning;
  context.lineWidth = 1.5;
  context.setLineDash([3, 3]);
  for (const place of targets) outline(context, place.strip, place.first, place.end, width);
  context.setLineDash([]);
  context.lineWidth = 3;
  for (const place of cleared) outline(context, place.strip, place.first, place.end, width);
  for (const strip of all) {
    for (const piece of strip.pieces) {
      if (moves.has(piece.lease.id)) {
        context.strokeStyle = ink.warning;
        context.lineWidth = 1.5;
        outline(context, strip, piece.first, piece.end, width);
      }
      if (lease !== null && piece.lease.id === lease.id) {
        context.strokeStyle = ink.page;
        context.lineWidth = 4;
        outline(context, strip, piece.first, piece.end, width);
        context.strokeStyle = ink.accent;
        context.lineWidth = 2;
        outline(context, strip, piece.first, piece.end, width);
      }
    }
  }
}
