// SPDX-License-Identifier: Apache-2.0
// What the manager's machine can and cannot do: the doctor's checks, by group, with what to do.
import * as format from "../format";
import type { Doctor, DoctorCheck } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { badge, card, empty, loading, prose, type View } from "../view";

const titles: Record<string, string> = { machine: "Kernel and processor", memory: "Memory and huge pages", limits: "Limits of processes",
  migration: "Moving granules under programs", hardware: "CXL and DAX hardware" };
const tones: Record<string, string> = { ok: "good", limited: "warning", missing: "critical" };

// In the order in which they are known, then in that of their first check.
export function grouped(checks: DoctorCheck[]): { group: string; checks: DoctorCheck[] }[] {
  const names = [...new Set([...Object.keys(titles), ...checks.map((check) => check.group)])];
  return names.map((group) => ({ group, checks: checks.filter((check) => check.group === group) })).filter((one) => one.checks.length > 0);
}

export function counts(checks: DoctorCheck[]): Record<string, number> {
  const of = (state: string): number => checks.filter((check) => check.state === state).length;
  return { ok: of("ok"), limited: of("limited"), missing: of("missing") };
}

// What is missing for good on most machines (no CXL, no GPU) is no alarm: only what keeps a pool from being served is.
const tone = (check: DoctorCheck): string => check.state === "missing" && !check.essential ? "warning" : tones[check.state] ?? "plain";

function row(check: DoctorCheck): VNode {
  return h("li", { key: check.name, class: "finding", "data-check": check.name },
    h("div", { class: "what" }, badge(check.state, tone(check)), h("b", null, format.words(check.name)), h("span", { class: "found" }, check.found),
      check.essential && check.state === "missing" && badge("essential", "critical")),
    check.meaning !== "" && h("p", null, prose(check.meaning)),
    check.fix !== "" && h("p", { class: "advice" }, h("b", null, "What to do: "), check.fix));
}

function verdict(doctor: Doctor): VNode {
  const found = counts(doctor.checks), good = doctor.basic_service;
  const number = (state: string, text: string): VNode => h("div", { class: "fact" }, h("dt", null, text), h("dd", { class: "figure", "data-count": state }, String(found[state])));
  return h("section", { class: `card full verdict ${good ? "good" : "critical"}` },
    h("header", null, h("h2", null, good ? "This machine can run Terrace" : "This machine cannot run even an emulated pool"),
      h("div", { class: "aside" }, `looked at ${format.duration(doctor.age_ns)} before the answer, as uid ${doctor.uid}`)),
    h("dl", { class: "facts" }, number("ok", "as it should be"), number("limited", "works, with less"), number("missing", "not here")));
}

export function doctor(view: View): Child {
  const seen = view.store.get("doctor");
  if (!seen && view.store.missing("doctor")) return empty("This manager does not look at its machine: terrace doctor there does.");
  if (!seen) return view.store.error("doctor") && view.store.connected ? empty(view.store.error("doctor")) : loading();
  return h("div", { class: "columns" }, verdict(seen),
    grouped(seen.checks).map((one) => h("section", { class: "card", key: one.group },
      h("header", null, h("h2", null, titles[one.group] ?? format.words(one.group)), h("div", { class: "aside" },
        one.checks.every((check) => check.state === "ok") ? "all as it should be" : `${one.checks.filter((check) => check.state !== "ok").length} of ${one.checks.length} to look at`)),
      h("ul", { class: "findings" }, one.checks.map(row)))),
    card("What is not here", null, h("p", { class: "hint" }, "The manager looks at its own machine, as its own user. Whether another user reaches the socket and is given a userfaultfd "
      + "says terrace doctor, run by that user; agents' machines say it there. Nothing is changed from here: terrace doctor --fix is for that.")));
}
