// SPDX-License-Identifier: Apache-2.0
// One question put to several heaps in turn, round by round, so that what else the machine does meets all of
// them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/malloc/parts.h"

namespace terrace::bench {

class InTurn {
 public:
  // `run` measures under one heap. A heap that failed is not asked again.
  InTurn(int rounds, const std::vector<Heap>& heaps, const std::function<Outcome(Heap)>& run);

  double middle(Heap heap) const;  // 0: no round was complete
  // The middle of the rounds' ratios. Nothing: one of the two failed; why() says which and how.
  std::optional<double> ratio(Heap of, Heap over) const;
  // The same by CPU time. Nothing: not measured.
  std::optional<double> ratio_by_cpu(Heap of, Heap over) const;
  // The middle of the rounds' differences.
  std::optional<double> difference(Heap of, Heap less) const;
  std::string why(Heap one, Heap other) const;
  const std::string& failure(Heap heap) const;

 private:
  bool both(Heap one, Heap other) const;
  using Figures = std::map<Heap, std::vector<double>>;
  std::optional<double> ratio_in(const Figures& figures, Heap of, Heap over) const;

  Figures figures_, by_cpu_;
  std::map<Heap, std::string> failures_;
};

// Under `key` in `peer`: memtier's figure over that of the whole heap, turned so that more is better for
// Terrace.
void compare_with_peer(const InTurn& runs, const std::string& key, bool less_is_better, Peer& peer);
void figure_or_missing(Report& report, const std::string& key, std::optional<double> value,
                       const std::string& why, Aim aim);

}  // namespace terrace::bench
