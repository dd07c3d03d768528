// SPDX-License-Identifier: Apache-2.0
// The engine as a whole on real memory: what the sampler costs, whether the hot set ends in DDR, whether it
// stops when there is nothing to gain.
#include <atomic>
#include <cstdio>
#include <numeric>
#include <thread>

#include "bench/tiering/support.h"
#include "tiering/hotness/sampler.h"

namespace terrace::bench {
namespace {

constexpr uint64_t granule_bytes = 2 * mib;

// GUPS: read-modify-write of random words; `hot_share` of the accesses go to the granules in `hot`.
class Gups {
 public:
  Gups(std::span<std::byte> memory, double hot_share, int threads) : memory_(memory), hot_share_(hot_share) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { run(static_cast<uint64_t>(i) + 1); });
  }
  ~Gups() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void set_hot(std::vector<uint32_t> hot) {
    hot_.store(std::make_shared<const std::vector<uint32_t>>(std::move(hot)));
  }
  // Of all threads, since the start.
  uint64_t operations() const { return operations_.load(); }
  double cpu_seconds() const { return static_cast<double>(cpu_us_.load()) / 1e6; }

 private:
  void run(uint64_t seed) {
    Random random{seed * 0x9e3779b97f4a7c15u};
    const uint64_t granules = memory_.size() / granule_bytes;
    const auto hot_below = static_cast<uint64_t>(hot_share_ * 65536);
    double cpu = thread_cpu_seconds();
    while (!stop_.load(std::memory_order_relaxed)) {
      auto hot = hot_.load();
      const uint64_t hot_count = hot == nullptr ? 0 : hot->size();
      for (int i = 0; i < 4096; ++i) {
        const uint64_t value = random.next();
        uint64_t granule = (value >> 16) % granules;
        if (hot_count > 0 && (value & 0xffff) < hot_below) granule = (*hot)[(value >> 16) % hot_count];
        auto* word = reinterpret_cast<uint64_t*>(memory_.data() + granule * granule_bytes) +
                     (value >> 40) % (granule_bytes / 8);
        std::atomic_ref<uint64_t>(*word).fetch_xor(value, std::memory_order_relaxed);
      }
      operations_.fetch_add(4096, std::memory_order_relaxed);
      const double now = thread_cpu_seconds();
      cpu_us_.fetch_add(static_cast<uint64_t>((now - cpu) * 1e6), std::memory_order_relaxed);
      cpu = now;
    }
  }

  std::span<std::byte> memory_;
  double hot_share_;
  std::atomic<std::shared_ptr<const std::vector<uint32_t>>> hot_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> operations_{0}, cpu_us_{0};
  std::vector<std::thread> threads_;
};

std::vector<uint32_t> choose(uint64_t granules, uint64_t count, uint64_t seed) {
  std::vector<uint32_t> all(granules);
  std::iota(all.begin(), all.end(), 0u);
  Random random{seed};
  for (uint64_t i = 0; i < count; ++i) std::swap(all[i], all[i + random.next() % (granules - i)]);
  all.resize(count);
  return all;
}

double share_in_ddr(TieredRange& range, const std::vector<uint32_t>& granules) {
  uint64_t there = 0;
  for (uint32_t granule : granules)
    there += range.tier_of(range.bytes().data() + granule * granule_bytes) == Tier::ddr ? 1 : 0;
  return 100.0 * static_cast<double>(there) / static_cast<double>(granules.size());
}

void sleep_s(double s) {
  std::this_thread::sleep_for(std::chrono::duration<double>(s));
}

struct Field {
  test::FakeSession session;
  std::unique_ptr<Tiering> tiering;
  std::unique_ptr<TieredRange> range;
  Field(uint64_t bytes, uint64_t ddr_bytes, uint64_t copy_budget, const char* name) : session(bytes) {
    tiering = must(Tiering::start({.session = nullptr, .copy_bytes_per_s_max = copy_budget}), "Tiering::start");
    range = must(tiering->make_range({.bytes = bytes, .ddr_bytes_max = ddr_bytes, .name = name},
                                     {make_lease(session, bytes)}),
                 "make_range");
    std::memset(range->bytes().data(), 1, bytes);
  }
};

void measure_hot_set(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t bytes = sizes.smoke ? 128 * mib : 2 * gib;
  const uint64_t granules = bytes / granule_bytes;
  Field field(bytes, bytes * 15 / 100, 2 * gib, "gups");
  Gups gups(field.range->bytes(), 0.9, 1);
  double shares[2] = {};
  for (int phase = 0; phase < 2; ++phase) {
    const auto hot = choose(granules, granules / 10, 77 + static_cast<uint64_t>(phase));
    gups.set_hot(hot);
    const double begin = seconds();
    while (seconds() < begin + sizes.settle_s) sleep_s(sizes.settle_s / 10);
    shares[phase] = share_in_ddr(*field.range, hot);
    const TieredRangeStatus status = field.range->status();
    std::printf(
        "GUPS, hot 10 %% of %s, DDR 15 %%: %.1f %% of the hot set in DDR %.0f s after %s (%llu up, %llu down, "
        "hit share %.1f %%)\n",
        format_size(bytes).c_str(), shares[phase], sizes.settle_s, phase == 0 ? "the start" : "a jump",
        static_cast<unsigned long long>(status.promotions), static_cast<unsigned long long>(status.demotions),
        status.ddr_hit_permille / 10.0);
  }
  out["hot_set_in_ddr_pct_start"] = shares[0];
  out["hot_set_in_ddr_pct_after_jump"] = shares[1];
  out["hot_set_in_ddr_pct"] = std::min(shares[0], shares[1]);
}

void measure_thrash(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t bytes = sizes.smoke ? 128 * mib : 2 * gib;
  const uint64_t budget = 2 * gib;
  Field field(bytes, bytes / 2, budget, "uniform");
  Gups gups(field.range->bytes(), 0, 1);
  sleep_s(sizes.settle_s);
  const TieredRangeStatus before = field.range->status();
  const double window_s = sizes.settle_s / 2, begin = seconds();
  sleep_s(window_s);
  const TieredRangeStatus after = field.range->status();
  const double moves =
      static_cast<double>(after.promotions + after.demotions - before.promotions - before.demotions) /
      (seconds() - begin);
  out["thrash_moves_per_s"] = moves;
  out["thrash_moves_over_budget"] = moves * granule_bytes / static_cast<double>(budget);
  std::printf(
      "uniform accesses, DDR 50 %%: %.2f moves a second after %.0f s, %.3f %% of the copy budget (%llu moves "
      "before)\n",
      moves, sizes.settle_s, 100 * moves * granule_bytes / static_cast<double>(budget),
      static_cast<unsigned long long>(before.promotions + before.demotions));
}

}  // namespace

void measure_sampler(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t bytes = sizes.smoke ? 64 * mib : gib;
  const double window_s = sizes.smoke ? 0.2 : 3;
  TwoFiles files(bytes, granule_bytes);
  tiering::Sampler sampler;
  if (int failed = sampler.open(&files.memory); failed != 0) {
    std::printf("sampler: skipped, no PAGEMAP_SCAN here (errno %d)\n", failed);
    out["skipped_sampler"] = "no PAGEMAP_SCAN";
    return;
  }
  std::memset(files.memory.base(), 1, bytes);
  const bool huge = in_huge_pages(files.memory.base(), bytes);
  tiering::PolicyMemory policy{};
  std::vector<double> overheads;
  Gups gups({reinterpret_cast<std::byte*>(files.memory.base()), bytes}, 0.9, 1);
  gups.set_hot(choose(bytes / granule_bytes, bytes / granule_bytes / 10, 5));
  auto rate = [&](bool sampled) {
    const uint64_t operations = gups.operations();
    const double cpu = gups.cpu_seconds(), begin = seconds();
    double sampler_cpu = thread_cpu_seconds();
    while (seconds() < begin + window_s) {
      if (sampled) {
        sampler.begin(tiering::monotonic_ns());
        sleep_s(static_cast<double>(sampler.due_ns()) / 1e9);
        sampler.finish(policy, tiering::monotonic_ns(), 0.15f);
      }
      sleep_s(std::min(1.0, window_s / 2));
    }
    sampler_cpu = sampled ? thread_cpu_seconds() - sampler_cpu : 0;
    return static_cast<double>(gups.operations() - operations) / (gups.cpu_seconds() - cpu + sampler_cpu);
  };
  rate(true);
  // Without, with, without: what drifts cancels.
  for (int round = 0; round < 2 * sizes.rounds; ++round) {
    const double before = rate(false), with = rate(true), after = rate(false);
    overheads.push_back(100 * (1 - with / ((before + after) / 2)));
  }
  out["sampler_overhead_pct"] = median(overheads);
  out["sampler_huge_pages"] = huge;
  std::printf("sampler, one sweep a second over %s in %s pages: %.2f %% fewer operations a CPU second\n",
              format_size(bytes).c_str(), huge ? "huge" : "small", median(overheads));
}

void measure_policy(const Sizes& sizes, nlohmann::json& out) {
  measure_hot_set(sizes, out);
  measure_thrash(sizes, out);
}

}  // namespace terrace::bench
