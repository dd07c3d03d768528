// SPDX-License-Identifier: Apache-2.0
// What of /api/v1 the console reads; core/schema/terrace.capnp says what each is.

export interface WhoAmI { name: string; role: string; tenant: string | null; methods: string[]; read_only: string | null }
export interface PreviewedPlace { device: string; bytes: number }
export interface Preview { summary: string; refusal: string | null; notes: string[]; leases: number; bytes: number;
  of_leases: { lease: number | null; tenant: string; label: string; bytes: number; to: PreviewedPlace[]; state: string; blocked: boolean;
    from_extents: Extent[]; to_extents: Extent[] }[];
  tenants: { tenant: string; bytes: number; leases: number; over: boolean }[]; holders: string[]; run: Extent | null }
export interface Extent { device: string; offset_bytes: number; length_bytes: number }
export interface Usage { ddr_bytes: number; cxl_bytes: number; live_bytes: number; holder: string; age_ns: number }
export interface RunCounters { promotions: number; demotions: number; promoted_bytes: number; demoted_bytes: number;
  stalled_ns: number; refused: number; fallbacks: number }
export interface RunFigures { program: string; processes: number; live_bytes: number; ddr_bytes: number; cxl_bytes: number;
  plain_bytes: number; ddr_bytes_max: number; leased_bytes: number; sampled_bytes: number; ddr_hit_permille: number | null;
  counters: RunCounters; heat: RunHeat | null }
export interface RunHeat { band_bytes: number; heat: number[]; ddr_percent: number[]; cxl_percent: number[] }
export interface Run { host: string; agent: string | null; pid: number | null; uid: number | null; tenant: string;
  figures: RunFigures; promotions_per_s: number; demotions_per_s: number; copy_bytes_per_s: number; stalled_ns_per_s: number;
  age_ns: number }
export interface Figures { latency_ns: number | null; bandwidth_bytes_per_s: number | null; numa_node: number | null;
  numa_distance: number | null; persistent: boolean; source: string | null; isolation: string | null }
export interface Lease { id: number; pool: string; tenant: string; host: string; label: string; bytes: number; epoch: number;
  mode: string; phase: string; ttl_ns: number; expires_in_ns: number | null; extents: Extent[]; object: string; reason: string;
  usage: Usage | null; granule_bytes: number; cause: string | null; movable: boolean; holders: number; agent: string | null;
  persistent: boolean; offered_to: string | null; coherence: string }
export interface Device { serial: string; backend: string; capacity_bytes: number; granule_bytes: number; adopted: boolean;
  pool: string; present: boolean; detail: string; free_bytes: number; state: string | null; largest_free_bytes: number;
  leases: number; used_bytes: number; figures: Figures; contents: string | null; isolation: string }
export interface Pool { name: string; devices: string[]; capacity_bytes: number; free_bytes: number; leased_bytes: number;
  scrubbing_bytes: number; quarantined_bytes: number; leases: number; largest_free_bytes: number; granule_bytes: number;
  placement: string; reserved_bytes: number; waiting: number; waiting_bytes: number; grantable_bytes: number;
  figures: Figures; coherence: string; isolation: string; trust: string; absent_bytes: number; absent_devices: string[];
  free_runs: { run_bytes_min: number; runs: number; bytes: number }[] }
export interface Server { version: string; pid: number; uptime_ns: number; boot_id: string; state_file: string;
  object_directory: string; store_commits: number; commands_applied: number; connections: number; connections_max: number;
  scrub_queued_bytes: number; recovered: string; waiting: number; descriptors: number; descriptors_max: number }
export interface Status { server: Server; pools: Pool[]; leases: number }
export interface Finding { code: string; severity: string; kind: string; name: string | null; since_wall_ns: number;
  lasted_ns: number; text: string; advice: string; page: string }
export interface Health { summary: { severity: string; critical: number; warnings: number }; findings: Finding[] }
export interface PoolHistory { name: string; capacity_bytes: number[]; free_bytes: number[]; leased_bytes: number[];
  scrubbing_bytes: number[]; quarantined_bytes: number[]; absent_bytes: number[]; leases: number[]; waiting: number[] }
export interface History { interval_ns: number; age_ns: number[]; grants: number[]; commands: number[]; commits: number[];
  pools: PoolHistory[] }
export interface DoctorCheck { name: string; group: string; state: string; found: string; meaning: string; fix: string;
  essential: boolean }
export interface Doctor { checks: DoctorCheck[]; basic_service: boolean; uid: number; age_ns: number }
export interface Planner { busy: boolean; tool?: string; elapsed_ns?: number; trace_bytes?: number; computing?: boolean;
  done?: number; total?: number; what?: string }
export interface Quota { tenant: string; bytes_max: number | null; leases_max: number | null; bytes: number | null;
  leases: number | null }
export interface Reservation { id: number; pool: string; tenant: string; bytes: number; ttl_ns: number;
  expires_in_ns: number | null; used_bytes: number }
export interface Waiting { lease: number; pool: string; tenant: string; host: string; label: string; bytes: number;
  waited_ns: number; ends_in_ns: number; place: number; turn: boolean }
export interface Host { name: string; state: string; address: string; version: string; last_contact_ns: number;
  ends_in_ns: number; leases: number; leased_bytes: number; devices: string[]; detail: string;
  certificate_days_left: number | null; certificate_ends_soon: boolean; fence_ns: number | null; margin_ns: number | null }
export interface AuditEntry { sequence: number; wall_ns: number; actor: string; tenant: string; verb: string;
  subject: string; detail: string }
export interface TerraceEvent { id: number; time_ns: number; time: string; kind: string; severity: string; message: string;
  lease: number | null; tenant: string | null; pool: string | null; device: string | null; host: string | null }
export interface Memdev { serial: string; name: string; model: string; firmware: string; health: string; ram_bytes: number;
  pmem_bytes: number; numa_node: number | null; enabled: boolean; path: string[] }
export interface Region { name: string; kind: string; bytes: number; interleave_ways: number;
  interleave_granularity: number; memdevs: string[]; committed: boolean; decoder: string; figures: Figures;
  serial: string | null }
export interface MemoryNode { node: number; cpus: boolean; bytes: number; free_bytes: number; figures: Figures }
export interface DaxDevice { name: string; region: string; mode: string; bytes: number; numa_node: number | null;
  online: boolean; holder: string | null }
export interface Inventory { memdevs: Memdev[]; regions: Region[]; dax_devices: DaxDevice[]; nodes: MemoryNode[];
  decoders: { name: string; kind: string; bytes: number; free_bytes: number | null; targets: string[]; region: string | null }[];
  notes: string[] }
