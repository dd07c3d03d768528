// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/simulate.h"

#include <algorithm>
#include <memory>

#include "tiering/sim/caches.h"

namespace terrace::tiering {
namespace {

Error bad(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "simulate", .detail = std::move(detail)};
}

uint64_t transfer_ns(uint64_t bytes, float bytes_per_s, float latency_ns) {
  return static_cast<uint64_t>(static_cast<double>(latency_ns) +
                               static_cast<double>(bytes) * 1e9 /
                                   static_cast<double>(std::max(bytes_per_s, 1.0f)));
}

struct Times {
  explicit Times(const Machine& machine)
      : ddr_ns(transfer_ns(machine.granule_bytes, machine.costs.ddr_bandwidth_bytes_per_s,
                           machine.costs.ddr_latency_ns)),
        cxl_ns(transfer_ns(machine.granule_bytes, machine.costs.cxl_bandwidth_bytes_per_s,
                           machine.costs.cxl_latency_ns)),
        move_ns(transfer_ns(machine.granule_bytes, machine.costs.copy_bytes_per_s,
                            machine.costs.move_overhead_ns)) {}
  uint64_t ddr_ns, cxl_ns, move_ns;
};

constexpr uint64_t start_ns = 1'000'000'000;  // the policies' zero means "never"

class Run {
 public:
  Run(const Trace& trace, const PolicyEntry& policy, uint64_t ddr_granules, const Machine& machine,
      const PolicyOptions& options)
      : trace_(trace),
        policy_(policy),
        machine_(machine),
        times_(machine),
        granules_(trace.objects),
        ready_ns_(trace.objects),
        scratch_(trace.objects),
        memory_(std::make_unique<PolicyMemory>()) {
    machine_.costs.access_bytes = static_cast<float>(machine.granule_bytes);
    memory_->options = options;
    outcome_ = {.policy = policy.name,
                .ddr_granules = ddr_granules,
                .uses = trace.uses.size(),
                .re_references = trace.re_references()};
    if (machine.look_ahead > 0) index_announcements();
  }

  Outcome run(const Tick& tick) {
    for (size_t at = 0; at < trace_.requests.size(); ++at) {
      now_ns_ = start_ns + trace_.requests[at].time_ns;
      carry_out_until(now_ns_);
      serve(trace_.requests[at]);
      announce(at);
      plan(at);
      if (tick && at % 64 == 0) tick(at);
    }
    outcome_.bytes_copied = (outcome_.promotions + outcome_.demotions) * machine_.granule_bytes;
    outcome_.memory_s = static_cast<double>(memory_ns_) * 1e-9;
    outcome_.stall_s = static_cast<double>(memory_ns_ - outcome_.uses * times_.ddr_ns) * 1e-9;
    return outcome_;
  }

 private:
  void serve(const TraceRequest& request) {
    bool prefix = true;
    uint64_t begin_ns = now_ns_;  // of the next object's turn: the request waits for one after the other
    for (const uint32_t object : trace_.uses_of(request)) {
      Granule& granule = granules_[object];
      const bool fresh = granule.residency == Residency::none;
      if (fresh) {
        const bool room = in_ddr_ < outcome_.ddr_granules;
        granule.residency = room ? Residency::ddr : Residency::cxl;
        in_ddr_ += room ? 1 : 0;
        outcome_.new_in_cxl += room ? 0 : 1;
        seen_ = std::max<size_t>(seen_, object + 1u);
      }
      uint64_t took_ns = granule.residency == Residency::ddr ? times_.ddr_ns : times_.cxl_ns;
      if (granule.residency == Residency::ddr && ready_ns_[object] > begin_ns)
        took_ns += ready_ns_[object] - begin_ns;
      const bool hit = !fresh && granule.residency == Residency::ddr;
      prefix = prefix && hit;
      outcome_.hits += hit ? 1 : 0;
      outcome_.prefix_hits += prefix ? 1 : 0;
      begin_ns += took_ns;
      note_access(granule, *memory_, now_ns_, 1);
    }
    memory_ns_ += begin_ns - now_ns_;
  }

  // For each use the next request that uses the same object, to be announced when that one is in the queue.
  void index_announcements() {
    next_request_.resize(trace_.uses.size());
    std::vector<uint32_t> seen(trace_.objects, UINT32_MAX);
    for (size_t at = trace_.requests.size(); at-- > 0;) {
      const TraceRequest& request = trace_.requests[at];
      for (uint32_t use = request.first; use < request.first + request.count; ++use) {
        next_request_[use] = seen[trace_.uses[use]];
        seen[trace_.uses[use]] = static_cast<uint32_t>(at);
      }
    }
  }

  // Request `at` has been served; `at + look_ahead` joins the queue, and with it what it will use.
  void announce(size_t at) {
    if (machine_.look_ahead == 0) return;
    const size_t last = std::min(at + machine_.look_ahead, trace_.requests.size() - 1);
    const TraceRequest& served = trace_.requests[at];
    for (uint32_t use = served.first; use < served.first + served.count; ++use) {
      const uint32_t next = next_request_[use];
      granules_[trace_.uses[use]].next_use_ns = next <= last ? start_ns + trace_.requests[next].time_ns : 0;
    }
    const size_t first = at == 0 ? 1 : at + machine_.look_ahead;
    for (size_t in_queue = first; in_queue <= last; ++in_queue) {
      for (const uint32_t object : trace_.uses_of(trace_.requests[in_queue])) {
        Granule& granule = granules_[object];
        if (granule.next_use_ns == 0) granule.next_use_ns = start_ns + trace_.requests[in_queue].time_ns;
      }
    }
  }

  void plan(size_t at) {
    const uint64_t until_ns =
        at + 1 < trace_.requests.size() ? start_ns + trace_.requests[at + 1].time_ns : now_ns_;
    const uint64_t time_left_ns = until_ns - std::min(until_ns, std::max(now_ns_, copying_until_ns_));
    uint64_t most = (time_left_ns + times_.move_ns - 1) / times_.move_ns;
    if (machine_.copy_budget_bytes_per_s != 0) {
      const double second =
          static_cast<double>(machine_.copy_budget_bytes_per_s) / static_cast<double>(machine_.granule_bytes);
      budget_ =
          std::min(budget_ + second * static_cast<double>(now_ns_ - budget_ns_) * 1e-9, std::max(second, 2.0));
      budget_ns_ = now_ns_;
      most = std::min(most, static_cast<uint64_t>(budget_));
    }
    moves_.resize(std::min<uint64_t>(most, 2 * seen_));
    const PlanInput input{.now_ns = now_ns_,
                          .granules = std::span(granules_).first(seen_),
                          .granule_bytes = machine_.granule_bytes,
                          .ddr_granules = in_ddr_,
                          .ddr_granules_max = outcome_.ddr_granules,
                          .cxl_free_granules = granules_.size(),
                          .moves_max = moves_.size(),
                          .costs = machine_.costs,
                          .cxl_bandwidth_use = 0};
    moves_.resize(policy_.plan(input, *memory_, std::span(scratch_).first(seen_), moves_));
    next_move_ = 0;
    copying_until_ns_ = std::max(copying_until_ns_, now_ns_);
  }

  void carry_out_until(uint64_t time_ns) {
    uint32_t done = 0, failed = 0;
    for (; next_move_ < moves_.size() && copying_until_ns_ < time_ns; ++next_move_) {
      const Move move = moves_[next_move_];
      Granule& granule = granules_[move.granule];
      const bool up = move.to == Residency::ddr;
      if (granule.residency == move.to || (up && in_ddr_ >= outcome_.ddr_granules)) {
        ++failed;
        continue;
      }
      copying_until_ns_ += times_.move_ns;
      granule.residency = move.to;
      in_ddr_ += up ? 1 : -1;
      ready_ns_[move.granule] = up ? copying_until_ns_ : 0;
      (up ? outcome_.promotions : outcome_.demotions) += 1;
      budget_ -= 1;
      ++done;
    }
    failed += static_cast<uint32_t>(moves_.size() - next_move_);
    report_outcome(*memory_, done, failed);
    moves_.clear();
  }

  const Trace& trace_;
  const PolicyEntry& policy_;
  Machine machine_;
  Times times_;
  std::vector<Granule> granules_;
  std::vector<uint64_t> ready_ns_;  // of what was promoted: when its copy is done
  std::vector<uint32_t> scratch_;
  std::vector<Move> moves_;
  std::vector<uint32_t> next_request_;
  std::unique_ptr<PolicyMemory> memory_;
  Outcome outcome_;
  uint64_t now_ns_ = 0;
  uint64_t memory_ns_ = 0;
  uint64_t copying_until_ns_ = 0;
  uint64_t budget_ns_ = start_ns;
  double budget_ = 0;
  uint64_t in_ddr_ = 0;
  size_t seen_ = 0;  // objects are numbered by first use: those below have bytes
  size_t next_move_ = 0;
};

Outcome run_cache(const Trace& trace, std::string_view name, Cache& cache, uint64_t ddr_granules,
                  const Machine& machine) {
  const Times times(machine);
  Outcome outcome{.policy = std::string(name),
                  .ddr_granules = ddr_granules,
                  .uses = trace.uses.size(),
                  .re_references = trace.re_references()};
  for (const TraceRequest& request : trace.requests) {
    bool prefix = true;
    for (const uint32_t object : trace.uses_of(request)) {
      const bool hit = cache.use(object);
      prefix = prefix && hit;
      outcome.hits += hit ? 1 : 0;
      outcome.prefix_hits += prefix ? 1 : 0;
    }
  }
  const uint64_t misses = outcome.re_references - outcome.hits;
  outcome.promotions = misses;
  outcome.demotions = cache.put_out();
  outcome.bytes_copied = (outcome.promotions + outcome.demotions) * machine.granule_bytes;
  outcome.stall_s = static_cast<double>(misses * (times.cxl_ns - std::min(times.cxl_ns, times.ddr_ns))) * 1e-9;
  outcome.memory_s = outcome.stall_s + static_cast<double>(outcome.uses * times.ddr_ns) * 1e-9;
  return outcome;
}

}  // namespace

std::vector<std::string_view> simulated_names() {
  std::vector<std::string_view> names;
  for (const PolicyEntry& entry : policies()) names.emplace_back(entry.name);
  for (const std::string_view name : cache_names()) names.push_back(name);
  return names;
}

Result<Outcome> simulate(const Trace& trace, std::string_view policy, uint64_t ddr_granules,
                         const Machine& machine, const PolicyOptions& options, const Tick& tick) {
  if (ddr_granules == 0) return bad("no granule fits in DDR; a larger share is needed");
  if (const PolicyEntry* entry = find_policy(policy); entry != nullptr)
    return Run(trace, *entry, ddr_granules, machine, options).run(tick);
  const std::unique_ptr<Cache> cache = make_cache(policy, trace, ddr_granules);
  if (cache == nullptr) return bad("no policy '" + std::string(policy) + "'");
  return run_cache(trace, policy, *cache, ddr_granules, machine);
}

}  // namespace terrace::tiering
