// SPDX-License-Identifier: Apache-2.0
// What the manager said last, asked for again and again while a page wants it. One request of a kind at a time; a manager
// that does not answer is asked again, and what is shown stays with a remark of how old it is.
import type { AuditEntry, Device, Doctor, Health, History, Host, Inventory, Lease, Quota, Reservation, Run, Status, TerraceEvent,
  Waiting, WhoAmI } from "./types";

interface Kinds {
  status: Status;
  health: Health;
  history: History;
  doctor: Doctor;
  devices: { devices: Device[] };
  leases: { leases: Lease[] };
  quotas: { quotas: Quota[] };
  reservations: { reservations: Reservation[] };
  queue: { waiting: Waiting[] };
  runs: { runs: Run[]; left_out: number };
  hosts: { hosts: Host[] };
  inventory: { inventory: Inventory };
  audit: { entries: AuditEntry[]; oldest: number; newest: number };
  events: { events: TerraceEvent[] };
  whoami: { who: WhoAmI };
}
export type Kind = keyof Kinds;

const everyMs: Record<Kind, number> = { status: 3000, health: 3000, history: 10_000, devices: 5000, leases: 5000,
  quotas: 5000, reservations: 10_000, queue: 3000, runs: 5000, hosts: 5000, inventory: 15_000, audit: 5000, events: 3000, doctor: 15_000, whoami: 60_000 };
const asked: Partial<Record<Kind, string>> = { audit: "audit?newest_first=true&limit=300", events: "events?newest=true&limit=300" };
const missingAgainMs = 60_000; // a path that this version of the manager does not have
const deniedAgainMs = 60_000;  // each refusal is a line in the audit log
const leasesPerPage = 250;     // some 6 ms of the manager's loop, in which nobody else is answered
const answerMsMax = 10_000;    // a manager that is stopped takes connections and says nothing
const actMsMax = 60_000;       // a grant of a terabyte is carved first
const timeShare = 20;          // the manager spends one in so many milliseconds on a page
const slowAgainMs = 20_000;    // however long it took: on a busy machine that is not the manager's time
const retryMs = 2000;

export class ApiError extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

export async function get<T>(path: string): Promise<T> {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), answerMsMax);
  try {
    const answer = await fetch(`/api/v1/${path}`, { headers: { Accept: "application/json" }, cache: "no-store", signal: abort.signal });
    const text = await answer.text();
    if (answer.ok) return JSON.parse(text) as T;
    throw new ApiError(answer.status, saidOf(text) ?? `${answer.status} ${answer.statusText}`);
  } finally {
    clearTimeout(timer);
  }
}

// What changes something. The header is one that no page of another site can send (daemon/web/request_guard.h).
export async function post<T>(path: string, body: unknown): Promise<T> {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), actMsMax);
  try {
    const answer = await fetch(`/api/v1/${path}`, { method: "POST", headers: { "Content-Type": "application/json", "X-Terrace-Action": "1" },
      body: JSON.stringify(body), cache: "no-store", signal: abort.signal });
    const text = await answer.text();
    if (answer.ok) return JSON.parse(text) as T;
    throw new ApiError(answer.status, saidOf(text) ?? `${answer.status} ${answer.statusText}`);
  } finally {
    clearTimeout(timer);
  }
}

function saidOf(text: string): string | undefined {
  try {
    return JSON.parse(text)?.error?.message;
  } catch {
    return undefined;
  }
}

async function getLeases(fields: string): Promise<{ leases: Lease[] }> {
  const leases: Lease[] = [], ofEach = fields === "" ? "" : `&fields=${fields}`;
  for (let after = 0; ;) {
    const page = (await get<{ leases: Lease[] }>(`leases?limit=${leasesPerPage}&after=${after}${ofEach}`)).leases;
    leases.push(...page);
    if (page.length < leasesPerPage) return { leases };
    after = page[page.length - 1]!.id;
  }
}

interface Entry { data: unknown; error: string; missing: boolean; askedAt: number; tookMs: number; underWay: boolean; version: number }

export class Store {
  private entries = new Map<Kind, Entry>();
  private wanted: Kind[] = [];
  private timer = 0;
  private leaseFields = ""; // that the page reads; "": all
  private leasesHave = "";  // what the last answer has
  answeredAt = 0; // by performance.now(); 0: never
  connected = true;
  denied = ""; // why this peer may not look

  constructor(private readonly changed: () => void) {
    document.addEventListener("visibilitychange", () => this.tick());
  }

  want(kinds: Kind[], leaseFields: string): void {
    this.wanted = kinds;
    if (kinds.includes("leases") && leaseFields !== this.leaseFields) {
      this.leaseFields = leaseFields;
      const entry = this.entry("leases");
      if (!this.leasesSuffice(this.leasesHave)) entry.data = undefined;
      if (entry.data === undefined) entry.askedAt = -Infinity;
    }
    this.tick();
  }
  get<K extends Kind>(kind: K): Kinds[K] | undefined { return this.entries.get(kind)?.data as Kinds[K] | undefined; }
  version(kind: Kind): number { return this.entries.get(kind)?.version ?? 0; }
  missing(kind: Kind): boolean { return this.entries.get(kind)?.missing ?? false; }
  error(kind: Kind): string { return this.entries.get(kind)?.error ?? ""; }

  // Something was changed: all that is shown is asked for now.
  refresh(): void {
    for (const kind of this.wanted) this.entry(kind).askedAt = -Infinity;
    this.tick();
  }

  private leasesSuffice(have: string): boolean {
    const fields = have.split(",");
    return have === "" || (this.leaseFields !== "" && this.leaseFields.split(",").every((field) => fields.includes(field)));
  }

  private entry(kind: Kind): Entry {
    let found = this.entries.get(kind);
    if (!found) {
      found = { data: undefined, error: "", missing: false, askedAt: -Infinity, tookMs: 0, underWay: false, version: 0 };
      this.entries.set(kind, found);
    }
    return found;
  }

  // What took long is asked for less often, so that a page costs the manager a twentieth of its time, or an answer each 20 s.
  private due(kind: Kind, now: number): number {
    const entry = this.entry(kind);
    const every = !this.connected ? retryMs : this.denied ? deniedAgainMs : entry.missing ? missingAgainMs
      : Math.max(everyMs[kind], Math.min(slowAgainMs, timeShare * entry.tookMs));
    return entry.askedAt + every - now;
  }

  private tick(): void {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const now = performance.now();
    let next = 1000;
    for (const kind of this.wanted) {
      const due = this.due(kind, now);
      if (this.entry(kind).underWay) continue;
      if (due <= 0) void this.ask(kind);
      else next = Math.min(next, due);
    }
    this.timer = window.setTimeout(() => this.tick(), Math.max(next, 100));
  }

  private async ask(kind: Kind): Promise<void> {
    const entry = this.entry(kind);
    entry.underWay = true;
    entry.askedAt = performance.now();
    const before = this.connected;
    try {
      const fields = this.leaseFields;
      const data = kind === "leases" ? await getLeases(fields) : await get(asked[kind] ?? kind);
      if (kind === "leases" && !this.leasesSuffice(fields)) { // another page is shown by now
        entry.underWay = false;
        entry.askedAt = -Infinity;
        this.tick();
        return;
      }
      if (kind === "leases") this.leasesHave = fields;
      entry.data = data;
      entry.error = "";
      entry.missing = false;
      ++entry.version;
      this.connected = true;
      this.denied = "";
    } catch (problem) {
      entry.error = problem instanceof Error ? problem.message : String(problem);
      if (problem instanceof ApiError) {
        this.connected = true;
        entry.missing = problem.status === 404;
        if (problem.status === 403) this.denied = problem.message;
      } else this.connected = false;
    }
    entry.tookMs = performance.now() - entry.askedAt;
    entry.underWay = false;
    if (this.connected) this.answeredAt = performance.now();
    if (!before && this.connected) for (const other of this.entries.values()) other.askedAt = -Infinity;
    this.changed();
    if (!before && this.connected) this.tick();
  }
}
