// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_figures.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/run/run_heat.h"
#include "core/base/limits.h"

namespace terrace::cli {
namespace {

// As the manager takes it.
std::string name_of_program(const std::string& called) {
  std::string name = called.substr(called.rfind('/') + 1).substr(0, limits::label_bytes_max);
  for (char& byte : name)
    if (static_cast<unsigned char>(byte) < 0x20 || static_cast<unsigned char>(byte) > 0x7e) byte = '?';
  return name.empty() ? "program" : name;
}

}  // namespace

namespace {

// The page of a process of this user, with its heap. `cells` may be null.
std::optional<TierRangeView> look_at_heap(pid_t pid, std::vector<uint8_t>* cells) {
  const std::string directory = layout::tier_page_directory + std::to_string(::geteuid());
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  const auto file = TierPageFile::open(fd.get(), directory, std::to_string(pid), ::geteuid(), TierAccess::read);
  if (!file.ok()) return std::nullopt;
  auto page = file->read();
  if (!page.ok()) return std::nullopt;
  for (TierRangeView& range : page->ranges) {
    if (range.name != "heap") continue;
    if (cells != nullptr && range.has_cells)
      if (auto read = file->cells(range); read.ok()) *cells = std::move(*read);
    return std::move(range);
  }
  return std::nullopt;
}

// Of the process whose heap is the largest of those that are sampled.
void add_heat(pid_t pid, RunFigures* figures) {
  std::vector<uint8_t> cells;
  const auto range = look_at_heap(pid, &cells);
  if (!range.has_value() || cells.empty()) return;
  HeatBands heat = heat_bands(range->granule_bytes() * range->numbers.granules_per_cell, cells);
  figures->bands = std::move(heat.bands);
  figures->band_bytes = heat.band_bytes;
}

}  // namespace

std::optional<TierRangeView> heap_range_of(pid_t pid) {
  return look_at_heap(pid, nullptr);
}

RunFigures figures_of(const RunDocument& run) {
  const supply::MemoryReport& sum = run.report.sum;
  RunFigures figures;
  figures.program = name_of_program(run.program);
  figures.processes = static_cast<uint32_t>(run.running_processes());
  figures.live_bytes = sum.live_bytes();
  figures.ddr_bytes = sum.ddr_bytes;
  figures.cxl_bytes = sum.live_cxl;
  figures.plain_bytes = sum.plain_bytes;
  figures.ddr_bytes_max = run.ddr_budget_bytes;
  figures.leased_bytes = sum.leased_bytes;
  figures.counters = {.promotions = sum.promotions,
                      .demotions = sum.demotions,
                      .promoted_bytes = sum.promoted_bytes,
                      .demoted_bytes = sum.demoted_bytes,
                      .stalled_ns = 0,
                      .refused = sum.refused,
                      .fallbacks = sum.fallbacks};
  return figures;
}

void RunTeller::add_engines(const RunDocument& run, RunFigures* figures) {
  std::map<pid_t, uint64_t> stalled;
  double hits = 0;
  uint64_t largest_bytes = 0;
  pid_t largest = 0;
  for (const supply::ProcessReport& process : run.report.processes) {
    if (!process.running || process.migration != supply::MigrationState::running) continue;
    const auto range = heap_range_of(process.pid);
    if (!range.has_value()) continue;
    const auto& numbers = range->numbers;
    stalled[process.pid] = numbers.stalled_ns;
    if (numbers.sweeps == 0) continue;
    const uint64_t bytes = numbers.ddr_bytes + numbers.cxl_bytes;
    figures->sampled_bytes += bytes;
    if (bytes > largest_bytes) {
      largest_bytes = bytes;
      largest = process.pid;
    }
    hits += static_cast<double>(bytes) * std::min<uint32_t>(numbers.ddr_hit_permille, 1000);
  }
  if (figures->sampled_bytes != 0)
    figures->ddr_hit_permille = static_cast<uint32_t>(hits / static_cast<double>(figures->sampled_bytes));
  if (largest != 0) add_heat(largest, figures);
  for (const auto& [pid, ns] : stalled_)
    if (const auto now = stalled.find(pid); now == stalled.end() || now->second < ns) stalled_before_ += ns;
  stalled_ = std::move(stalled);
  figures->counters.stalled_ns = stalled_before_;
  for (const auto& [pid, ns] : stalled_) figures->counters.stalled_ns += ns;
}

void RunTeller::tell(const RunDocument& run, bool last) {
  const bool has_leases = !run.report.leases.empty();
  const bool begins = has_leases && !had_leases_;
  if (!has_leases && !had_leases_ && !(last && told_ns_ != 0)) return;
  if (!begins && !last && has_leases && run.written_ns - told_ns_ < run_told_each_ns) return;
  const bool waits = last && session_.connected();
  // Answered after the reports before, which go the same way: one at a time.
  if (waits) [[maybe_unused]]
    const auto before = session_.leases();
  RunFigures figures = figures_of(run);
  add_engines(run, &figures);
  session_.report_run(figures);
  told_ns_ = run.written_ns;
  had_leases_ = has_leases || last;
  // And this one, before the session is closed.
  if (waits) [[maybe_unused]]
    const auto answered = session_.leases();
}

}  // namespace terrace::cli
