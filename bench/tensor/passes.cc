// SPDX-License-Identifier: Apache-2.0
#include "bench/tensor/passes.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench/tensor/disk.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

// By touching its bytes alone: the processor had other work, or an access waited.
uint64_t work_overran_ns = 0;

}  // namespace

void populate(int fd, uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) die("cannot map a lease");
  ::madvise(at, bytes, MADV_HUGEPAGE);
  if (::madvise(at, bytes, MADV_POPULATE_WRITE) != 0) die("not enough memory for this size");
  ::munmap(at, bytes);
}

void work_until(uint64_t begin_ns, double seconds) {
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  if (const uint64_t now = monotonic_ns(); now > end_ns) work_overran_ns += now - end_ns;
  const timespec until{.tv_sec = static_cast<time_t>(end_ns / ns_per_s),
                       .tv_nsec = static_cast<long>(end_ns % ns_per_s)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void missing(const std::string& key, const std::string& why, nlohmann::json& out) {
  std::printf("%s: missing: %s\n", key.c_str(), why.c_str());
  out[key] = nullptr;
  out[key + "_missing"] = why;
}

PassSizes pass_sizes(const Sizes& sizes) {
  if (!sizes.smoke) return {};
  PassSizes small;
  small.layers = 12;
  small.layer_bytes = 8 * mib;
  small.ddr_bytes = 48 * mib;
  small.settle_steps = 3;
  small.steps = 1;
  small.compute_over_copies = {1};
  return small;
}

PassPool::PassPool(const PassSizes& sizes) : session(8 * gib) {
  LeaseRequest request;
  request.bytes = sizes.layers * sizes.layer_bytes;
  auto lease = must(session.grant(request), "grant");
  populate(lease->fd(), lease->bytes());
  TensorPoolOptions options;
  options.session = &session;
  options.name = "bench";
  options.ddr_bytes = sizes.ddr_bytes;
  options.copy_bytes_per_s_max = sizes.copy_bytes_per_s;
  options.guard_wait = GuardWait::always;
  pool = must(TensorPool::make(options, {lease}), "pool");
}

std::shared_ptr<Tensor> PassPool::tensor(const std::string& name, uint64_t bytes, TensorHint hint) {
  return must(pool->create({.name = name, .dtype = DType::u64, .shape = {bytes / 8}, .hint = hint}), "tensor");
}

double measure_copy_bytes_per_s(PassPool& pool, std::span<const std::shared_ptr<Tensor>> tensors) {
  const auto copied = [&] {
    const TensorPoolStatistics statistics = pool.pool->statistics();
    return statistics.copied_to_ddr_bytes + statistics.copied_to_cxl_bytes;
  };
  // All asked for at once: the pool's thread goes from one to the next.
  const auto to = [&](Tier tier) {
    std::vector<std::shared_ptr<MoveHandle>> moves;
    for (const auto& tensor : tensors) moves.push_back(must(tensor->move_to(tier), "move_to"));
    for (const auto& move : moves)
      if (const Status moved = move->wait(600 * ns_per_s); !moved.ok()) die(moved.error().to_string());
  };
  pool.pool->range().pause();  // no order is known yet: its policy would copy, too
  to(Tier::cxl);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const uint64_t before = copied();
    const uint64_t begin = monotonic_ns();
    to(Tier::ddr);
    to(Tier::cxl);
    best = std::max(best, static_cast<double>(copied() - before) / seconds_since(begin));
  }
  pool.pool->range().resume();
  return best;
}

placement::Use use_of(PassPool& pool, const Tensor& tensor) {
  const uint64_t granule = pool.pool->range().granule_bytes();
  const auto offset = static_cast<uint64_t>(tensor.data() - pool.pool->range().bytes().data());
  const auto first = static_cast<uint32_t>(offset / granule);
  return {.first = first,
          .count = static_cast<uint32_t>((offset + tensor.bytes().size() - 1) / granule) - first + 1};
}

void measure_passes(const std::string& key, const PassSizes& sizes, PassPool& pool,
                    const std::vector<placement::Use>& cycle, uint32_t layer_uses, double copy_bytes_per_s,
                    const std::function<void(double)>& step, nlohmann::json& out) {
  const uint64_t granule = pool.pool->range().granule_bytes();
  const auto granules = static_cast<uint32_t>(pool.pool->range().bytes().size() / granule);
  const uint64_t fetches =
      placement::belady_fetches(cycle, granules, static_cast<uint32_t>(sizes.ddr_bytes / granule));
  out[key + "_copy_mib_per_s"] = copy_bytes_per_s / static_cast<double>(mib);
  out[key + "_bound_copied_mib"] = 2 * fetches * granule / mib;
  double worst = 0;
  for (const double share : sizes.compute_over_copies) {
    const double compute_s = 2.0 * static_cast<double>(fetches * granule) / copy_bytes_per_s * share;
    for (int i = 0; i < sizes.settle_steps; ++i) step(compute_s / layer_uses);
    const TensorPoolStatistics before = pool.pool->statistics();
    std::vector<double> times;
    work_overran_ns = 0;
    for (int i = 0; i < sizes.steps; ++i) {
      const uint64_t begin = monotonic_ns();
      step(compute_s / layer_uses);
      times.push_back(seconds_since(begin));
    }
    const TensorPoolStatistics after = pool.pool->statistics();
    const uint64_t copied = after.copied_to_ddr_bytes + after.copied_to_cxl_bytes - before.copied_to_ddr_bytes -
                            before.copied_to_cxl_bytes;
    if (before.step_state != StepState::following || after.step_state != StepState::following ||
        before.orders_forgotten != after.orders_forgotten)
      return missing(key, "the order was not followed: guards did not wait", out);
    const double elapsed = median(times);
    // On a machine with other work the steps may have copied faster than was measured alone.
    const double fastest = *std::min_element(times.begin(), times.end());
    const double bandwidth =
        std::max(copy_bytes_per_s, static_cast<double>(copied) / static_cast<double>(sizes.steps) / fastest);
    const double copy_s = 2.0 * static_cast<double>(fetches * granule) / bandwidth;
    const double bound = std::max(compute_s, copy_s);
    worst = std::max(worst, elapsed / bound);
    std::printf(
        "%s: compute %.2f s, copies %.2f s (%.0f MiB/s): a step %.2f s, %.3f of the bound; copied %.0f MiB a "
        "step (at least %.0f), waited %.2f s a step (%llu guards gave up), work overran by %.2f s a step, "
        "copying %.0f MiB/s flat out\n",
        key.c_str(), compute_s, copy_s, bandwidth / static_cast<double>(mib), elapsed, elapsed / bound,
        static_cast<double>(copied / mib) / sizes.steps, 2.0 * static_cast<double>(fetches * granule / mib),
        static_cast<double>(after.guard_wait_ns - before.guard_wait_ns) / 1e9 / sizes.steps,
        static_cast<unsigned long long>(after.guard_waits_given_up - before.guard_waits_given_up),
        static_cast<double>(work_overran_ns) / 1e9 / sizes.steps,
        static_cast<double>(copied) / static_cast<double>(mib) * 1e9 /
            static_cast<double>(after.copy_ns - before.copy_ns));
    std::fflush(stdout);
    char name[32];
    std::snprintf(name, sizeof(name), "_compute_%.2f", share);
    out[key + name] = elapsed / bound;
    out[key + name + "_copied_mib"] = copied / mib / static_cast<uint64_t>(sizes.steps);
    out[key + name + "_work_overran_s"] = static_cast<double>(work_overran_ns) / 1e9 / sizes.steps;
    out[key + name + "_guards_gave_up"] = after.guard_waits_given_up - before.guard_waits_given_up;
  }
  std::printf("%-28s %.3f   to reach: at most 1.15\n", key.c_str(), worst);
  out[key] = worst;
}

}  // namespace terrace::bench
