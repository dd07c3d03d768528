// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/numbers.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <memory>

#include "core/base/prng.h"
#include "tiering/sim/caches.h"

namespace terrace::tiering {
namespace {

double over(uint64_t part, uint64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Machine usual_machine() {
  return {.granule_bytes = uint64_t{2} << 20, .costs = {}, .look_ahead = 8};
}

Result<TiersimNumbers> measure_trace(const Trace& trace, const Machine& machine) {
  TiersimNumbers numbers;
  Machine by_history = machine;
  by_history.look_ahead = 0;
  struct Share {
    uint64_t percent;
    double TiersimNumbers::Hits::*hits;
  };
  using Hits = TiersimNumbers::Hits;
  for (const Share share : {Share{1, &Hits::at_1pct}, Share{5, &Hits::at_5pct}, Share{10, &Hits::at_10pct}}) {
    const uint64_t room = std::max<uint64_t>(trace.objects * share.percent / 100, 1);
    TERRACE_ASSIGN_OR_RETURN(const Outcome best, simulate(trace, "belady", room, by_history));
    uint64_t prefixes = 0, prefixes_of_arc = 0;
    struct Judged {
      std::string_view name;
      Hits* hits;
    };
    for (const Judged judged :
         {Judged{policies().front().name, &numbers.policy}, Judged{"prefix-order", &numbers.prefix_order},
          Judged{"arc", &numbers.arc}, Judged{"lru", &numbers.lru}}) {
      TERRACE_ASSIGN_OR_RETURN(const Outcome outcome, simulate(trace, judged.name, room, by_history));
      judged.hits->*share.hits = over(outcome.hits, best.hits);
      if (judged.hits == &numbers.prefix_order) prefixes = outcome.prefix_hits;
      if (judged.hits == &numbers.arc) prefixes_of_arc = outcome.prefix_hits;
    }
    numbers.prefixes_over_arc.*share.hits = over(prefixes, prefixes_of_arc);
  }
  const uint64_t room = std::max<uint64_t>(trace.objects * 5 / 100, 1);
  TERRACE_ASSIGN_OR_RETURN(const Outcome best, simulate(trace, "belady", room, machine));
  TERRACE_ASSIGN_OR_RETURN(const Outcome ahead, simulate(trace, policies().front().name, room, machine));
  numbers.stall_over_belady_5pct = ahead.memory_s / best.memory_s;
  return numbers;
}

Result<RivalNumbers> measure_rivals(const Trace& trace, const Machine& machine) {
  Machine by_history = machine;
  by_history.look_ahead = 0;
  RivalNumbers numbers{.over_best = 1e9};
  for (const uint64_t percent : {1, 5, 10}) {
    const uint64_t room = std::max<uint64_t>(trace.objects * percent / 100, 1);
    TERRACE_ASSIGN_OR_RETURN(const Outcome ours, simulate(trace, policies().front().name, room, by_history));
    uint64_t best = 0;
    for (const std::string_view name : cache_names()) {
      // The optimum is no rival, and prefix-order knows more than a policy does.
      if (name == "belady" || name == "prefix-order") continue;
      TERRACE_ASSIGN_OR_RETURN(const Outcome rival, simulate(trace, name, room, by_history));
      best = std::max(best, rival.hits);
      if (name == "lru" && ours.hits >= rival.hits)
        numbers.copied_over_lru =
            std::max(numbers.copied_over_lru, over(ours.bytes_copied, rival.bytes_copied));
    }
    numbers.over_best = std::min(numbers.over_best, over(ours.hits, best));
  }
  return numbers;
}

RivalNumbers worse_of(const RivalNumbers& one, const RivalNumbers& other) {
  return {.over_best = std::min(one.over_best, other.over_best),
          .copied_over_lru = std::max(one.copied_over_lru, other.copied_over_lru)};
}

Result<Trace> read_trace(const std::string& path, TraceFormat format) {
  constexpr size_t bytes_max = size_t{1} << 30;
  std::ifstream file(path, std::ios::binary);
  if (!file) return os_error(errno, "read_trace", "cannot read the trace " + path);
  std::string text;
  const auto part = std::make_unique<char[]>(1 << 16);
  while (file.read(part.get(), 1 << 16) || file.gcount() > 0) {
    text.append(part.get(), static_cast<size_t>(file.gcount()));
    if (text.size() > bytes_max)
      return Error{.code = ErrorCode::limit_exceeded,
                   .where = "read_trace",
                   .detail = "the trace " + path + " has more than 1 GiB; cut it"};
  }
  if (file.bad()) return os_error(errno, "read_trace", "cannot read the trace " + path + " (is it a file?)");
  return parse_trace(text, format, path);
}

double plan_ns_per_granule(size_t granule_count) {
  constexpr uint64_t second_ns = 1'000'000'000;
  std::vector<Granule> granules(granule_count);
  std::vector<uint32_t> scratch(granule_count);
  std::vector<Move> moves(1024);
  const auto memory = std::make_unique<PolicyMemory>();
  const PolicyEntry& policy = policies().front();
  Prng prng(1);
  uint64_t now_ns = second_ns, in_ddr = 0;
  for (Granule& granule : granules) {
    granule.residency = prng.chance(1, 4) ? Residency::ddr : Residency::cxl;
    in_ddr += granule.residency == Residency::ddr ? 1 : 0;
  }
  std::vector<double> took;
  for (int round = 0; round < 15; ++round) {
    now_ns += second_ns;
    const uint64_t hot_begin = prng.below(granule_count);  // it jumps: every plan has moves to find
    for (size_t at = 0; at < granule_count / 10; ++at)
      note_access(granules[(hot_begin + prng.below(granule_count / 8 + 1)) % granule_count], *memory, now_ns,
                  1);
    const PlanInput input{.now_ns = now_ns,
                          .granules = granules,
                          .granule_bytes = uint64_t{2} << 20,
                          .ddr_granules = in_ddr,
                          .ddr_granules_max = in_ddr,
                          .cxl_free_granules = granule_count,
                          .moves_max = moves.size(),
                          .costs = {},
                          .cxl_bandwidth_use = 0};
    const auto begin = std::chrono::steady_clock::now();
    const size_t count = policy.plan(input, *memory, scratch, moves);
    took.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count());
    for (size_t at = 0; at < count; ++at) {
      granules[moves[at].granule].residency = moves[at].to;
      in_ddr += moves[at].to == Residency::ddr ? 1 : -1;
    }
  }
  return *std::min_element(took.begin() + 5, took.end()) /
         static_cast<double>(std::max<size_t>(granule_count, 1));
}

}  // namespace terrace::tiering
