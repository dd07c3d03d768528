// SPDX-License-Identifier: Apache-2.0
// A trace on its way to the manager, and what comes back: the documents of `terrace plan --json` and `tiersim --json`.
import { get } from "./store";
import type { Planner } from "./types";

export type Tool = "plan" | "tiersim";
export const traceBytesMax = 32 * 2 ** 20;

export interface Setup { hosts: number; local_bytes: number; pool_bytes: number; host_cores: number; host_gpus: number }
export interface Outcome { requests: number; rejected: number; rejected_share: number; spilled: number; stranded_mean_bytes: number | null;
  stranded_peak_bytes: number | null; fragmentation_p50: number | null; fragmentation_p99: number | null }
export interface Point { local_fraction: number; setup: Setup; total_bytes: number; saving: number; acceptable: boolean; outcome: Outcome }
export interface OverTime { local_used_bytes: number[]; pool_used_bytes: number[]; stranded_bytes: number[]; fragmentation: number[] }
export interface PlanDocument {
  trace: { requests: number; span_ns: number; peak_bytes: number; peak_requests: number; largest_bytes: number };
  assumed: { rejected_max: number; replays: number };
  baseline: { setup: Setup; total_bytes: number; outcome: Outcome };
  without_pool: Point | null;
  rows: { local_fraction: number; point: Point | null; least_rejected: number | null; sweep: Point[] }[];
  best: Point | null;
  conclusion: string;
  over_time: { baseline: OverTime; shown: Point | null; of_shown: OverTime | null };
}
export interface PolicyResult { policy: string; ddr_fraction: number; ddr_granules: number; hits: number; re_reference_hit_share: number;
  hits_over_belady: number; promotions: number; demotions: number; bytes_copied: number; stall_s: number; memory_time_over_belady: number }
export interface TiersimDocument { trace: string; requests: number; uses: number; objects: number; re_references: number;
  granule_bytes: number; look_ahead_requests: number; results: PolicyResult[] }
export type Document = { tool: "plan"; name: string; plan: PlanDocument } | { tool: "tiersim"; name: string; tiersim: TiersimDocument };

// What a file is for, by its name: requests are CSV, accesses lines of JSON or of words.
export function toolOf(name: string): Tool | undefined {
  return /\.csv$/i.test(name) ? "plan" : /\.(jsonl?|txt|trace)$/i.test(name) ? "tiersim" : undefined;
}
export function formatOf(name: string): string { return /\.jsonl?$/i.test(name) ? "mooncake" : "accesses"; }

// Options that say something, and the trace's name.
export function queryOf(options: Record<string, string>, name: string): string {
  const said = Object.entries(options).filter(([, value]) => value.trim() !== "");
  return [...said, ["name", name]].map(([key, value]) => `${encodeURIComponent(key!)}=${encodeURIComponent(value!.trim())}`).join("&");
}

export function progressText(progress: Planner | undefined): string {
  if (!progress?.busy) return "Sending the trace…";
  if (!progress.computing) return `Sending the trace, ${((progress.trace_bytes ?? 0) / 2 ** 20).toFixed(1)} MiB so far…`;
  const total = progress.total ?? 0, done = progress.done ?? 0;
  const share = total > 0 ? `${Math.floor((100 * done) / total)} %` : done > 0 ? String(done) : "";
  return ["Computing", share, progress.what].filter((part) => part).join(" ") + `, for ${Math.round((progress.elapsed_ns ?? 0) / 1e9)} s`;
}

const asked = { "Content-Type": "application/vnd.terrace.trace", "X-Terrace-Action": "1", Accept: "application/json" };

// `told` is called with how far it is, each half second. Throws what the manager says is wrong.
export async function compute(tool: Tool, options: Record<string, string>, file: File, signal: AbortSignal,
  told: (progress: Planner) => void): Promise<Document> {
  if (file.size > traceBytesMax) throw new Error(`${file.name} has more than 32 MiB: terrace ${tool} reads larger traces where it runs.`);
  const timer = window.setInterval(() => { get<Planner>("planner").then(told, () => undefined); }, 500);
  try {
    const answer = await fetch(`/api/v1/${tool}?${queryOf(options, file.name)}`, { method: "POST", body: file, headers: asked, cache: "no-store", signal });
    const text = await answer.text();
    if (!answer.ok) throw new Error(saidOf(text) ?? `${answer.status} ${answer.statusText}`);
    return tool === "plan" ? { tool, name: file.name, plan: JSON.parse(text) } : { tool, name: file.name, tiersim: JSON.parse(text) };
  } finally {
    window.clearInterval(timer);
  }
}

function saidOf(text: string): string | undefined {
  try {
    return JSON.parse(text)?.error?.message;
  } catch {
    return undefined;
  }
}
