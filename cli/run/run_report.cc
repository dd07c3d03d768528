// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/terminal/output.h"
#include "core/base/limits.h"

namespace terrace::cli {
namespace {

using nlohmann::json;
using supply::MemoryReport;
using supply::ProcessReport;
using supply::SizeClassReport;

constexpr const char* report_where = "run report";
constexpr size_t text_bytes_max = 1024;
constexpr size_t entries_max = 16384;  // of any list: far above what a run writes

// One line a number: the key, and where it is.
template <typename Of>
struct Field {
  const char* key;
  uint64_t Of::*value;
};

constexpr Field<MemoryReport> memory_fields[] = {
    {"live_ddr_bytes", &MemoryReport::live_ddr},
    {"live_cxl_bytes", &MemoryReport::live_cxl},
    {"live_detached_bytes", &MemoryReport::live_detached},
    {"large_bytes", &MemoryReport::large_bytes},
    {"mapped_bytes", &MemoryReport::mapped_bytes},
    {"small_bytes", &MemoryReport::small_bytes},
    {"small_extent_bytes", &MemoryReport::extent_bytes},
    {"plain_bytes", &MemoryReport::plain_bytes},
    {"ddr_bytes", &MemoryReport::ddr_bytes},
    {"leased_bytes", &MemoryReport::leased_bytes},
    {"free_bytes", &MemoryReport::free_bytes},
    {"longest_free_bytes", &MemoryReport::longest_free_bytes},
    {"peak_window_bytes", &MemoryReport::peak_live},
    {"allocations_ddr", &MemoryReport::allocations_ddr},
    {"allocations_cxl", &MemoryReport::allocations_cxl},
    {"allocations_detached", &MemoryReport::allocations_detached},
    {"refused", &MemoryReport::refused},
    {"fallbacks", &MemoryReport::fallbacks},
    {"fallback_bytes", &MemoryReport::fallback_bytes},
    {"during_fork", &MemoryReport::during_fork},
    {"promotions", &MemoryReport::promotions},
    {"demotions", &MemoryReport::demotions},
    {"promoted_bytes", &MemoryReport::promoted_bytes},
    {"demoted_bytes", &MemoryReport::demoted_bytes},
    {"promotions_per_s", &MemoryReport::promotions_per_s},
    {"demotions_per_s", &MemoryReport::demotions_per_s},
    {"copy_bytes_per_s", &MemoryReport::copy_bytes_per_s},
};

constexpr Field<SizeClassReport> class_fields[] = {
    {"bytes_min", &SizeClassReport::bytes_min},
    {"bytes_max", &SizeClassReport::bytes_max},
    {"blocks", &SizeClassReport::blocks},
    {"bytes", &SizeClassReport::bytes},
    {"bytes_at_peak", &SizeClassReport::bytes_at_peak},
};

// --- writing

json reasons_json(const std::array<uint64_t, supply::full_reasons>& counts) {
  json object = json::object();
  for (uint32_t i = 0; i < supply::full_reasons; ++i) object[supply::full_reason_name(i)] = counts[i];
  return object;
}

json memory_json(const MemoryReport& memory, bool room_known) {
  json object;
  object["outside_bytes"] = memory.outside_bytes;
  for (const auto& field : memory_fields) object[field.key] = memory.*field.value;
  object["live_bytes"] = memory.live_bytes();
  object["held_bytes"] = memory.held_bytes();
  const double held = held_over_live(memory), external = external_fragmentation(memory);
  object["held_over_live"] = held > 0 ? json(held) : json();
  object["external_fragmentation"] = room_known && external >= 0 ? json(external) : json();
  if (!room_known) object["free_bytes"] = object["longest_free_bytes"] = json();
  object["refused_by"] = reasons_json(memory.refused_by);
  object["fallbacks_by"] = reasons_json(memory.fallbacks_by);
  return object;
}

json classes_json(const std::vector<SizeClassReport>& classes) {
  json list = json::array();
  for (const SizeClassReport& one : classes) {
    json object = {{"kind", one.large ? "large" : "small"},
                   {"allocations", one.large ? json(one.allocations) : json()}};
    for (const auto& field : class_fields) object[field.key] = one.*field.value;
    list.push_back(std::move(object));
  }
  return list;
}

const char* migration_name(supply::MigrationState state) {
  switch (state) {
    case supply::MigrationState::not_started: return "not_started";
    case supply::MigrationState::running: return "running";
    case supply::MigrationState::stopped: return "stopped";
    case supply::MigrationState::forked: return "forked";
  }
  return "not_started";
}

json process_json(const ProcessReport& process) {
  return {{"pid", process.pid},
          {"program", process.name},
          {"running", process.running},
          {"migration", migration_name(process.migration)},
          {"migration_reason", process.why_still.empty() ? json() : json(process.why_still)},
          {"small_age_ns", process.small_known ? json(process.small_age_ns) : json()},
          {"memory", memory_json(process.memory, process.room_known)},
          {"size_classes", classes_json(process.classes)}};
}

json lease_json(const supply::LeaseReport& lease) {
  return {{"id", lease.id},           {"label", lease.label},
          {"owner_pid", lease.owner}, {"owner", lease.owner_name},
          {"bytes", lease.bytes},     {"live_bytes", lease.live_bytes}};
}

bool any_room_known(const supply::RunReport& report) {
  return std::any_of(report.processes.begin(), report.processes.end(),
                     [](const ProcessReport& one) { return one.running && one.room_known; });
}

// What --stats has always said, at the document's top.
json summary_json(const RunDocument& run) {
  const supply::RunStats& stats = run.report.stats;
  const supply::Totals& totals = stats.totals;
  const MemoryReport& sum = run.report.sum;
  return {{"program", run.program},
          {"supervised", true},
          {"exit_code", run.running ? json() : json(run.exit_code)},
          {"processes", totals.processes},
          {"peak_live_bytes", stats.peak_live_bytes},
          {"live_bytes", sum.live_ddr + sum.live_cxl + sum.live_detached},
          {"ddr",
           {{"budget_bytes", run.ddr_budget_bytes},
            {"budget_from", run.ddr_budget_from},
            {"used_bytes", stats.ddr_used},
            {"allocations", totals.allocations_ddr},
            {"live_bytes", sum.live_ddr}}},
          {"cxl",
           {{"budget_bytes", run.cxl_budget_bytes},
            {"budget_from", run.cxl_budget_from},
            {"allocations", totals.allocations_cxl},
            {"live_bytes", sum.live_cxl},
            {"leased_bytes", stats.leased_bytes},
            {"leases_granted", stats.leases_granted},
            {"leases_released", stats.leases_released},
            {"leased_bytes_peak", stats.leased_bytes_peak}}},
          {"detached", {{"allocations", totals.allocations_detached}, {"live_bytes", sum.live_detached}}},
          {"forks",
           {{"switched_private", totals.forks_switched},
            {"switched_bytes", totals.switched_bytes},
            {"refused", totals.forks_failed},
            {"folded_bytes", totals.folded_bytes},
            {"folds", totals.folds},
            {"allocations_meanwhile", totals.during_fork}}},
          {"migration",
           {{"policy", run.policy},
            {"obstacle", run.obstacle},
            {"processes", totals.processes_moved},
            {"promotions", totals.promotions},
            {"demotions", totals.demotions},
            {"granule_bytes", limits::granule_bytes},
            {"leases_left", totals.leases_left},
            {"left_bytes", totals.left_bytes},
            {"undone", totals.moves_undone},
            {"skipped", totals.moves_skipped},
            {"stalled_us", totals.stalled_ns / 1000},
            {"copied_us", totals.copy_ns / 1000},
            {"sampler_us", totals.sampler_ns / 1000}}},
          {"fallbacks", totals.fallbacks},
          {"refused", totals.refused}};
}

// --- reading

// A document's words; the first that is not what it should be ends the reading.
class Reader {
 public:
  bool fine() const { return fault_.empty(); }
  const std::string& fault() const { return fault_; }

  const json& object(const json& in, const char* key) { return member(in, key, &json::is_object, "no object"); }
  const json& list(const json& in, const char* key) {
    const json& found = member(in, key, &json::is_array, "no list");
    return found.is_array() && found.size() > entries_max ? refuse(key, "a list that is too long") : found;
  }
  uint64_t number(const json& in, const char* key, bool may_be_null = false) {
    const json& found = any(in, key);
    if (may_be_null && found.is_null()) return 0;
    if (found.is_number_unsigned()) return found.get<uint64_t>();
    refuse(key, "no count");
    return 0;
  }
  // Newer keys: runs of before do not have them.
  bool has(const json& in, const char* key) const { return in.is_object() && in.contains(key); }
  bool flag(const json& in, const char* key) {
    const json& found = any(in, key);
    if (found.is_boolean()) return found.get<bool>();
    refuse(key, "no yes or no");
    return false;
  }
  // Printable, and no longer than what a run writes.
  std::string text(const json& in, const char* key) {
    const json& found = any(in, key);
    if (found.is_string()) return printable(found.get_ref<const std::string&>().substr(0, text_bytes_max));
    refuse(key, "no text");
    return {};
  }
  const json& any(const json& in, const char* key) {
    static const json nothing;
    if (!in.is_object()) return nothing;
    const auto at = in.find(key);
    return at == in.end() ? refuse(key, "missing") : *at;
  }

 private:
  const json& refuse(const char* key, const char* what) {
    static const json nothing;
    if (fault_.empty()) fault_ = std::string("'") + key + "' is " + what;
    return nothing;
  }
  const json& member(const json& in, const char* key, bool (json::*is)() const noexcept, const char* what) {
    const json& found = any(in, key);
    return (found.*is)() ? found : refuse(key, what);
  }
  std::string fault_;
};

MemoryReport read_memory(Reader& reader, const json& from) {
  MemoryReport memory;
  for (const auto& field : memory_fields) memory.*field.value = reader.number(from, field.key, true);
  if (reader.has(from, "outside_bytes")) memory.outside_bytes = reader.number(from, "outside_bytes");
  const json& refused = reader.object(from, "refused_by");
  const json& fallbacks = reader.object(from, "fallbacks_by");
  for (uint32_t i = 0; i < supply::full_reasons && reader.fine(); ++i) {
    memory.refused_by[i] = reader.number(refused, supply::full_reason_name(i));
    memory.fallbacks_by[i] = reader.number(fallbacks, supply::full_reason_name(i));
  }
  return memory;
}

std::vector<SizeClassReport> read_classes(Reader& reader, const json& list) {
  std::vector<SizeClassReport> classes;
  for (const json& from : list) {
    SizeClassReport one;
    one.large = reader.text(from, "kind") == "large";
    one.allocations = reader.number(from, "allocations", true);
    for (const auto& field : class_fields) one.*field.value = reader.number(from, field.key);
    if (!reader.fine()) break;
    classes.push_back(one);
  }
  return classes;
}

ProcessReport read_process(Reader& reader, const json& from) {
  ProcessReport process;
  process.pid = static_cast<pid_t>(std::min<uint64_t>(reader.number(from, "pid"), INT32_MAX));
  process.name = reader.text(from, "program");
  process.running = reader.flag(from, "running");
  const std::string migration = reader.text(from, "migration");
  for (auto state :
       {supply::MigrationState::running, supply::MigrationState::stopped, supply::MigrationState::forked})
    if (migration == migration_name(state)) process.migration = state;
  if (reader.has(from, "migration_reason") && !reader.any(from, "migration_reason").is_null())
    process.why_still = reader.text(from, "migration_reason");
  process.small_known = !reader.any(from, "small_age_ns").is_null();
  process.small_age_ns = reader.number(from, "small_age_ns", true);
  const json& memory = reader.object(from, "memory");
  process.room_known = reader.fine() && !reader.any(memory, "free_bytes").is_null();
  process.memory = read_memory(reader, memory);
  process.classes = read_classes(reader, reader.list(from, "size_classes"));
  return process;
}

supply::LeaseReport read_lease(Reader& reader, const json& from) {
  supply::LeaseReport lease;
  lease.id = reader.number(from, "id");
  lease.label = reader.text(from, "label");
  lease.owner = static_cast<pid_t>(std::min<uint64_t>(reader.number(from, "owner_pid"), INT32_MAX));
  lease.owner_name = reader.text(from, "owner");
  lease.bytes = reader.number(from, "bytes");
  lease.live_bytes = reader.number(from, "live_bytes");
  return lease;
}

void read_summary(Reader& reader, const json& from, RunDocument* run) {
  supply::RunStats& stats = run->report.stats;
  supply::Totals& totals = stats.totals;
  run->program = reader.text(from, "program");
  const json& ddr = reader.object(from, "ddr");
  run->ddr_budget_bytes = reader.number(ddr, "budget_bytes");
  if (reader.has(ddr, "budget_from")) run->ddr_budget_from = reader.text(ddr, "budget_from");
  stats.ddr_used = reader.number(ddr, "used_bytes");
  totals.allocations_ddr = reader.number(ddr, "allocations");
  const json& cxl = reader.object(from, "cxl");
  run->cxl_budget_bytes = reader.number(cxl, "budget_bytes");
  if (reader.has(cxl, "budget_from")) run->cxl_budget_from = reader.text(cxl, "budget_from");
  totals.allocations_cxl = reader.number(cxl, "allocations");
  stats.leased_bytes = reader.number(cxl, "leased_bytes");
  stats.leases_granted = reader.number(cxl, "leases_granted");
  stats.leases_released = reader.number(cxl, "leases_released");
  stats.leased_bytes_peak = reader.number(cxl, "leased_bytes_peak");
  totals.allocations_detached = reader.number(reader.object(from, "detached"), "allocations");
  const json& forks = reader.object(from, "forks");
  totals.forks_switched = reader.number(forks, "switched_private");
  totals.switched_bytes = reader.number(forks, "switched_bytes");
  totals.forks_failed = reader.number(forks, "refused");
  totals.folded_bytes = reader.number(forks, "folded_bytes");
  totals.folds = reader.number(forks, "folds");
  totals.during_fork = reader.number(forks, "allocations_meanwhile");
  const json& migration = reader.object(from, "migration");
  run->policy = reader.text(migration, "policy");
  run->obstacle = reader.text(migration, "obstacle");
  totals.processes_moved = reader.number(migration, "processes");
  totals.promotions = reader.number(migration, "promotions");
  totals.demotions = reader.number(migration, "demotions");
  if (reader.has(migration, "leases_left")) totals.leases_left = reader.number(migration, "leases_left");
  if (reader.has(migration, "left_bytes")) totals.left_bytes = reader.number(migration, "left_bytes");
  totals.moves_undone = reader.number(migration, "undone");
  totals.moves_skipped = reader.number(migration, "skipped");
  totals.stalled_ns = reader.number(migration, "stalled_us") % (UINT64_MAX / 1000) * 1000;
  totals.copy_ns = reader.number(migration, "copied_us") % (UINT64_MAX / 1000) * 1000;
  totals.sampler_ns = reader.number(migration, "sampler_us") % (UINT64_MAX / 1000) * 1000;
  totals.processes = reader.number(from, "processes");
  stats.peak_live_bytes = reader.number(from, "peak_live_bytes");
  totals.fallbacks = reader.number(from, "fallbacks");
  totals.refused = reader.number(from, "refused");
}

uint64_t per_second(uint64_t before, uint64_t now, uint64_t over_ns) {
  if (now <= before || over_ns == 0) return 0;
  return static_cast<uint64_t>(static_cast<double>(now - before) * 1e9 / static_cast<double>(over_ns) + 0.5);
}

void set_rates(const MemoryReport& before, uint64_t over_ns, MemoryReport* now) {
  now->promotions_per_s = per_second(before.promotions, now->promotions, over_ns);
  now->demotions_per_s = per_second(before.demotions, now->demotions, over_ns);
  now->copy_bytes_per_s = per_second(before.promoted_bytes, now->promoted_bytes, over_ns) +
                          per_second(before.demoted_bytes, now->demoted_bytes, over_ns);
}

}  // namespace

uint64_t RunDocument::running_processes() const {
  return static_cast<uint64_t>(std::count_if(report.processes.begin(), report.processes.end(),
                                             [](const ProcessReport& one) { return one.running; }));
}

double held_over_live(const MemoryReport& memory) {
  const uint64_t live = memory.live_bytes();
  return live == 0 ? 0 : static_cast<double>(memory.held_bytes()) / static_cast<double>(live);
}

double external_fragmentation(const MemoryReport& memory) {
  if (memory.free_bytes == 0) return -1;
  return 1 - static_cast<double>(std::min(memory.longest_free_bytes, memory.free_bytes)) /
                 static_cast<double>(memory.free_bytes);
}

void set_rates(const RunDocument& before, RunDocument* now) {
  const uint64_t over_ns = now->written_ns - std::min(now->written_ns, before.written_ns);
  now->interval_ns = over_ns;
  set_rates(before.report.sum, over_ns, &now->report.sum);
  std::map<pid_t, const MemoryReport*> known;
  for (const ProcessReport& one : before.report.processes)
    if (one.running) known[one.pid] = &one.memory;
  for (ProcessReport& one : now->report.processes)
    if (const auto at = known.find(one.pid); one.running && at != known.end())
      set_rates(*at->second, over_ns, &one.memory);
}

nlohmann::json to_json(const RunDocument& run) {
  json document = summary_json(run);
  document["run"] = {{"pid", run.pid},
                     {"uid", run.uid},
                     {"start_ticks", run.start_ticks},
                     {"command", run.command},
                     {"pool", run.pool.empty() ? json() : json(run.pool)},
                     {"fallback", run.fallback},
                     {"other_processes", run.report.other_processes},
                     {"other_bytes", run.report.other_bytes},
                     {"running", run.running},
                     {"processes_running", run.running_processes()},
                     {"elapsed_ns", run.elapsed_ns},
                     {"written_ns", run.written_ns},
                     {"interval_ns", run.interval_ns}};
  document["memory"] = memory_json(run.report.sum, any_room_known(run.report));
  document["peak_bytes"] = run.report.peak_live_bytes;
  document["size_classes"] = classes_json(run.report.classes);
  document["small_unknown"] = run.report.small_unknown;
  document["process_list"] = json::array();
  for (const ProcessReport& process : run.report.processes)
    document["process_list"].push_back(process_json(process));
  document["processes_left_out"] = run.report.processes_left_out;
  document["leases"] = json::array();
  for (const supply::LeaseReport& lease : run.report.leases) document["leases"].push_back(lease_json(lease));
  return document;
}

Result<RunDocument> run_from_json(const std::string& text) {
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object())
    return Error{.code = ErrorCode::corrupt, .where = report_where, .detail = "is no JSON object"};
  Reader reader;
  RunDocument run;
  read_summary(reader, document, &run);
  const json& about = reader.object(document, "run");
  run.pid = static_cast<int>(std::min<uint64_t>(reader.number(about, "pid"), INT32_MAX));
  run.uid = static_cast<uint32_t>(std::min<uint64_t>(reader.number(about, "uid"), UINT32_MAX));
  run.start_ticks = reader.number(about, "start_ticks");
  run.command = reader.text(about, "command");
  if (!reader.any(about, "pool").is_null()) run.pool = reader.text(about, "pool");
  if (reader.has(about, "other_processes"))
    run.report.other_processes = reader.number(about, "other_processes");
  if (reader.has(about, "other_bytes")) run.report.other_bytes = reader.number(about, "other_bytes");
  if (reader.has(about, "fallback")) run.fallback = reader.flag(about, "fallback");
  run.running = reader.flag(about, "running");
  if (const json& code = reader.any(document, "exit_code"); code.is_number_integer())
    run.exit_code = static_cast<int>(code.get<int64_t>() & 0xff);
  run.elapsed_ns = reader.number(about, "elapsed_ns");
  run.written_ns = reader.number(about, "written_ns");
  run.interval_ns = reader.number(about, "interval_ns");
  run.report.sum = read_memory(reader, reader.object(document, "memory"));
  run.report.peak_live_bytes = reader.number(document, "peak_bytes");
  run.report.classes = read_classes(reader, reader.list(document, "size_classes"));
  run.report.small_unknown = reader.number(document, "small_unknown");
  for (const json& from : reader.list(document, "process_list")) {
    if (!reader.fine()) break;
    run.report.processes.push_back(read_process(reader, from));
  }
  run.report.processes_left_out = reader.number(document, "processes_left_out");
  for (const json& from : reader.list(document, "leases")) {
    if (!reader.fine()) break;
    run.report.leases.push_back(read_lease(reader, from));
  }
  if (!reader.fine()) return Error{.code = ErrorCode::corrupt, .where = report_where, .detail = reader.fault()};
  return run;
}

}  // namespace terrace::cli
