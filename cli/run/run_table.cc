// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_table.h"

#include <algorithm>

#include "cli/show/describe.h"
#include "cli/terminal/output.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

using supply::MemoryReport;
using supply::ProcessReport;
using supply::SizeClassReport;

constexpr size_t classes_shown_max = 24;

std::string processes_text(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " process" : " processes");
}

std::string ratio_text(const MemoryReport& memory) {
  const double held = held_over_live(memory);
  return held <= 0 ? "-" : fixed(held, 2);
}

std::string share_text(const MemoryReport& memory, bool known) {
  const double external = external_fragmentation(memory);
  return !known || external < 0 ? "-" : fixed(external * 100, 0) + "%";
}

// Requests that found no room in the window: refused, or served elsewhere.
std::string full_text(const MemoryReport& memory) {
  return std::to_string(memory.refused + memory.fallbacks);
}

std::string rate_text(uint64_t bytes_per_s) {
  return bytes_per_s == 0 ? "0" : format_size(bytes_per_s) + "/s";
}

bool room_known(const supply::RunReport& report) {
  return std::any_of(report.processes.begin(), report.processes.end(),
                     [](const ProcessReport& one) { return one.running && one.room_known; });
}

std::string reasons(const std::array<uint64_t, supply::full_reasons>& counts) {
  std::string text;
  for (uint32_t i = 0; i < supply::full_reasons; ++i)
    if (counts[i] != 0)
      text += (text.empty() ? " (" : ", ") + std::to_string(counts[i]) + " " + supply::full_reason_name(i);
  return text.empty() ? text : text + ")";
}

std::string class_name(const SizeClassReport& one) {
  if (!one.large) return exact_size(one.bytes_min);
  return exact_size(one.bytes_min) + " to " + exact_size(one.bytes_max + 4096);
}

// The widest that fits: each table has its columns in the order of their importance.
struct Column {
  const char* title;
  int importance;  // 0: always there
};

constexpr size_t last_columns = 14;  // that the last one should have beside its title

std::string fitted(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows,
                   size_t width) {
  int most = 0;
  for (const Column& column : columns) most = std::max(most, column.importance);
  std::string text;
  for (int keep = most; keep >= 0; --keep) {
    std::vector<std::string> titles;
    std::vector<std::vector<std::string>> cells(rows.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].importance > keep) continue;
      titles.emplace_back(columns[i].title);
      for (size_t row = 0; row < rows.size(); ++row) cells[row].push_back(rows[row][i]);
    }
    text = format_table(titles, cells);
    if (width == 0 || text.find('\n') + last_columns <= width) break;
  }
  return text;
}

// A program by its name, not by its whole path: that is what lines are too short for.
std::string short_command(const std::string& command) {
  const size_t end = std::min(command.find(' '), command.size());
  const size_t slash = command.rfind('/', end);
  return slash == std::string::npos || slash + 1 >= end ? command : command.substr(slash + 1);
}

// Cuts lines at the edge; a character of several bytes is not cut in two.
std::string cut_to(const std::string& text, size_t columns, size_t rows) {
  std::string out;
  size_t at = 0, line = 0;
  while (at < text.size() && (rows == 0 || line < rows)) {
    size_t end = std::min(text.find('\n', at), text.size());
    size_t width = 0, stop = at;
    while (stop < end && (columns == 0 || width < columns)) {
      ++stop;
      while (stop < end && (static_cast<unsigned char>(text[stop]) & 0xc0) == 0x80) ++stop;
      ++width;
    }
    out += text.substr(at, stop - at) + "\n";
    at = end + 1;
    ++line;
  }
  return out;
}

std::string indented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out += "  " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

std::string process_state(const ProcessReport& process) {
  if (!process.running) return "ended";
  switch (process.migration) {
    case supply::MigrationState::not_started: return "still";
    case supply::MigrationState::running: return "moves";
    case supply::MigrationState::stopped: return "stopped";
    case supply::MigrationState::forked: return "forked";
  }
  return "still";
}

constexpr size_t still_lines_max = 8;

// Why memory of running processes does not move: a line a reason, with those that it holds for.
std::string still_lines(const std::vector<ProcessReport>& processes) {
  std::vector<std::pair<std::string, std::string>> lines;  // reason, processes
  for (const ProcessReport& process : processes) {
    if (!process.running || process.why_still.empty()) continue;
    const std::string who = process.name + "[" + std::to_string(process.pid) + "]";
    const auto at = std::find_if(lines.begin(), lines.end(),
                                 [&](const auto& one) { return one.first == process.why_still; });
    if (at == lines.end())
      lines.emplace_back(process.why_still, who);
    else if (at->second.size() < 100)
      at->second += " " + who;
    else if (at->second.back() != '.')
      at->second += " ...";
  }
  if (lines.size() > still_lines_max) lines.resize(still_lines_max);
  std::string text;
  for (const auto& [reason, who] : lines) text += "does not move: " + reason + ": " + who + "\n";
  return text;
}

std::string process_rows(const supply::RunReport& report, size_t width) {
  static const std::vector<Column> columns = {{"PID", 0},     {"PROGRAM", 0}, {"MEMORY", 5},    {"DDR", 1},
                                              {"CXL", 1},     {"LIVE", 0},    {"HELD/LIVE", 3}, {"OUTSIDE", 3},
                                              {"FREE", 6},    {"BROKEN", 4},  {"PROMO/S", 2},   {"DEMO/S", 2},
                                              {"COPYING", 2}, {"FULL", 3}};
  std::vector<ProcessReport> processes = report.processes;
  std::stable_sort(processes.begin(), processes.end(), [](const auto& one, const auto& other) {
    return one.running != other.running ? one.running : one.memory.live_bytes() > other.memory.live_bytes();
  });
  std::vector<std::vector<std::string>> rows;
  for (const ProcessReport& process : processes) {
    const MemoryReport& memory = process.memory;
    rows.push_back({std::to_string(process.pid), process.name, process_state(process),
                    format_size(memory.live_ddr + memory.live_detached), format_size(memory.live_cxl),
                    format_size(memory.live_bytes()), ratio_text(memory), format_size(memory.outside_bytes),
                    process.room_known ? format_size(memory.free_bytes) : "-",
                    share_text(memory, process.room_known), std::to_string(memory.promotions_per_s),
                    std::to_string(memory.demotions_per_s), rate_text(memory.copy_bytes_per_s),
                    full_text(memory)});
  }
  return fitted(columns, rows, width) + still_lines(processes);
}

std::string class_rows(const supply::RunReport& report, size_t most) {
  std::vector<SizeClassReport> classes = report.classes;
  std::erase_if(classes, [](const auto& one) { return one.bytes == 0 && one.bytes_at_peak == 0; });
  const size_t all = classes.size();
  if (classes.size() > most) {
    // Those with the most bytes, in the order of their sizes.
    std::vector<SizeClassReport> largest = classes;
    std::nth_element(largest.begin(), largest.begin() + static_cast<long>(most), largest.end(),
                     [](const auto& one, const auto& other) { return one.bytes > other.bytes; });
    const uint64_t least = largest[most].bytes;
    std::erase_if(classes, [&](const auto& one) { return one.bytes <= least; });
  }
  std::vector<std::vector<std::string>> rows;
  for (const SizeClassReport& one : classes)
    rows.push_back({class_name(one), one.large ? "pages" : "small", std::to_string(one.blocks),
                    format_size(one.bytes), format_size(one.bytes_at_peak),
                    one.large ? std::to_string(one.allocations) : "-"});
  std::string text = format_table({"BLOCKS OF", "KIND", "LIVE", "BYTES", "AT PEAK", "ALLOCATED"}, rows);
  if (classes.size() < all)
    text += std::to_string(all - classes.size()) + " more with fewer bytes are left out\n";
  return text;
}

std::string lease_rows(const supply::RunReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const supply::LeaseReport& lease : report.leases)
    rows.push_back({std::to_string(lease.id), or_dash(lease.label),
                    lease.owner_name + "[" + std::to_string(lease.owner) + "]", format_size(lease.bytes),
                    format_size(lease.live_bytes)});
  return format_table({"LEASE", "LABEL", "OWNER", "SIZE", "IN USE"}, rows);
}

std::string budget_text(uint64_t bytes, const std::string& from) {
  return format_size(bytes) + (from == "machine" ? " (half of what was available)"
                               : from == "pool"  ? " (what the pool had left)"
                                                 : "");
}

std::string used_of(uint64_t used, uint64_t all) {
  return format_size(used) + "/" + format_size(all);
}

}  // namespace

std::string process_table(const supply::RunReport& report) {
  return process_rows(report, 0);
}

std::string class_table(const supply::RunReport& report) {
  return class_rows(report, SIZE_MAX);
}

std::string run_summary(const RunDocument& run) {
  const supply::RunReport& report = run.report;
  const supply::RunStats& stats = report.stats;
  const MemoryReport& sum = report.sum;
  const std::string room = room_known(report) ? format_size(sum.free_bytes) + ", the longest piece " +
                                                    format_size(sum.longest_free_bytes) + "; " +
                                                    share_text(sum, true) + " of it is in other pieces"
                                              : "not known yet";
  std::string text = "terrace run[" + std::to_string(run.pid) + "] " + run.command + "\n";
  text += format_block(
      {{"processes",
        std::to_string(run.running_processes()) + " with memory of the run, " +
            std::to_string(stats.totals.processes - std::min(stats.totals.processes, run.running_processes())) +
            " ended"},
       {"DDR", format_size(stats.ddr_used) + " of " + budget_text(run.ddr_budget_bytes, run.ddr_budget_from) +
                   "; " + format_size(sum.live_ddr) + " in use"},
       {"CXL", format_size(stats.leased_bytes) + " leased of " +
                   budget_text(run.cxl_budget_bytes, run.cxl_budget_from) + "; " + format_size(sum.live_cxl) +
                   " in use"},
       {"live", format_size(sum.live_bytes()) + ": " + format_size(sum.large_bytes) + " in large blocks, " +
                    (sum.mapped_bytes == 0 ? "" : format_size(sum.mapped_bytes) + " in mappings, ") +
                    format_size(sum.small_bytes) + " in small ones" +
                    (report.small_unknown == 0
                         ? ""
                         : " (by their extents in " + processes_text(report.small_unknown) + ")") +
                    "; " + format_size(sum.plain_bytes) + " of plain memory"},
       {"held", format_size(sum.held_bytes()) + ", " + ratio_text(sum) + " times what is live"},
       {"outside", format_size(sum.outside_bytes) + " of its processes in neither budget" +
                       (report.other_processes == 0
                            ? ""
                            : ", and " + format_size(report.other_bytes) + " of " +
                                  processes_text(report.other_processes) + " that do not use them")},
       {"free room", room},
       {"moved", count_text(sum.promotions, "promotion") + ", " + count_text(sum.demotions, "demotion") + "; " +
                     rate_text(sum.copy_bytes_per_s) + " lately" +
                     (stats.totals.leases_left == 0
                          ? ""
                          : "; " + format_size(stats.totals.left_bytes) + " out of " +
                                count_text(stats.totals.leases_left, "lease") + " taken back")},
       {"no room", std::to_string(sum.refused) + " refused" + reasons(sum.refused_by) + ", " +
                       std::to_string(sum.fallbacks) + " to plain memory" + reasons(sum.fallbacks_by)}});
  if (!report.leases.empty()) text += lease_rows(report);
  if (!report.processes.empty()) text += process_table(report);
  if (!report.classes.empty()) text += class_rows(report, classes_shown_max);
  return text;
}

std::string top_table(std::vector<RunView> runs, const TopShape& shape) {
  static const std::vector<Column> columns = {{"RUN", 0},    {"USER", 1},    {"STATE", 3},     {"PROCS", 4},
                                              {"DDR", 0},    {"CXL", 0},     {"LIVE", 0},      {"PROMO/S", 2},
                                              {"DEMO/S", 2}, {"COPYING", 2}, {"HELD/LIVE", 4}, {"BROKEN", 5},
                                              {"FULL", 3},   {"COMMAND", 0}};
  std::stable_sort(runs.begin(), runs.end(), [](const RunView& one, const RunView& other) {
    return one.run.report.sum.live_bytes() > other.run.report.sum.live_bytes();
  });
  std::vector<std::vector<std::string>> rows;
  for (const RunView& view : runs) {
    const RunDocument& run = view.run;
    const supply::RunStats& stats = run.report.stats;
    const MemoryReport& sum = run.report.sum;
    const std::string state = view.state == RunState::runs
                                  ? run_state_name(view.state)
                                  : std::string(run_state_name(view.state)) + " " +
                                        format_duration(view.age_ns / ns_per_s * ns_per_s);
    rows.push_back({std::to_string(run.pid), shape.users ? std::to_string(run.uid) : "-", state,
                    std::to_string(run.running_processes() + run.report.processes_left_out),
                    used_of(stats.ddr_used, run.ddr_budget_bytes), used_of(sum.live_cxl, stats.leased_bytes),
                    format_size(sum.live_bytes()), std::to_string(sum.promotions_per_s),
                    std::to_string(sum.demotions_per_s), rate_text(sum.copy_bytes_per_s), ratio_text(sum),
                    share_text(sum, room_known(run.report)), full_text(sum), short_command(run.command)});
  }
  std::vector<Column> used = columns;
  if (!shape.users) {
    used.erase(used.begin() + 1);
    for (auto& row : rows) row.erase(row.begin() + 1);
  }
  std::string text = fitted(used, rows, shape.columns == 0 ? 0 : shape.columns);
  if (shape.processes || shape.classes) {
    for (const RunView& view : runs) {
      if (view.state == RunState::reported) continue;  // it tells sums only
      text += "\n" + std::to_string(view.run.pid) + " " + view.run.command + "\n";
      if (shape.processes && !view.run.report.processes.empty())
        text += indented(process_rows(view.run.report, shape.columns == 0 ? 0 : shape.columns - 2));
      if (view.run.report.processes_left_out > 0 && shape.processes)
        text += "  " + processes_text(view.run.report.processes_left_out) + " of less memory left out\n";
      if (shape.classes) text += indented(class_rows(view.run.report, classes_shown_max));
      if (shape.classes && view.run.report.small_unknown > 0)
        text += "  small blocks of " + processes_text(view.run.report.small_unknown) +
                " are not told yet, or not the run's\n";
    }
  }
  return cut_to(text, shape.columns, shape.rows);
}

}  // namespace terrace::cli
