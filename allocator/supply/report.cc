// SPDX-License-Identifier: Apache-2.0
#include "allocator/supply/report.h"

#include <algorithm>

namespace terrace::supply {
namespace {

uint64_t plus(uint64_t one, uint64_t other) {
  uint64_t sum;
  return __builtin_add_overflow(one, other, &sum) ? UINT64_MAX : sum;
}

uint64_t times(uint64_t one, uint64_t other) {
  uint64_t product;
  return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

// A page may be half of two states: what went below zero is none.
uint64_t not_negative(uint64_t value) {
  return static_cast<int64_t>(value) < 0 ? 0 : value;
}

void describe_small(const ProcessStatistics& page, ProcessReport* report) {
  const uint64_t count = std::min<uint64_t>(page.small_count, small_classes_max);
  for (uint64_t i = 0; i < count; ++i) {
    const SmallClass& one = page.small[i];
    const std::vector<SizeClassReport> alone = {{.large = false,
                                                 .bytes_min = one.block_bytes,
                                                 .bytes_max = one.block_bytes,
                                                 .blocks = one.blocks,
                                                 .bytes = times(one.block_bytes, one.blocks),
                                                 .allocations = 0,
                                                 .bytes_at_peak = 0}};
    if (one.block_bytes != 0 && one.blocks != 0) add_classes(alone, &report->classes);
  }
}

void describe_large(const ProcessStatistics& page, ProcessReport* report) {
  for (uint32_t i = 0; i < large_classes_max; ++i) {
    const LargeClass& one = page.large[i];
    SizeClassReport line{.large = true,
                         .bytes_min = uint64_t{4096} << i,
                         .bytes_max = (uint64_t{8192} << i) - 4096,
                         .blocks = not_negative(one.allocations - one.frees),
                         .bytes = not_negative(one.bytes),
                         .allocations = one.allocations,
                         .bytes_at_peak = 0};
    report->memory.large_bytes = plus(report->memory.large_bytes, line.bytes);
    if (line.blocks != 0 || line.allocations != 0) add_classes({line}, &report->classes);
  }
}

bool before(const SizeClassReport& one, const SizeClassReport& other) {
  return one.bytes_min != other.bytes_min ? one.bytes_min < other.bytes_min : one.large < other.large;
}

}  // namespace

uint64_t MemoryReport::live_bytes() const {
  return plus(plus(large_bytes, mapped_bytes), small_bytes);
}

uint64_t MemoryReport::held_bytes() const {
  return plus(plus(ddr_bytes, leased_bytes), plain_bytes);
}

void MemoryReport::add(const MemoryReport& other) {
  for (uint64_t MemoryReport::*field :
       {&MemoryReport::live_ddr,        &MemoryReport::live_cxl,        &MemoryReport::live_detached,
        &MemoryReport::large_bytes,     &MemoryReport::mapped_bytes,    &MemoryReport::outside_bytes,
        &MemoryReport::extent_bytes,    &MemoryReport::plain_bytes,     &MemoryReport::small_bytes,
        &MemoryReport::ddr_bytes,       &MemoryReport::leased_bytes,    &MemoryReport::free_bytes,
        &MemoryReport::allocations_ddr, &MemoryReport::allocations_cxl, &MemoryReport::allocations_detached,
        &MemoryReport::refused,         &MemoryReport::fallbacks,       &MemoryReport::fallback_bytes,
        &MemoryReport::during_fork,     &MemoryReport::promotions,      &MemoryReport::demotions,
        &MemoryReport::promoted_bytes,  &MemoryReport::demoted_bytes,   &MemoryReport::promotions_per_s,
        &MemoryReport::demotions_per_s, &MemoryReport::copy_bytes_per_s})
    this->*field = plus(this->*field, other.*field);
  longest_free_bytes = std::max(longest_free_bytes, other.longest_free_bytes);
  peak_live = std::max(peak_live, other.peak_live);
  for (uint32_t i = 0; i < full_reasons; ++i) {
    refused_by[i] = plus(refused_by[i], other.refused_by[i]);
    fallbacks_by[i] = plus(fallbacks_by[i], other.fallbacks_by[i]);
  }
}

void add_classes(const std::vector<SizeClassReport>& from, std::vector<SizeClassReport>* to) {
  for (const SizeClassReport& one : from) {
    auto at = std::lower_bound(to->begin(), to->end(), one, before);
    if (at == to->end() || before(one, *at)) {
      to->insert(at, one);
      continue;
    }
    at->blocks = plus(at->blocks, one.blocks);
    at->bytes = plus(at->bytes, one.bytes);
    at->allocations = plus(at->allocations, one.allocations);
    at->bytes_at_peak = plus(at->bytes_at_peak, one.bytes_at_peak);
  }
}

bool small_classes_are_complete(const ProcessStatistics& page) {
  return page.small_ns != 0 && page.small_sequence % 2 == 0;
}

ProcessReport describe_process(const Slot& slot, const ProcessStatistics& page,
                               const ProcessStatistics* small_known_before, uint64_t leased_bytes,
                               uint64_t now_ns) {
  ProcessReport report;
  report.pid = static_cast<pid_t>(slot.pid);
  report.migration = static_cast<MigrationState>(static_cast<uint32_t>(slot.migration_state));
  report.end_reason = static_cast<EndReason>(slot.end_reason);
  report.forked_child = slot.parent_slot != no_slot || slot.inherited_bytes > 0;
  MemoryReport& memory = report.memory;
  memory.mapped_bytes = not_negative(page.mapped_bytes);
  memory.extent_bytes = not_negative(page.extent_bytes);
  memory.plain_bytes = not_negative(page.plain_bytes);
  describe_large(page, &report);
  const ProcessStatistics* small = small_classes_are_complete(page) ? &page : small_known_before;
  if (small != nullptr && small->small_ns != 0) {
    report.small_known = true;
    report.small_age_ns = now_ns - std::min(now_ns, small->small_ns);
    memory.small_bytes = small->small_bytes;
    memory.plain_bytes = not_negative(small->plain_bytes);
    describe_small(*small, &report);
  } else {
    memory.small_bytes = plus(memory.extent_bytes, memory.plain_bytes);
  }
  // Where granules move, arenas say where memory was first put.
  const bool moves = report.migration == MigrationState::running && page.tiers_ns != 0;
  memory.live_ddr = moves ? page.live_in_ddr : not_negative(slot.live_ddr);
  memory.live_cxl = moves ? page.live_in_cxl : not_negative(slot.live_cxl);
  memory.live_detached = not_negative(slot.live_detached);
  memory.ddr_bytes = plus(not_negative(slot.ddr_charged), not_negative(slot.inherited_charge));
  memory.leased_bytes = leased_bytes;
  report.room_known = page.heap_ns != 0;
  memory.free_bytes = page.free_bytes;
  memory.longest_free_bytes = std::min(page.longest_free_bytes, page.free_bytes);
  memory.peak_live = slot.peak_live;
  memory.allocations_ddr = slot.allocations_ddr;
  memory.allocations_cxl = slot.allocations_cxl;
  memory.allocations_detached = slot.allocations_detached;
  memory.refused = slot.refused;
  memory.fallbacks = slot.fallbacks;
  memory.fallback_bytes = page.fallback_bytes;
  memory.during_fork = slot.during_fork;
  std::copy(std::begin(page.refused_by), std::end(page.refused_by), memory.refused_by.begin());
  std::copy(std::begin(page.fallbacks_by), std::end(page.fallbacks_by), memory.fallbacks_by.begin());
  memory.promotions = slot.promotions;
  memory.demotions = slot.demotions;
  memory.promoted_bytes = page.promoted_bytes;
  memory.demoted_bytes = page.demoted_bytes;
  return report;
}

const char* full_reason_name(uint32_t reason) {
  switch (static_cast<FullReason>(reason)) {
    case FullReason::budgets: return "budgets";
    case FullReason::scattered: return "scattered";
    case FullReason::manager_away: return "manager_away";
    case FullReason::no_supervisor: return "no_supervisor";
    case FullReason::too_large: return "too_large";
  }
  return "unknown";
}

}  // namespace terrace::supply
