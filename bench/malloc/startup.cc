// SPDX-License-Identifier: Apache-2.0
// What the library adds to programs that start and end, and the sum of what the peer costs.
#include <algorithm>
#include <filesystem>

#include "bench/malloc/in_turn.h"
#include "core/base/units.h"

namespace terrace::bench {

void measure_startup(const Sizes& sizes, Report& report, Peer& peer) {
  Supply supply(gib, 0);
  const int rounds = sizes.smoke ? 5 : 31;
  struct Program {
    const char* key;
    std::vector<std::string> words;
    double aim_ms;
  };
  const Program programs[] = {{"python_startup_ms", {"/usr/bin/python3", "-c", "pass"}, 5},
                              {"true_startup_ms", {"/bin/true"}, 2}};
  for (const Program& program : programs) {
    const std::string key = std::string(program.key) + "_over_plain";
    if (!std::filesystem::exists(program.words.front())) {
      report.missing(key, "no " + program.words.front() + " here", at_most(program.aim_ms));
      continue;
    }
    InTurn runs(rounds, {Heap::glibc, Heap::whole, Heap::memtier}, [&](Heap heap) {
      Outcome outcome = run_program(program.words, environment_for(heap, &supply), 30);
      outcome.figure = outcome.took_ms;
      return outcome;
    });
    compare_with_peer(runs, program.key, true, peer);
    figure_or_missing(report, key, runs.difference(Heap::whole, Heap::glibc),
                      runs.why(Heap::whole, Heap::glibc), at_most(program.aim_ms));
    for (Heap heap : {Heap::glibc, Heap::whole, Heap::memtier})
      report.detail(std::string(program.key) + "_" + name_of(heap), runs.middle(heap));
  }
}

void report_peer(const Peer& peer, Report& report) {
  report.detail("memkind_memtier_ratio_by", peer.ratios);
  if (!peer.failures.empty()) report.detail("memkind_memtier_failures", peer.failures);
  if (peer.ratios.empty()) {
    report.missing("memkind_memtier_ratio", peer.failures.empty() ? "not run" : peer.failures.begin()->second,
                   at_least(1));
    return;
  }
  auto worst = std::min_element(peer.ratios.begin(), peer.ratios.end(),
                                [](const auto& one, const auto& other) { return one.second < other.second; });
  report.detail("memkind_memtier_ratio_worst", worst->first);
  report.figure("memkind_memtier_ratio", worst->second, at_least(1));
}

}  // namespace terrace::bench
