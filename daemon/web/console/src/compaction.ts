// SPDX-License-Identifier: Apache-2.0
// What a compaction of the shown pool would do: asked of the manager, which does it to a copy of its state.
import { actButton, may } from "./act";
import * as acts from "./acts";
import * as format from "./format";
import { post } from "./store";
import type { Extent, Preview } from "./types";
import { h, type Child } from "./vdom";
import { prose, type View } from "./view";

const askAfterMs = 400;      // a number that is being typed
const againAfterMs = 10_000; // each is a snapshot of the manager's process

let text = "", pool = "";
let found: Preview | null = null, problem = "";
let asked = 0, askedAt = -Infinity, version = -1, timer = 0;

const wanted = (): number => text.trim() === "" ? 0 : format.parseBytes(text);

function ask(view: View): void {
  const now = ++asked, run = wanted();
  askedAt = performance.now();
  version = view.store.version("leases");
  if (!(run > 0)) return;
  post<{ preview: Preview }>("preview", { compact: { pool, run_bytes: run } }).then((answer) => answer.preview, (failed: Error) => failed.message).then((answer) => {
    if (now !== asked) return;
    found = typeof answer === "string" ? null : answer;
    problem = typeof answer === "string" ? answer : "";
    view.redraw();
  });
}

function set(value: string): void {
  text = value;
  ++asked;
  found = null;
  problem = Number.isNaN(wanted()) ? `“${text}” is no size; as 64M, 1.5 GiB` : "";
  clearTimeout(timer);
}

function change(value: string, view: View): void {
  set(value);
  timer = window.setTimeout(() => ask(view), askAfterMs);
  view.redraw();
}

// The field, and the button for who may do it. A place where nothing can be changed has no previews either.
export function compactionControls(view: View, shownPool: string): Child[] {
  if (!may(view, "preview")) return [];
  if (pool !== shownPool) {
    pool = shownPool;
    set("");
  }
  if (found && version !== view.store.version("leases") && performance.now() - askedAt > againAfterMs) ask(view);
  return [
    h("label", { class: "choice", key: "run" }, h("span", null, "Preview a free run of"),
      h("input", { type: "text", name: "run", size: "9", autocomplete: "off", spellcheck: "false", placeholder: "as 64M", value: text,
        oninput: (event: Event) => change((event.target as HTMLInputElement).value, view) })),
    found?.run ? actButton(view, "Compact…", "compact", () => acts.compact(shownPool, text)) : null,
  ];
}

export function compactionText(): Child {
  if (problem !== "") return h("p", { class: "note", role: "alert" }, prose(problem));
  if (!found) return null;
  if (found.refusal) return h("p", { class: "note" }, "A compaction would be refused: ", prose(found.refusal));
  return h("p", { class: "note" }, `A compaction for ${format.bytes(wanted())} ${found.summary}`
    + (found.run ? `: ${format.bytes(found.run.length_bytes)} on ${found.run.device} are cleared, outlined in the map; what moves goes to the dashed places: ` : ": ")
    + `${found.notes.slice(found.run ? 1 : 0).join("; ")}.`);
}

export interface Marked { run: Extent[]; moves: Set<number>; targets: Extent[] }
export function compactionMarks(): Marked {
  if (!found?.run) return { run: [], moves: new Set(), targets: [] };
  const moves = found.of_leases.filter((one) => one.lease !== null && !one.blocked);
  return { run: [found.run], moves: new Set(moves.map((one) => one.lease!)), targets: moves.flatMap((one) => one.to_extents) };
}
