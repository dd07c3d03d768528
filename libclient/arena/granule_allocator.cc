// SPDX-License-Identifier: Apache-2.0
#include "libclient/arena/granule_allocator.h"

#include <iterator>

#include "core/base/check.h"

namespace terrace::client {

GranuleAllocator::GranuleAllocator(uint64_t units, uint64_t base_units)
    : units_(units), base_units_(base_units) {
  TERRACE_CHECK(base_units <= UINT64_MAX - units, "a stretch that wraps around");
  if (units != 0) insert_free(0, units);
}

void GranuleAllocator::insert_free(uint64_t start, uint64_t length) {
  free_.emplace(start, length);
  by_length_.emplace(length, start);
  free_units_ += length;
}

void GranuleAllocator::erase_free(Runs::iterator run) {
  by_length_.erase({run->second, run->first});
  free_units_ -= run->second;
  free_.erase(run);
}

std::optional<uint64_t> GranuleAllocator::take(uint64_t units, uint64_t alignment_units) {
  TERRACE_CHECK(units != 0, "an empty run");
  TERRACE_CHECK(alignment_units != 0 && (alignment_units & (alignment_units - 1)) == 0, "no power of two");
  for (auto at = by_length_.lower_bound({units, 0}); at != by_length_.end(); ++at) {
    const auto [length, start] = *at;
    const uint64_t misalignment = (base_units_ + start) & (alignment_units - 1);
    const uint64_t lead = misalignment == 0 ? 0 : alignment_units - misalignment;
    if (lead > length - units) continue;  // long enough, but not from an aligned place
    erase_free(free_.find(start));
    if (lead != 0) insert_free(start, lead);
    const uint64_t tail = length - units - lead;
    if (tail != 0) insert_free(start + lead + units, tail);
    taken_.emplace(start + lead, units);
    return start + lead;
  }
  return std::nullopt;
}

std::optional<uint64_t> GranuleAllocator::give(uint64_t start) {
  const auto run = taken_.find(start);
  if (run == taken_.end()) return std::nullopt;
  const uint64_t length = run->second;
  taken_.erase(run);
  uint64_t free_start = start;
  uint64_t free_length = length;
  const auto after = free_.lower_bound(start);
  if (after != free_.begin()) {
    if (const auto before = std::prev(after); before->first + before->second == start) {
      free_start = before->first;
      free_length += before->second;
      erase_free(before);
    }
  }
  if (after != free_.end() && after->first == start + length) {
    free_length += after->second;
    erase_free(after);
  }
  insert_free(free_start, free_length);
  return length;
}

std::optional<uint64_t> GranuleAllocator::length_at(uint64_t start) const {
  const auto run = taken_.find(start);
  if (run == taken_.end()) return std::nullopt;
  return run->second;
}

std::string GranuleAllocator::check() const {
  uint64_t next = 0;
  uint64_t free_units = 0;
  bool previous_free = false;
  auto free = free_.begin();
  auto taken = taken_.begin();
  while (free != free_.end() || taken != taken_.end()) {
    const bool is_free = taken == taken_.end() || (free != free_.end() && free->first < taken->first);
    const auto& [start, length] = is_free ? *free++ : *taken++;
    if (start != next) return "A1: a gap or an overlap at unit " + std::to_string(next);
    if (length == 0) return "A1: an empty run at unit " + std::to_string(start);
    if (is_free && previous_free) return "A2: two free runs touch at unit " + std::to_string(start);
    if (is_free && by_length_.count({length, start}) == 0)
      return "A3: the free run at unit " + std::to_string(start) + " is not in the index";
    previous_free = is_free;
    if (is_free) free_units += length;
    next = start + length;
  }
  if (next != units_) return "A1: the runs end at unit " + std::to_string(next);
  if (by_length_.size() != free_.size()) return "A3: the index holds runs that are not free";
  if (free_units != free_units_) return "A3: the count of free units is wrong";
  return {};
}

}  // namespace terrace::client
