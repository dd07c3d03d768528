// SPDX-License-Identifier: Apache-2.0
// When a process of the manager dies, and what of it is seen afterwards: nothing. A crash inside of a turn of the
// loop ends the process once the turn is over; until then each seam asks here before it lets anything out or in.
//
// Place     tests/sim/engine. One for each process.
#pragma once

#include "tests/sim/environment.h"

namespace terrace::sim {

class Fate {
 public:
  explicit Fate(Environment& environment) : environment_(environment) {}

  bool over() const { return where_ != nullptr; }
  const char* where() const { return where_; }
  // By chance it dies here. True when it is dead, also since earlier. `seldom`: at places that are many.
  bool strikes(const char* where, uint32_t seldom = 1) {
    const uint32_t rate = environment_.faults().crash_point_per_10000;
    if (!over() && rate != 0 && environment_.prng().chance(rate, 10'000 * uint64_t{seldom})) where_ = where;
    return over();
  }

  void end(const char* where) {
    if (!over()) where_ = where;
  }

  // While it is buried, work that was under way is cut off: so many calls of memory are done as a whole, the next
  // one in part, and the rest never comes.
  enum class Cut : uint8_t { whole, part, nothing };
  bool cutting() const { return cutting_; }
  void cut_after(uint64_t calls) { cutting_ = true, calls_left_ = calls + 1; }
  Cut next_cut() {
    if (calls_left_ == 0) return Cut::nothing;
    return --calls_left_ == 0 ? Cut::part : Cut::whole;
  }

 private:
  Environment& environment_;
  const char* where_ = nullptr;
  bool cutting_ = false;
  uint64_t calls_left_ = 0;  // the one that is cut included
};

}  // namespace terrace::sim
