// SPDX-License-Identifier: Apache-2.0
// Memory with one fault, for a litmus run on fibers: a seed decides who goes on at each access.
//
// Threads   One; both sides are fibers.
#pragma once

#include <deque>
#include <functional>
#include <map>

#include "core/base/prng.h"
#include "core/litmus/memory.h"
#include "core/litmus/region.h"

namespace terrace::litmus {

enum class Fault : uint8_t {
  none,
  stale_loads,       // now and then a load gives what an earlier one of this side gave
  stores_reordered,  // a side's stores reach the memory in any order
  barrier_ignored,   // stores wait in a buffer, in order; a full barrier does not wait for it
  swap_divisible,    // others run between the load and the store of a compare-and-swap
  stores_lost,       // now and then a store is lost
  results_lost,      // what a side wrote down never arrives
};

// What one side sees of the region, which is the memory itself.
class FaultyMemory {
 public:
  FaultyMemory(Region& region, Fault fault, uint64_t seed, std::function<void()> turn)
      : region_(region), fault_(fault), prng_(seed), turn_(std::move(turn)) {}

  uint64_t load(const uint64_t* word);
  void store(uint64_t* word, uint64_t value);
  bool compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired);
  void full_barrier();
  void publish(const uint64_t* at, size_t bytes);
  void refresh(const uint64_t* at, size_t bytes);
  bool wait(uint64_t turn);
  void pause() { turn_(); }

 private:
  struct Store {
    uint64_t* word;
    uint64_t value;
  };
  bool is_tried(const uint64_t* word) const;  // x or y
  void drain(bool all);

  Region& region_;
  const Fault fault_;
  Prng prng_;
  std::function<void()> turn_;
  std::deque<Store> stores_;                     // not in the memory yet
  std::map<const uint64_t*, uint64_t> earlier_;  // what loads gave since the last refresh
};
static_assert(LitmusMemory<FaultyMemory>);

}  // namespace terrace::litmus
