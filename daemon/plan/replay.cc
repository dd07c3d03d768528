// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/replay.h"

#include <algorithm>
#include <optional>
#include <queue>

#include "core/base/units.h"
#include "daemon/plan/memory.h"

namespace terrace::plan {
namespace {

struct Host {
  Memory memory;
  uint64_t cpu_milli_used = 0;
  uint64_t gpu_milli_used = 0;
};

// A request that was served, until it ends.
struct Running {
  uint64_t end_s = 0;
  uint64_t order = 0;  // equal ends in the order of the starts
  size_t request = 0;
  size_t host = 0;
  LeaseId local;  // not valid: no memory of that kind
  LeaseId pool;

  bool operator>(const Running& other) const {
    return std::pair(end_s, order) > std::pair(other.end_s, other.order);
  }
};

// Where a request goes, in granules.
struct Split {
  size_t host = 0;
  uint64_t local = 0;
  uint64_t pool = 0;
};

class Replay {
 public:
  Replay(const Trace& trace, const Setup& setup, const ReplayOptions& options)
      : trace_(trace), setup_(setup), options_(options) {}

  Status prepare();
  Outcome run();

 private:
  uint64_t granules_of(uint64_t bytes) const {
    return (bytes + setup_.granule_bytes - 1) / setup_.granule_bytes;
  }
  uint64_t pool_share_max(uint64_t granules) const {
    return static_cast<uint64_t>(static_cast<double>(granules) * setup_.pool_fraction_max + 1e-9);
  }
  bool admits(const Host& host, const Request& request) const;
  // The hosts' choice for a request of which `local` granules must be there; nullopt: none has them.
  std::optional<size_t> host_for(const Request& request, uint64_t local) const;
  std::optional<size_t> emptiest_host(const Request& request) const;
  std::optional<Split> plan_when_full(const Request& request, uint64_t granules) const;
  std::optional<Split> plan_even(const Request& request, uint64_t granules) const;
  // Takes both parts or neither.
  Status take(const Split& split, uint64_t now_ns, Running& running);

  void start(size_t index);
  void reject(const Request& request, Refusal why);
  void end_until(uint64_t time_s);
  void end(const Running& running);
  void look(uint64_t time_s);
  void weigh_samples();
  void check();

  const Trace& trace_;
  const Setup& setup_;
  const ReplayOptions& options_;
  std::vector<Host> hosts_;
  std::optional<Memory> pool_;
  uint64_t local_used_ = 0;  // granules
  uint64_t median_granules_ = 1;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
  Outcome outcome_;
  double free_at_refusals_ = 0;
};

Status Replay::prepare() {
  constexpr uint64_t hosts_max = 100'000;
  if (setup_.hosts == 0 || setup_.hosts > hosts_max || setup_.granule_bytes == 0) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "replay",
                 .detail = "a plan needs 1 to 100000 hosts and a granule, not " + std::to_string(setup_.hosts) +
                           " hosts with granules of " + format_size(setup_.granule_bytes)};
  }
  for (uint64_t index = 0; index < setup_.hosts; ++index) {
    TERRACE_ASSIGN_OR_RETURN(Memory memory, Memory::create({.name = "host",
                                                            .capacity_bytes = setup_.local_bytes,
                                                            .granule_bytes = setup_.granule_bytes}));
    hosts_.push_back(Host{.memory = std::move(memory)});
  }
  TERRACE_ASSIGN_OR_RETURN(pool_, Memory::create({.name = "pool",
                                                  .capacity_bytes = setup_.pool_bytes,
                                                  .granule_bytes = setup_.granule_bytes,
                                                  .devices = setup_.pool_devices}));
  median_granules_ = std::max<uint64_t>(1, granules_of(request_bytes_at(trace_, 500)));
  return {};
}

bool Replay::admits(const Host& host, const Request& request) const {
  const bool cpu =
      setup_.host_cpu_milli == 0 || host.cpu_milli_used + request.cpu_milli <= setup_.host_cpu_milli;
  const bool gpu =
      setup_.host_gpu_milli == 0 || host.gpu_milli_used + request.gpu_milli <= setup_.host_gpu_milli;
  return cpu && gpu;
}

std::optional<size_t> Replay::host_for(const Request& request, uint64_t local) const {
  std::optional<size_t> best;
  for (size_t index = 0; index < hosts_.size(); ++index) {
    const uint64_t free = hosts_[index].memory.free_granules();
    if (free < local || !admits(hosts_[index], request)) continue;
    if (best.has_value()) {
      const uint64_t best_free = hosts_[*best].memory.free_granules();
      if (setup_.placement == Placement::best_fit ? free >= best_free : free <= best_free) continue;
    }
    best = index;
  }
  return best;
}

std::optional<size_t> Replay::emptiest_host(const Request& request) const {
  std::optional<size_t> best;
  for (size_t index = 0; index < hosts_.size(); ++index) {
    if (!admits(hosts_[index], request)) continue;
    if (best.has_value() && hosts_[index].memory.free_granules() <= hosts_[*best].memory.free_granules())
      continue;
    best = index;
  }
  return best;
}

std::optional<Split> Replay::plan_when_full(const Request& request, uint64_t granules) const {
  if (const auto host = host_for(request, granules)) return Split{.host = *host, .local = granules, .pool = 0};
  const auto host = emptiest_host(request);
  if (!host.has_value()) return std::nullopt;
  const uint64_t local = hosts_[*host].memory.free_granules();
  if (pool_->capacity_granules() == 0 || granules - local > pool_share_max(granules)) return std::nullopt;
  return Split{.host = *host, .local = local, .pool = granules - local};
}

std::optional<Split> Replay::plan_even(const Request& request, uint64_t granules) const {
  const double pool = static_cast<double>(pool_->capacity_granules());
  const double local = static_cast<double>(hosts_.size() * hosts_.front().memory.capacity_granules());
  if (pool == 0) return std::nullopt;
  const auto share = static_cast<uint64_t>(static_cast<double>(granules) * pool / (pool + local));
  const uint64_t from_pool = std::min(share, pool_share_max(granules));
  const auto host = host_for(request, granules - from_pool);
  if (!host.has_value()) return std::nullopt;
  return Split{.host = *host, .local = granules - from_pool, .pool = from_pool};
}

Status Replay::take(const Split& split, uint64_t now_ns, Running& running) {
  if (split.pool > 0) {
    TERRACE_ASSIGN_OR_RETURN(running.pool, pool_->take(split.pool, now_ns));
  }
  if (split.local > 0) {
    Result<LeaseId> local = hosts_[split.host].memory.take(split.local, now_ns);
    if (!local.ok()) {
      if (running.pool.valid()) pool_->give(running.pool, now_ns);
      running.pool = {};
      return std::move(local).error();
    }
    running.local = *local;
    local_used_ += split.local;
  }
  running.host = split.host;
  return {};
}

void Replay::reject(const Request& request, Refusal why) {
  ++outcome_.rejected;
  ++outcome_.refusals[static_cast<size_t>(why)];
  outcome_.rejected_bytes += request.bytes;
  const uint64_t local = hosts_.size() * hosts_.front().memory.capacity_granules();
  free_at_refusals_ += static_cast<double>((local - local_used_) * setup_.granule_bytes);
}

void Replay::start(size_t index) {
  const Request& request = trace_.requests[index];
  const uint64_t now_ns = request.start_s * ns_per_s;
  const uint64_t granules = granules_of(request.bytes);
  Running running{.end_s = request.end_s, .order = index, .request = index, .host = 0, .local = {}, .pool = {}};
  ++outcome_.requests;

  bool placed = false;
  if (setup_.spill == Spill::even) {
    const auto split = plan_even(request, granules);
    placed = split.has_value() && take(*split, now_ns, running).ok();
  }
  if (!placed) {
    const auto split = plan_when_full(request, granules);
    if (!split.has_value()) {
      return reject(request, emptiest_host(request).has_value() ? Refusal::local_full : Refusal::cpu_or_gpu);
    }
    if (!take(*split, now_ns, running).ok()) {
      // A part that is local only is refused when its host's free memory is in too many pieces for one lease.
      const bool full = pool_->free_granules() < split->pool;
      return reject(request, split->pool == 0 ? Refusal::local_full
                             : full           ? Refusal::pool_full
                                              : Refusal::pool_fragmented);
    }
  }
  hosts_[running.host].cpu_milli_used += request.cpu_milli;
  hosts_[running.host].gpu_milli_used += request.gpu_milli;
  if (running.pool.valid()) ++outcome_.spilled;
  running_.push(running);

  const uint64_t pool_used = pool_->capacity_granules() - pool_->free_granules();
  outcome_.local_peak_bytes = std::max(outcome_.local_peak_bytes, local_used_ * setup_.granule_bytes);
  outcome_.pool_peak_bytes = std::max(outcome_.pool_peak_bytes, pool_used * setup_.granule_bytes);
  outcome_.used_peak_bytes =
      std::max(outcome_.used_peak_bytes, (local_used_ + pool_used) * setup_.granule_bytes);
}

void Replay::end(const Running& running) {
  const Request& request = trace_.requests[running.request];
  const uint64_t now_ns = running.end_s * ns_per_s;
  Host& host = hosts_[running.host];
  if (running.local.valid()) {
    const uint64_t before = host.memory.free_granules();
    host.memory.give(running.local, now_ns);
    local_used_ -= host.memory.free_granules() - before;
  }
  if (running.pool.valid()) pool_->give(running.pool, now_ns);
  host.cpu_milli_used -= request.cpu_milli;
  host.gpu_milli_used -= request.gpu_milli;
}

void Replay::end_until(uint64_t time_s) {
  while (!running_.empty() && running_.top().end_s <= time_s) {
    const uint64_t at_s = running_.top().end_s;
    while (!running_.empty() && running_.top().end_s == at_s) {
      end(running_.top());
      running_.pop();
    }
    if (at_s < time_s) look(at_s);  // starts of the same second follow before its state is looked at
  }
}

void Replay::look(uint64_t time_s) {
  if (!options_.record) return;
  const uint64_t pool_free = pool_->free_granules();
  const uint64_t from_pool_max = std::min(pool_free, pool_share_max(median_granules_));
  uint64_t stranded = 0;
  for (const Host& host : hosts_) {
    const uint64_t free = host.memory.free_granules();
    // Cores and GPUs strand memory too: a host that has none left serves nobody who needs one.
    const bool no_cpu = setup_.host_cpu_milli != 0 && host.cpu_milli_used >= setup_.host_cpu_milli;
    const bool no_gpu = setup_.host_gpu_milli != 0 && host.gpu_milli_used >= setup_.host_gpu_milli;
    if (no_cpu || no_gpu || free + from_pool_max < median_granules_) stranded += free;
  }
  Sample sample;
  sample.time_s = time_s;
  sample.local_used_bytes = local_used_ * setup_.granule_bytes;
  sample.pool_used_bytes = (pool_->capacity_granules() - pool_free) * setup_.granule_bytes;
  sample.pool_largest_free_bytes = pool_->largest_free_run() * setup_.granule_bytes;
  sample.stranded_bytes = stranded * setup_.granule_bytes;
  sample.fragmentation = pool_->fragmentation();
  sample.alive = running_.size();
  sample.rejected = outcome_.rejected;
  if (!outcome_.samples.empty() && outcome_.samples.back().time_s == time_s) outcome_.samples.pop_back();
  outcome_.samples.push_back(sample);
}

// Means and percentiles over time; the last state has no length.
void Replay::weigh_samples() {
  std::vector<std::pair<double, uint64_t>> fragmentation;  // value, seconds
  double seconds = 0;
  double seconds_pool_used = 0;
  double stranded = 0;
  for (size_t index = 0; index < outcome_.samples.size(); ++index) {
    const Sample& sample = outcome_.samples[index];
    outcome_.stranded_peak_bytes = std::max(outcome_.stranded_peak_bytes, sample.stranded_bytes);
    if (index + 1 == outcome_.samples.size()) break;
    const uint64_t lasted_s = outcome_.samples[index + 1].time_s - sample.time_s;
    seconds += static_cast<double>(lasted_s);
    stranded += static_cast<double>(lasted_s) * static_cast<double>(sample.stranded_bytes);
    if (sample.pool_used_bytes == 0) continue;
    fragmentation.emplace_back(sample.fragmentation, lasted_s);
    seconds_pool_used += static_cast<double>(lasted_s);
  }
  if (seconds > 0) outcome_.stranded_mean_bytes = stranded / seconds;
  std::sort(fragmentation.begin(), fragmentation.end());
  double passed = 0;
  for (const auto& [value, lasted_s] : fragmentation) {
    if (passed < 0.5 * seconds_pool_used) outcome_.fragmentation_p50 = value;
    if (passed < 0.99 * seconds_pool_used) outcome_.fragmentation_p99 = value;
    passed += static_cast<double>(lasted_s);
  }
}

void Replay::check() {
  for (size_t index = 0; index < hosts_.size(); ++index) {
    for (const std::string& problem : hosts_[index].memory.check())
      outcome_.problems.push_back("host " + std::to_string(index) + ": " + problem);
  }
  for (const std::string& problem : pool_->check()) outcome_.problems.push_back("pool: " + problem);
}

Outcome Replay::run() {
  const std::vector<Request>& requests = trace_.requests;
  for (size_t index = 0; index < requests.size(); ++index) {
    end_until(requests[index].start_s);
    start(index);
    const bool last_of_second =
        index + 1 == requests.size() || requests[index + 1].start_s != requests[index].start_s;
    if (last_of_second) look(requests[index].start_s);
    if (options_.check_every != 0 && (index + 1) % options_.check_every == 0) check();
    if (outcome_.rejected > options_.rejected_max) break;
  }
  end_until(trace_.end_s);
  look(trace_.end_s);
  check();
  outcome_.pool_extents_max = pool_->extents_max();
  if (outcome_.rejected > 0) outcome_.free_at_refusal_bytes = free_at_refusals_ / double(outcome_.rejected);
  weigh_samples();
  return std::move(outcome_);
}

}  // namespace

Result<Outcome> replay(const Trace& trace, const Setup& setup, const ReplayOptions& options) {
  Replay run(trace, setup, options);
  TERRACE_RETURN_IF_ERROR(run.prepare());
  return run.run();
}

}  // namespace terrace::plan
