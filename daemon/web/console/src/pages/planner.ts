// SPDX-License-Identifier: Apache-2.0
// What a pool would have saved, and what policies would have done: a trace is dropped in, the manager computes, and the
// figures of terrace plan and terrace tiersim are shown.
import * as format from "../format";
import { compute, formatOf, progressText, toolOf, type Document, type Tool } from "../planner_run";
import type { Planner } from "../types";
import { h, type Child, type VNode } from "../vdom";
import type { View } from "../view";
import { planFigures } from "./planner_plan";
import { tiersimFigures } from "./planner_tiersim";

interface Option { name: string; label: string; hint: string; words?: string[] }
const optionsOf: Record<Tool, Option[]> = {
  plan: [
    { name: "hosts", label: "Hosts", hint: "the fewest that will do" },
    { name: "host-memory", label: "Memory of a host", hint: "a usual size, such as 512G" },
    { name: "local-fractions", label: "Shares that stay local", hint: "0.9,0.8,0.7,0.6,0.5" },
    { name: "pool-sizes", label: "Pool sizes", hint: "the smallest that will do" },
    { name: "pool-fraction-max", label: "Of a request from the pool", hint: "0.5 at most" },
    { name: "rejection-rate", label: "May be rejected", hint: "0.01" },
    { name: "placement", label: "Placement", hint: "", words: ["worst-fit", "best-fit"] },
    { name: "spill", label: "The pool is used", hint: "", words: ["when-full", "even"] },
  ],
  tiersim: [
    { name: "ddr-fraction", label: "Shares of DDR", hint: "0.01,0.05,0.1" },
    { name: "policy", label: "Policies", hint: "benefit-density,lru,arc,lirs,belady" },
    { name: "look-ahead", label: "Requests known ahead", hint: "0" },
    { name: "granule", label: "Bytes of an object", hint: "2M" },
    { name: "format", label: "Format", hint: "", words: ["mooncake", "accesses"] },
  ],
};

let tool: Tool = "plan", file: File | null = null, over = false;
const said: Record<Tool, Record<string, string>> = { plan: {}, tiersim: {} };
let running: AbortController | null = null, progress: Planner | undefined, problem = "", shown: Document | null = null;

function choose(chosen: File | null | undefined, view: View): void {
  if (!chosen) return;
  file = chosen;
  problem = "";
  const found = toolOf(chosen.name);
  if (found) tool = found;
  if (tool === "tiersim") said.tiersim.format = formatOf(chosen.name);
  view.redraw();
}

async function start(view: View): Promise<void> {
  if (!file || running) return;
  const abort = new AbortController();
  running = abort;
  progress = undefined;
  problem = "";
  view.redraw();
  try {
    shown = await compute(tool, said[tool], file, abort.signal, (told) => { if (running === abort) { progress = told; view.redraw(); } });
  } catch (wrong) {
    problem = abort.signal.aborted ? "Cancelled." : wrong instanceof TypeError ? "The manager went away, or did not take the trace." : wrong instanceof Error ? wrong.message : String(wrong);
  }
  running = null;
  view.redraw();
}

function option(one: Option, view: View): VNode {
  const value = said[tool][one.name] ?? "";
  const set = (event: Event): void => { said[tool][one.name] = (event.target as HTMLInputElement).value; view.redraw(); };
  return h("label", { class: "choice", key: `${tool} ${one.name}` }, h("span", null, one.label), one.words
    ? h("select", { name: one.name, value: value || one.words[0], onchange: set }, one.words.map((word) => h("option", { value: word, key: word }, word)))
    : h("input", { type: "text", name: one.name, value, placeholder: one.hint, spellcheck: "false", autocomplete: "off", oninput: set }));
}

function dropArea(view: View): VNode {
  const hover = (is: boolean) => (event: DragEvent): void => { event.preventDefault(); if (over !== is) { over = is; view.redraw(); } };
  return h("label", { class: `drop${over ? " over" : ""}`, ondragover: hover(true), ondragenter: hover(true), ondragleave: hover(false),
    ondrop: (event: DragEvent) => { event.preventDefault(); over = false; choose(event.dataTransfer?.files[0], view); view.redraw(); } },
    h("b", null, file ? file.name : "Drop a trace here, or choose a file"),
    h("span", { class: "small" }, file ? `${format.bytes(file.size)}; another one replaces it` : tool === "plan"
      ? "CSV: memory_mib, creation_time, deletion_time, and if there cpu_milli, num_gpu, gpu_milli" : "Lines of JSON with timestamp and hash_ids, or lines of 'time_us object'"),
    h("input", { type: "file", id: "trace", "aria-label": "Trace", onchange: (event: Event) => choose((event.target as HTMLInputElement).files?.[0], view) }));
}

export function planner(view: View): Child {
  const pick = (event: Event): void => { tool = (event.target as HTMLSelectElement).value as Tool; problem = ""; view.redraw(); };
  return h("div", { class: "columns" },
    h("section", { class: "card full" }, h("header", null, h("h2", null, "A trace"), h("div", { class: "aside" }, "computed by the manager, beside its work; nothing is kept")),
      h("div", { class: "controls" }, h("label", { class: "choice" }, h("span", null, "Question"),
        h("select", { id: "tool", value: tool, onchange: pick, disabled: running !== null },
          h("option", { value: "plan", key: "plan" }, "How much memory would a pool save?"), h("option", { value: "tiersim", key: "tiersim" }, "What would migration policies do?")))),
      dropArea(view),
      h("div", { class: "controls options" }, optionsOf[tool].map((one) => option(one, view))),
      h("div", { class: "line start" }, running
        ? h("button", { id: "cancel", key: "cancel", onclick: () => running?.abort() }, "Cancel")
        : h("button", { id: "compute", key: "compute", class: "primary", disabled: file === null, onclick: () => void start(view) }, "Compute"),
      h("span", { id: "planner-state", role: "status", class: problem ? "warning" : "" }, running ? progressText(progress) : problem))),
    shown?.tool === "plan" && planFigures(shown.plan, shown.name, view),
    shown?.tool === "tiersim" && tiersimFigures(shown.tiersim, shown.name, view),
    h("p", { class: "hint full" }, "The figures are those of ", h("code", null, "terrace plan --json"), " and ", h("code", null, "terrace tiersim --json"),
      ", computed by the same code, with the same defaults; options are written as there. A trace has 32 MiB at most, and one is computed at a time."));
}
