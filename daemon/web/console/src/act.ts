// SPDX-License-Identifier: Apache-2.0
// Changes: a dialog that shows what an act would do before it is done, and what became of it. Buttons for it are there only
// where the manager says that this peer may (`whoami`); the manager decides again when it is asked.
import * as format from "./format";
import { ApiError, post } from "./store";
import type { Preview } from "./types";
import { h, type Child, type VNode } from "./vdom";
import { badge, prose, type View } from "./view";

export interface Field {
  key: string;
  label: string;
  value: string;
  hint?: string;
  options?: [string, string][];
  // Of a text that is no plain text; NaN or undefined: it is none.
  read?: (text: string) => number | string | boolean | null | undefined;
}
export interface Act {
  path: string;    // of /api/v1, and what `preview` calls it
  title: string;
  verb: string;    // "Drain emu:cxl0", with which the button begins
  about?: string;  // of an act without a preview
  body?: Record<string, unknown>;
  fields?: Field[];
  fresh?: () => Record<string, unknown>; // anew with each change: the key of a grant
  done: (answer: any) => string;
}

const previewed = new Set(["grant", "revoke", "release", "drain", "set_quota", "compact"]);
const previewAfterMs = 250, rowsShown = 6;

interface Open { act: Act; key: Record<string, unknown>; asked: number; preview: Preview | null; problem: string; busy: boolean; done: string; timer: number }
let open: Open | null = null;
let returnTo: HTMLElement | null = null;

export function may(view: View, path: string): boolean {
  const who = view.store.get("whoami")?.who;
  return !!who && !who.read_only && who.methods.includes(path);
}

// A button that opens the dialog; nothing where this peer may not.
export function actButton(view: View, text: string, path: string, make: () => Act): Child {
  return may(view, path) && h("button", { class: "act", "data-act": path, onclick: (event: Event) => {
    returnTo = event.currentTarget as HTMLElement;
    const act = make();
    open = { act, key: act.fresh?.() ?? {}, asked: 0, preview: null, problem: "", busy: false, done: "", timer: 0 };
    look(view);
    view.redraw();
  } }, text);
}

// What the body would be, or which field has no such value.
function bodyOf(now: Open): Record<string, unknown> | string {
  const body: Record<string, unknown> = { ...now.act.body };
  for (const field of now.act.fields ?? []) {
    const value = field.read ? field.read(field.value.trim()) : field.value.trim();
    if (value === undefined || (typeof value === "number" && !Number.isFinite(value))) return `${field.label}: “${field.value}” cannot be read${field.hint ? `; ${field.hint}` : ""}`;
    if (value !== null && value !== "") body[field.key] = value;
  }
  return body;
}

function look(view: View): void {
  const now = open!;
  const body = bodyOf(now);
  ++now.asked;
  now.preview = null;
  now.problem = typeof body === "string" ? body : "";
  if (typeof body === "string" || !previewed.has(now.act.path)) return;
  const asked = now.asked;
  post<{ preview: Preview }>("preview", { [now.act.path]: body }).then((answer) => answer.preview, (problem: Error) => problem.message).then((found) => {
    if (open !== now || now.asked !== asked) return;
    if (typeof found === "string") now.problem = found;
    else now.preview = found;
    view.redraw();
  });
}

function change(field: Field, value: string, view: View): void {
  const now = open!;
  field.value = value;
  now.key = now.act.fresh?.() ?? {};
  now.preview = null;
  ++now.asked;
  clearTimeout(now.timer);
  now.timer = window.setTimeout(() => { if (open === now) { look(view); view.redraw(); } }, previewAfterMs);
  view.redraw();
}

function close(view: View): void {
  open = null;
  view.redraw();
  // What opened it may have gone with what it was about.
  requestAnimationFrame(() => (returnTo?.isConnected ? returnTo : document.getElementById("main"))?.focus());
}

async function perform(view: View): Promise<void> {
  const now = open!, body = bodyOf(now);
  if (now.busy || typeof body === "string") return;
  now.busy = true;
  now.problem = "";
  view.redraw();
  try {
    now.done = now.act.done(await post(now.act.path, { ...body, ...now.key }));
  } catch (problem) {
    now.problem = problem instanceof ApiError ? problem.message : `No answer: ${String(problem)}. It may have been done or not; look before you ask again.`;
  }
  now.busy = false;
  view.store.refresh();
  view.redraw();
}

// Tab goes round within the dialog.
function onKey(event: KeyboardEvent): void {
  if (event.key !== "Tab") return;
  const inside = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("input, select, button, a[href]")].filter((one) => !(one as HTMLButtonElement).disabled);
  const first = inside[0], last = inside[inside.length - 1];
  if (!first || !last) return;
  if (event.shiftKey && document.activeElement === first) { last.focus(); event.preventDefault(); }
  if (!event.shiftKey && document.activeElement === last) { first.focus(); event.preventDefault(); }
}

function input(field: Field, view: View): VNode {
  const props = { name: field.key, value: field.value };
  return h("label", { class: "choice", key: field.key }, h("span", null, field.label), field.options
    ? h("select", { name: field.key, onchange: (event: Event) => change(field, (event.target as HTMLSelectElement).value, view),
      ref: (element: HTMLSelectElement) => { if (element.value !== field.value) element.value = field.value; } },
      field.options.map(([value, text]) => h("option", { value, key: value }, text)))
    : h("input", { ...props, type: "text", autocomplete: "off", spellcheck: "false", placeholder: field.hint ?? "", oninput: (event: Event) => change(field, (event.target as HTMLInputElement).value, view) }));
}

const places = (to: { device: string; bytes: number }[]): string => to.map((one) => `${one.device} ${format.bytes(one.bytes)}`).join(", ");

function shown(preview: Preview): Child[] {
  const leases = preview.of_leases.slice(0, rowsShown), more = preview.of_leases.length - leases.length;
  const tenants = preview.tenants.slice(0, rowsShown);
  return [
    preview.refusal && h("p", { class: "note", role: "alert", key: "refusal" }, h("b", null, "It would be refused: "), prose(preview.refusal)),
    h("ul", { class: "plainlist notes", key: "notes" }, preview.notes.map((note) => h("li", null, prose(note))), preview.holders.map((holder) => h("li", null, `Held by ${holder}`))),
    leases.length > 0 && h("div", { class: "scroll", key: "leases" }, h("table", null,
      h("thead", null, h("tr", null, ["Lease", "Tenant", "Size", "To", "What becomes of it"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, leases.map((one) => h("tr", { key: String(one.lease) }, h("td", null, one.lease === null ? "new" : `${one.lease}${one.label ? ` ${one.label}` : ""}`), h("td", null, one.tenant),
        h("td", null, format.bytes(one.bytes)), h("td", null, places(one.to) || "–"), h("td", { class: "wide" }, one.blocked && badge("stays", "warning"), one.blocked ? " " : "", one.state)))))),
    more > 0 && h("p", { class: "hint", key: "more" }, `and ${format.count(more)} more`),
    tenants.length > 1 && h("p", { class: "hint", key: "tenants" }, `Of ${format.count(preview.tenants.length)} tenants: `
      + tenants.map((one) => `${one.tenant} ${format.bytes(one.bytes)}${one.over ? " (more than its bound)" : ""}`).join(", ")),
  ];
}

export function dialog(view: View): Child {
  const now = open;
  if (!now) return null;
  const act = now.act, hasPreview = previewed.has(act.path), body = bodyOf(now);
  const ready = !now.busy && typeof body !== "string" && (!hasPreview || (now.preview !== null && !now.preview.refusal));
  const label = now.preview && !now.preview.refusal ? `${act.verb}: ${now.preview.summary}` : act.verb;
  const focusFirst = (element: HTMLElement): void => {
    const box = element as HTMLDialogElement;
    if (!box.open) box.showModal();
    if (!box.contains(document.activeElement)) (box.querySelector<HTMLElement>("input, select, button.cancel") ?? box).focus();
  };
  return h("dialog", { class: "act", "aria-labelledby": "act-title", key: "dialog", ref: focusFirst, onkeydown: onKey,
    oncancel: (event: Event) => { event.preventDefault(); close(view); } },
    h("form", { method: "dialog", onsubmit: (event: Event) => { event.preventDefault(); if (ready && !now.done) void perform(view); } },
      h("h2", { id: "act-title" }, act.title),
      now.done ? h("p", { class: "outcome", role: "status", key: "done" }, prose(now.done)) : h("div", { class: "stack", key: "ask" },
        act.fields && h("div", { class: "fields" }, act.fields.map((field) => input(field, view))),
        now.problem && h("p", { class: "banner critical", role: "alert", key: "problem" }, prose(now.problem)),
        h("div", { class: "preview", "aria-live": "polite", key: "preview" }, act.about ? h("p", null, prose(act.about)) : now.preview ? shown(now.preview) : !now.problem && h("p", { class: "hint" }, "Asking what it would do…"))),
      h("div", { class: "buttons", key: "buttons" },
        h("button", { type: "button", class: "cancel", onclick: () => close(view) }, now.done ? "Close" : "Cancel"),
        !now.done && h("button", { type: "submit", class: "confirm", key: "confirm", disabled: !ready }, now.busy ? "Asking…" : label))));
}
