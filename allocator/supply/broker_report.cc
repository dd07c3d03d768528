// SPDX-License-Identifier: Apache-2.0
// What the broker tells of a run: the control page, the leases and what is remembered, put together.

#include <algorithm>

#include "allocator/supply/broker.h"
#include "core/base/clock.h"
#include "core/base/kernel_clock.h"

namespace terrace::supply {
namespace {

MemoryReport sum_of(const std::vector<ProcessReport>& processes) {
  MemoryReport sum;
  for (const ProcessReport& process : processes) sum.add(process.memory);
  return sum;
}

std::vector<SizeClassReport> classes_of(const std::vector<ProcessReport>& processes) {
  std::vector<SizeClassReport> classes;
  for (const ProcessReport& process : processes) add_classes(process.classes, &classes);
  return classes;
}

}  // namespace

uint64_t Broker::leased_by(pid_t pid) {
  uint64_t bytes = 0;
  for (const Segment& segment : segments_)
    if (segment.owner == pid && segment.index < segments_max) bytes += segment.lease->bytes();
  return bytes;
}

void Broker::note_end(const Slot& slot, const ProcessStatistics& page) {
  note_peak();
  const auto pid = static_cast<pid_t>(slot.pid);
  history_.note_ended(slot, page, leased_by(pid), monotonic_ns());
}

std::vector<ProcessReport> Broker::describe_running() {
  std::vector<ProcessReport> running;
  const uint64_t now = monotonic_ns();
  for (uint32_t i = 0; i < slots_max; ++i) {
    if (control_->pid(i) == 0) continue;
    const Slot slot = control_->read(i);
    if (slot.pid == 0) continue;
    const auto pid = static_cast<pid_t>(slot.pid);
    const ProcessStatistics page = control_->read_statistics(i);
    running.push_back(describe_process(slot, page, history_.small_of(pid), leased_by(pid), now));
    if (const auto at = outside_.find(pid); at != outside_.end())
      running.back().memory.outside_bytes = at->second;
    running.back().name = history_.name_of(pid, page);
    running.back().can_start =
        std::any_of(fronts_.begin(), fronts_.end(), [&](const Front& front) { return front.owner == pid; });
  }
  std::sort(running.begin(), running.end(),
            [](const ProcessReport& one, const ProcessReport& other) { return one.pid < other.pid; });
  return running;
}

void Broker::note_peak() {
  const std::vector<ProcessReport> running = describe_running();
  history_.note_live(sum_of(running).live_bytes(), classes_of(running));
}

RunReport Broker::report() {
  MutexLock lock(mutex_);
  RunReport report;
  report.stats = stats_locked();
  report.other_processes = other_processes_;
  report.other_bytes = other_bytes_;
  report.processes = describe_running();
  report.sum = sum_of(report.processes);
  report.sum.add(history_.ended_counters());
  report.classes = classes_of(report.processes);
  add_classes(history_.ended_classes(), &report.classes);
  report.peak_live_bytes = history_.peak_bytes();
  std::vector<SizeClassReport> peak = history_.peak_classes();
  for (SizeClassReport& one : peak) {
    one.bytes_at_peak = one.bytes;
    one.blocks = one.bytes = one.allocations = 0;
  }
  add_classes(peak, &report.classes);
  report.small_unknown = static_cast<uint64_t>(std::count_if(report.processes.begin(), report.processes.end(),
                                                             [](const auto& one) { return !one.small_known; }));
  for (const Segment& segment : segments_) {
    LeaseReport lease{.id = segment.lease->id().value,
                      .label = segment.label,
                      .owner = segment.owner,
                      .owner_name = segment.owner_name,
                      .bytes = segment.lease->bytes(),
                      .live_bytes = 0};
    for (uint32_t i = 0; i < slots_max && segment.index < segments_max; ++i) {
      if (control_->pid(i) != static_cast<uint32_t>(segment.owner)) continue;
      const Slot slot = control_->read(i);
      const ProcessStatistics page = control_->read_statistics(i);
      const bool moves =
          static_cast<uint32_t>(slot.migration_state) == static_cast<uint32_t>(MigrationState::running) &&
          page.tiers_ns != 0;
      lease.live_bytes =
          std::min(moves ? page.live_in_segment[segment.index] : slot.segment_live[segment.index], lease.bytes);
    }
    report.leases.push_back(std::move(lease));
  }
  report.processes.insert(report.processes.end(), history_.ended().begin(), history_.ended().end());
  report.processes_left_out = history_.left_out();
  return report;
}

}  // namespace terrace::supply
