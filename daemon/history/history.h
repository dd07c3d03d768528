// SPDX-License-Identifier: Apache-2.0
// An hour of what the manager was: how full its pools were and what it did, a moment every ten seconds, in memory.
//
// Bounded: the oldest moment goes when a new one would be too many, and a moment has only so many pools.
//
// Pure. history_watch.h looks; Admin.history and the console show.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/base/units.h"

namespace terrace::daemon {

inline constexpr uint64_t history_interval_ns = 10 * ns_per_s;
inline constexpr size_t history_moments_max = 360;
inline constexpr size_t history_pools_max = 64;  // with all moments some 3 MiB

struct PoolMoment {
  std::string name;
  uint64_t capacity_bytes = 0, free_bytes = 0, leased_bytes = 0, scrubbing_bytes = 0, quarantined_bytes = 0;
  uint64_t absent_bytes = 0;
  uint64_t leases = 0, waiting = 0;
};

struct Moment {
  uint64_t at_ns = 0;
  uint64_t grants = 0, commands = 0, commits = 0;  // since the start of the process
  std::vector<PoolMoment> pools = {};
};

class History {
 public:
  explicit History(size_t moments_max = history_moments_max, size_t pools_max = history_pools_max)
      : moments_max_(moments_max), pools_max_(pools_max) {}

  // Of pools beyond the bound the last ones are left out. A moment that is not newer than the last is not taken.
  void add(Moment moment);
  const std::deque<Moment>& moments() const { return moments_; }  // the oldest first
  // Each name once, in the order in which it was first seen.
  std::vector<std::string> pool_names() const;

 private:
  const size_t moments_max_, pools_max_;
  std::deque<Moment> moments_;
};

// What `moment` has of the pool; null: it was not there then.
const PoolMoment* find_pool(const Moment& moment, const std::string& name);

}  // namespace terrace::daemon
