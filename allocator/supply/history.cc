// SPDX-License-Identifier: Apache-2.0
#include "allocator/supply/history.h"

#include <algorithm>
#include <cstring>

namespace terrace::supply {
namespace {

// What goes on counting after the end: events, not what is held.
MemoryReport counters_of(const MemoryReport& from) {
  MemoryReport counters;
  for (uint64_t MemoryReport::*field :
       {&MemoryReport::peak_live, &MemoryReport::allocations_ddr, &MemoryReport::allocations_cxl,
        &MemoryReport::allocations_detached, &MemoryReport::refused, &MemoryReport::fallbacks,
        &MemoryReport::fallback_bytes, &MemoryReport::during_fork, &MemoryReport::promotions,
        &MemoryReport::demotions, &MemoryReport::promoted_bytes, &MemoryReport::demoted_bytes})
    counters.*field = from.*field;
  counters.refused_by = from.refused_by;
  counters.fallbacks_by = from.fallbacks_by;
  return counters;
}

}  // namespace

void RunHistory::note_running(pid_t pid, const std::string& name, const ProcessStatistics& page) {
  Known& known = known_[pid];
  if (name != "?" || known.name.empty()) known.name = name;
  if (!small_classes_are_complete(page)) return;
  known.small = page;
  known.small_whole = true;
}

void RunHistory::note_ended(const Slot& slot, const ProcessStatistics& page, uint64_t leased_bytes,
                            uint64_t now_ns) {
  const auto pid = static_cast<pid_t>(slot.pid);
  ProcessReport last = describe_process(slot, page, small_of(pid), leased_bytes, now_ns);
  last.name = name_of(pid, page);
  last.running = false;
  counters_.add(counters_of(last.memory));
  std::vector<SizeClassReport> happened = last.classes;
  std::erase_if(happened, [](const SizeClassReport& one) { return one.allocations == 0; });
  for (SizeClassReport& one : happened) one.blocks = one.bytes = 0;
  add_classes(happened, &classes_);
  const auto at = std::upper_bound(ended_.begin(), ended_.end(), last, [](const auto& one, const auto& other) {
    return one.memory.peak_live > other.memory.peak_live;
  });
  ended_.insert(at, std::move(last));
  if (ended_.size() > ended_max) {
    ended_.pop_back();
    ++left_out_;
  }
  known_.erase(pid);
}

void RunHistory::keep_only(const std::vector<pid_t>& running) {
  std::erase_if(known_, [&](const auto& entry) {
    return std::find(running.begin(), running.end(), entry.first) == running.end();
  });
}

void RunHistory::note_live(uint64_t live_bytes, const std::vector<SizeClassReport>& classes) {
  if (live_bytes <= peak_bytes_) return;
  peak_bytes_ = live_bytes;
  peak_classes_ = classes;
}

std::string RunHistory::name_of(pid_t pid, const ProcessStatistics& page) const {
  const auto at = known_.find(pid);
  if (at != known_.end() && at->second.name != "?") return at->second.name;
  std::string name(page.program, ::strnlen(page.program, sizeof(page.program)));
  for (char& byte : name)
    if (static_cast<unsigned char>(byte) < 0x20 || static_cast<unsigned char>(byte) > 0x7e) byte = '?';
  return name.empty() ? "?" : name;
}

const ProcessStatistics* RunHistory::small_of(pid_t pid) const {
  const auto at = known_.find(pid);
  return at == known_.end() || !at->second.small_whole ? nullptr : &at->second.small;
}

}  // namespace terrace::supply
