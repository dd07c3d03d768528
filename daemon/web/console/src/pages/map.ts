// SPDX-License-Identifier: Apache-2.0
// The pool map: every device a strip of granules, each coloured by who has it.
import { actButton } from "../act";
import * as acts from "../acts";
import { stateColour, timeLeftSteps, endlessColour } from "../colours";
import { compactionControls, compactionMarks, compactionText } from "../compaction";
import * as format from "../format";
import { colourOf, drawMap, drawMarks, type ColourBy } from "../map_canvas";
import { drainPreview, placesOf, spotAt, strips, type Spot, type Strip } from "../map_model";
import type { Lease } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { card, empty, fact, loading, phaseBadge, swatch, tenantColour, tenantName, type View } from "../view";

let by: ColourBy = "tenant";
let drained = "";          // serial whose drain is shown; empty: none
let width = 0;             // of the picture
let shown: Strip[] = [];
let spot: Spot | null = null;
let cursor: { strip: number; piece: number } | null = null; // of the keyboard
let drawn = "";            // what the canvas has
let marks: HTMLCanvasElement | null = null;
export const timing = { modelMs: 0, drawMs: 0, leases: 0 };

const watch = new ResizeObserver((entries) => {
  const now = Math.floor(entries[0]!.contentRect.width);
  if (now !== width && now > 0) {
    width = now;
    redrawLast();
  }
});
let redrawLast = (): void => {};
let watched: Element | null = null;

function title(strip: Strip): [string, string] {
  const device = strip.device;
  const state = !device.present ? "absent" : device.state === "in_service" ? "" : format.words(device.state ?? "");
  const parts = [state, format.bytes(device.capacity_bytes), `${format.percent(device.used_bytes, device.capacity_bytes)} used`,
    `granules of ${format.bytes(device.granule_bytes)}`];
  return [device.serial, parts.filter((part) => part !== "").join(" · ")];
}

function leaseAt(): Lease | null { return spot?.piece?.lease ?? null; }

function mark(view: View): void {
  if (!marks) return;
  const preview = drained === "" ? [] : drainPreview(shown, drained).leases;
  const compaction = compactionMarks();
  const moves = new Set([...preview.map((lease) => lease.id), ...compaction.moves]);
  drawMarks(marks, shown, width, leaseAt(), moves, view.theme, placesOf(shown, compaction.run), placesOf(shown, compaction.targets));
}

// The same place in the picture of a newer answer: of the same lease, or of the same free granule.
function moved(before: Spot | null): Spot | null {
  const strip = shown.find((one) => one.device.serial === before?.strip.device.serial);
  if (!before || !strip) return null;
  if (!before.piece) return { strip, granule: before.granule, piece: null };
  const piece = strip.pieces.find((one) => one.lease.id === before.piece!.lease.id && one.first === before.piece!.first);
  return piece ? { strip, granule: piece.first, piece } : null;
}

function moveCursor(step: number): void {
  const all = shown.flatMap((strip, at) => strip.pieces.map((_, piece) => ({ strip: at, piece })));
  if (all.length === 0) return;
  const now = cursor ? all.findIndex((one) => one.strip === cursor!.strip && one.piece === cursor!.piece) : step > 0 ? -1 : 0;
  const to = step === Infinity ? all.length - 1 : step === -Infinity ? 0 : (now + step + all.length) % all.length;
  cursor = all[to]!;
  const strip = shown[cursor.strip]!, piece = strip.pieces[cursor.piece]!;
  spot = { strip, granule: piece.first, piece };
}

function onKey(event: KeyboardEvent, view: View): void {
  const steps: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const step = steps[event.key];
  if (step !== undefined) {
    event.preventDefault();
    moveCursor(step);
    view.redraw();
  } else if (event.key === "Enter" && leaseAt()) location.hash = `#/leases/${leaseAt()!.id}`;
  else if (event.key === "Escape") {
    spot = cursor = null;
    view.redraw();
  }
}

function onPointer(event: PointerEvent, view: View): void {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const found = spotAt(shown, event.clientX - box.left, event.clientY - box.top, width);
  if (found?.piece === spot?.piece && found?.strip === spot?.strip && found?.piece) return;
  spot = found;
  cursor = null;
  view.redraw();
}

function detail(view: View): VNode {
  const lease = leaseAt();
  if (lease) {
    const extent = spot!.piece!, size = spot!.strip.device.granule_bytes;
    return h("dl", { class: "facts detail" },
      fact("lease", h("a", { href: `#/leases/${lease.id}` }, `${lease.id}${lease.label ? ` · ${lease.label}` : ""}`)),
      fact("tenant", tenantName(lease.tenant, view)), fact("state", phaseBadge(lease.phase)),
      fact("size", format.bytes(lease.bytes)),
      fact("this piece", `${format.bytes((extent.end - extent.first) * size)} at ${format.bytes(extent.first * size)}`),
      fact("ends", lease.persistent ? "never" : `in ${format.duration(lease.expires_in_ns ?? 0)}`),
      fact("holders", String(lease.holders)));
  }
  if (spot) return h("dl", { class: "facts detail" }, fact("device", spot.strip.device.serial), fact("granule", format.count(spot.granule)),
    fact("state", spot.strip.device.present ? "free" : "absent"));
  return h("p", { class: "hint" }, "Point at a granule, or step through the pieces with the arrow keys; Enter opens the lease.");
}

function key(view: View, leases: Lease[]): VNode {
  let rows: [string, string, string][];
  if (by === "tenant") {
    const use = new Map<string, number>();
    for (const lease of leases) use.set(lease.tenant, (use.get(lease.tenant) ?? 0) + lease.bytes);
    rows = [...use].sort((left, right) => right[1] - left[1]).slice(0, 24)
      .map(([tenant, size]) => [tenant, tenantColour(tenant, view.theme), format.bytes(size)]);
  } else if (by === "state") {
    rows = [...new Set(leases.map((lease) => lease.phase))].map((phase) => [format.words(phase), stateColour(phase, view.theme), ""]);
  } else {
    rows = timeLeftSteps.map((step) => [step.text, step.colour[view.theme.dark ? 1 : 0], ""]);
    rows.push(["no end", endlessColour[view.theme.dark ? 1 : 0], ""]);
  }
  rows.push(["free", stateColour("free", view.theme), ""]);
  return h("ul", { class: "legend" }, rows.map(([name, colour, size]) =>
    h("li", { key: name, "data-name": name, "data-colour": colour }, swatch(colour), h("span", null, name), size && h("b", null, size))),
    h("li", null, h("span", { class: "swatch dashed", "aria-hidden": "true" }), h("span", null, "longest free run")));
}

function preview(): Child {
  if (drained === "") return null;
  const found = drainPreview(shown, drained);
  const enough = found.bytes <= found.room;
  return h("p", { class: "note" }, found.leases.length === 0 ? `Nothing is on ${drained}: a drain would be over at once.`
    : `A drain of ${drained} would move ${format.count(found.leases.length)} leases, ${format.bytes(found.bytes)} in all, outlined in the map. `
    + (found.stuck.length > 0 ? `${format.count(found.stuck.length)} of them are not movable and would stay until they end or are revoked. ` : "")
    + (enough ? `The other devices have ${format.bytes(found.room)} free.` : `The other devices have only ${format.bytes(found.room)} free: it would wait for room.`));
}

function choice(name: string, value: string, options: [string, string][], chosen: (value: string) => void): VNode {
  return h("label", { class: "choice" }, h("span", null, name),
    h("select", { value, onchange: (event: Event) => chosen((event.target as HTMLSelectElement).value),
      ref: (element: HTMLSelectElement) => { if (element.value !== value) element.value = value; } },
      options.map(([option, text]) => h("option", { value: option, key: option }, text))));
}

function place(view: View) {
  return (element: HTMLElement): void => {
    redrawLast = view.redraw;
    if (watched !== element) {
      watched = element;
      drawn = "";
      watch.disconnect();
      watch.observe(element);
      width = Math.floor(element.clientWidth);
    }
  };
}

export function map(view: View): Child {
  const pools = view.store.get("status")?.pools, devices = view.store.get("devices")?.devices, answer = view.store.get("leases");
  if (!pools || !devices || !answer) return loading();
  if (pools.length === 0) return card("Pool map", null, empty("There is no pool yet: terrace pool create makes one."));
  const pool = pools.find((one) => one.name === view.path[0]) ?? pools[0]!;
  const leases = answer.leases.filter((lease) => lease.pool === pool.name && lease.extents.length > 0);
  const members = devices.filter((device) => device.pool === pool.name);
  if (!members.some((device) => device.serial === drained)) drained = "";
  const state = [pool.name, view.store.version("leases"), view.store.version("devices"), width, by, view.theme.dark].join();
  const draw = (canvas: HTMLCanvasElement): void => {
    if (width === 0) return;
    if (drawn !== state || canvas.width === 300) {
      const begin = performance.now();
      shown = strips(devices, leases, pool.name, width);
      timing.modelMs = performance.now() - begin;
      drawMap(canvas, shown, width, (lease) => colourOf(lease, by, view.theme), title, view.theme);
      timing.drawMs = performance.now() - begin - timing.modelMs;
      timing.leases = leases.length;
      drawn = state;
      spot = moved(spot);
    }
  };
  const controls = [choice("Pool", pool.name, pools.map((one) => [one.name, one.name]), (name) => { location.hash = `#/map/${encodeURIComponent(name)}`; }),
    choice("Colour by", by, [["tenant", "tenant"], ["state", "state"], ["time", "time left"]], (value) => { by = value as ColourBy; view.redraw(); }),
    choice("Preview a drain of", drained, [["", "–"], ...members.map((one): [string, string] => [one.serial, one.serial])],
      (value) => { drained = value; view.redraw(); }),
    drained !== "" && actButton(view, "Drain…", "drain", () => acts.drain(members.find((one) => one.serial === drained)!)),
    ...compactionControls(view, pool.name)];
  const name = `Map of pool ${pool.name}: ${members.length} devices, ${leases.length} leases. Arrow keys step through the pieces.`;
  return card(`Pool ${pool.name}`, `${format.bytes(pool.capacity_bytes)}, ${format.bytes(pool.grantable_bytes)} grantable, longest free run ${format.bytes(pool.largest_free_bytes)}`,
    h("div", { class: "controls" }, controls), preview(), compactionText(),
    h("div", { class: "map", ref: place(view) },
      h("canvas", { id: "map", "aria-hidden": "true", ref: draw }),
      h("canvas", { id: "marks", tabindex: "0", role: "img", "aria-label": name,
        ref: (canvas: HTMLCanvasElement) => { marks = canvas; if (width > 0) mark(view); },
        onpointermove: (event: PointerEvent) => onPointer(event, view), onkeydown: (event: KeyboardEvent) => onKey(event, view),
        onpointerleave: () => { if (!cursor) { spot = null; view.redraw(); } },
        onclick: () => { if (leaseAt()) location.hash = `#/leases/${leaseAt()!.id}`; } })),
    h("div", { "aria-live": "polite", class: "under" }, detail(view)), key(view, leases));
}
