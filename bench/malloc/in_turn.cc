// SPDX-License-Identifier: Apache-2.0
#include "bench/malloc/in_turn.h"

#include <cstdio>

namespace terrace::bench {

InTurn::InTurn(int rounds, const std::vector<Heap>& heaps, const std::function<Outcome(Heap)>& run) {
  for (Heap heap : heaps) {
    figures_[heap];
    by_cpu_[heap];
    if (heap != Heap::glibc && library_of(heap).empty())
      failures_[heap] = std::string("no library of ") + name_of(heap) + " here";
  }
  for (int round = 0; round < rounds; ++round)
    for (Heap heap : heaps) {
      if (failures_.count(heap) > 0) continue;
      Outcome outcome = run(heap);
      if (!outcome.why.empty()) {
        failures_[heap] = outcome.why;
        continue;
      }
      figures_[heap].push_back(outcome.figure);
      by_cpu_[heap].push_back(outcome.by_cpu);
    }
}

double InTurn::middle(Heap heap) const {
  auto found = figures_.find(heap);
  return found == figures_.end() ? 0 : median(found->second);
}

bool InTurn::both(Heap one, Heap other) const {
  return failures_.count(one) == 0 && failures_.count(other) == 0;
}

std::optional<double> InTurn::ratio(Heap of, Heap over) const {
  return ratio_in(figures_, of, over);
}

std::optional<double> InTurn::ratio_by_cpu(Heap of, Heap over) const {
  return ratio_in(by_cpu_, of, over);
}

std::optional<double> InTurn::ratio_in(const Figures& figures, Heap of, Heap over) const {
  if (!both(of, over)) return std::nullopt;
  std::vector<double> ratios;
  for (size_t i = 0; i < figures.at(of).size(); ++i)
    if (double below = figures.at(over)[i]; below > 0) ratios.push_back(figures.at(of)[i] / below);
  if (ratios.empty()) return std::nullopt;
  return median(ratios);
}

std::optional<double> InTurn::difference(Heap of, Heap less) const {
  if (!both(of, less)) return std::nullopt;
  std::vector<double> differences;
  for (size_t i = 0; i < figures_.at(of).size(); ++i)
    differences.push_back(figures_.at(of)[i] - figures_.at(less)[i]);
  return median(differences);
}

const std::string& InTurn::failure(Heap heap) const {
  static const std::string none;
  auto found = failures_.find(heap);
  return found == failures_.end() ? none : found->second;
}

std::string InTurn::why(Heap one, Heap other) const {
  std::string text;
  for (Heap heap : {one, other})
    if (!failure(heap).empty()) text += (text.empty() ? "" : "; ") + (name_of(heap) + (": " + failure(heap)));
  return text.empty() ? "nothing was measured" : text;
}

void compare_with_peer(const InTurn& runs, const std::string& key, bool less_is_better, Peer& peer) {
  auto ratio = less_is_better ? runs.ratio(Heap::memtier, Heap::whole) : runs.ratio(Heap::whole, Heap::memtier);
  if (ratio)
    peer.ratios[key] = *ratio;
  else
    peer.failures[key] = runs.why(Heap::memtier, Heap::whole);
}

void figure_or_missing(Report& report, const std::string& key, std::optional<double> value,
                       const std::string& why, Aim aim) {
  if (value)
    report.figure(key, *value, aim);
  else
    report.missing(key, why, aim);
}

}  // namespace terrace::bench
