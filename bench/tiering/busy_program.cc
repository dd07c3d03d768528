// SPDX-License-Identifier: Apache-2.0
#include "bench/tiering/busy.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bench/tiering/support.h"

namespace terrace::bench {
namespace {

constexpr uint64_t granule_bytes = 2 * mib;
constexpr double look_every_cpu_s = 0.1;

// Shares of the accesses by granule, adding up to 1: a few hot ones at random places, or Zipf's law.
std::vector<double> make_weights(const BusyOptions& options, uint64_t seed) {
  const uint64_t count = options.granules;
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  Random random{seed * 0x9e3779b97f4a7c15u};
  for (uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  std::vector<double> weights(count);
  const auto hot = static_cast<uint64_t>(options.hot_granules * static_cast<double>(count));
  double sum = 0;
  for (uint64_t rank = 0; rank < count; ++rank) {
    double weight = 1 / std::pow(static_cast<double>(rank + 1), 0.99);
    if (hot > 0)
      weight = (1 - options.hot_share) / static_cast<double>(count) +
               (rank < hot ? options.hot_share / static_cast<double>(hot) : 0);
    weights[order[rank]] = weight;
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// The best that any placement that does not change can do.
double oracle_share(std::vector<double> weights, uint64_t ddr_granules) {
  std::sort(weights.begin(), weights.end(), std::greater<>());
  return std::accumulate(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(ddr_granules), 0.0);
}

// Which granules are backed by DDR, by this process's mappings: of a file that is no lease's.
class Backing {
 public:
  Backing(const char* base, uint64_t granules, int lease_fd) : base_(base), granules_(granules) {
    struct stat about {};
    if (lease_fd >= 0 && ::fstat(lease_fd, &about) == 0) {
      lease_inode_ = about.st_ino;
      lease_device_ = about.st_dev;
    }
  }

  std::vector<bool> in_ddr() const {
    std::vector<bool> there(granules_, false);
    FILE* maps = std::fopen("/proc/self/maps", "r");
    if (maps == nullptr) die("no /proc/self/maps");
    const auto from = reinterpret_cast<uintptr_t>(base_), to = from + granules_ * granule_bytes;
    char line[1024];
    while (std::fgets(line, sizeof(line), maps) != nullptr) {
      unsigned long begin = 0, end = 0, offset = 0, inode = 0;
      unsigned major = 0, minor = 0;
      int name_at = 0;
      if (std::sscanf(line, "%lx-%lx %*s %lx %x:%x %lu %n", &begin, &end, &offset, &major, &minor, &inode,
                      &name_at) < 6 ||
          begin >= to || end <= from)
        continue;
      const bool ddr = lease_inode_ != 0 ? inode != lease_inode_ || makedev(major, minor) != lease_device_
                                         : std::strstr(line + name_at, "terrace-front") != nullptr ||
                                               std::strncmp(line + name_at, "/#", 2) == 0;
      for (uint64_t at = std::max<uint64_t>(begin, from); ddr && at < std::min<uint64_t>(end, to);
           at += granule_bytes)
        there[(at - from) / granule_bytes] = true;
    }
    std::fclose(maps);
    return there;
  }

 private:
  const char* base_;
  uint64_t granules_;
  uint64_t lease_inode_ = 0, lease_device_ = 0;
};

// Reads and writes words at random by the weights, and looks now and then where they lie.
class Program {
 public:
  Program(char* base, const BusyOptions& options, const Backing& backing, TieredRange* range)
      : base_(base), options_(options), backing_(backing), range_(range) {}

  void choose(uint64_t seed) {
    weights_ = make_weights(options_, seed);
    oracle_ = oracle_share(weights_, options_.ddr_granules);
    // A table to draw from: a share to within 1/65536.
    draw_.clear();
    double sum = 0;
    for (uint64_t granule = 0; granule < weights_.size(); ++granule) {
      sum += weights_[granule];
      draw_.resize(std::min<size_t>(static_cast<size_t>(sum * 65536 + 0.5), 65536),
                   static_cast<uint32_t>(granule));
    }
    draw_.resize(65536, static_cast<uint32_t>(weights_.size() - 1));
    begun_cpu_s_ = thread_cpu_seconds();
  }

  double cpu_s() const { return thread_cpu_seconds() - begun_cpu_s_; }
  double oracle() const { return oracle_; }
  uint64_t accesses() const { return accesses_; }

  // By the distribution and the mappings of now.
  double share_now() const {
    const std::vector<bool> there = backing_.in_ddr();
    double share = 0;
    for (uint64_t granule = 0; granule < weights_.size(); ++granule)
      if (there[granule]) share += weights_[granule];
    return share;
  }

  double told_share() const { return range_ == nullptr ? 0 : range_->status().ddr_hit_permille / 1000.0; }
  uint64_t promotions() const { return range_ == nullptr ? 0 : range_->status().promotions; }

  void work(double cpu_s) {
    for (const double end = thread_cpu_seconds() + cpu_s; thread_cpu_seconds() < end;)
      for (int i = 0; i < 4096; ++i, ++accesses_) {
        const uint64_t value = random_.next();
        auto* word = reinterpret_cast<uint64_t*>(base_ + draw_[value >> 48] * granule_bytes) +
                     (value >> 16) % (granule_bytes / 8);
        *static_cast<volatile uint64_t*>(word) = *static_cast<volatile uint64_t*>(word) ^ value;
      }
  }

  nlohmann::json phase(double until_cpu_s, double judge_cpu_s) {
    nlohmann::json out, timeline = nlohmann::json::array();
    const double first = share_now(), wall = seconds();
    double least = first, found = -1, sum = 0, told = 0;
    int judged = 0;
    const uint64_t moved = promotions();
    nlohmann::json told_line = nlohmann::json::array(), moved_line = nlohmann::json::array();
    while (cpu_s() < until_cpu_s + judge_cpu_s) {
      work(look_every_cpu_s);
      const double share = share_now();
      least = std::min(least, share);
      if (share < 0.9 * oracle_)
        found = -1;
      else if (found < 0)
        found = cpu_s();
      if (timeline.size() < 300) {
        timeline.push_back(static_cast<int>(1000 * share));
        told_line.push_back(told_share());
        moved_line.push_back(promotions() - moved);
      }
      if (cpu_s() < until_cpu_s) continue;
      sum += share;
      told += told_share();
      ++judged;
    }
    out["oracle"] = oracle_;
    out["first_share"] = first;
    out["least_share"] = least;
    out["share"] = sum / judged;
    out["share_of_oracle"] = sum / judged / oracle_;
    out["told_share"] = told / judged;
    out["found_cpu_s"] = found;
    out["wall_s"] = seconds() - wall;
    out["each_100_ms_cpu"] = {{"share_permille", timeline}, {"told", told_line}, {"promotions", moved_line}};
    return out;
  }

  nlohmann::json stationary(double wall_s) {
    nlohmann::json out;
    const TieredRangeStatus before = range_->status();
    const double begin = seconds();
    double least = 1;
    while (seconds() < begin + wall_s) {
      work(look_every_cpu_s);
      least = std::min(least, share_now());
    }
    const TieredRangeStatus after = range_->status();
    const auto swaps =
        static_cast<double>(after.promotions + after.demotions - before.promotions - before.demotions) / 2;
    out["swaps_pct"] = 100 * swaps / static_cast<double>(options_.ddr_granules);
    out["least_share_of_oracle"] = least / oracle_;
    return out;
  }

 private:
  char* base_;
  const BusyOptions& options_;
  const Backing& backing_;
  TieredRange* range_;
  std::vector<double> weights_;
  std::vector<uint32_t> draw_;
  Random random_{7};
  double oracle_ = 0, begun_cpu_s_ = 0;
  uint64_t accesses_ = 0;
};

double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

nlohmann::json measure(Program& program, const BusyOptions& options) {
  nlohmann::json out;
  program.choose(77);
  const double wall = seconds(), others = process_cpu_seconds() - thread_cpu_seconds();
  out["start"] = program.phase(options.begin_cpu_s, options.judge_cpu_s);
  if (options.stationary_wall_s > 0) out["stationary"] = program.stationary(options.stationary_wall_s);
  if (options.jump_cpu_s > 0) {
    program.choose(78);
    out["jump"] = program.phase(options.jump_cpu_s, options.judge_cpu_s);
  }
  out["accesses"] = program.accesses();
  // Of one processor: all threads of this process but the program's.
  out["engine_cpu_pct"] = 100 * (process_cpu_seconds() - thread_cpu_seconds() - others) / (seconds() - wall);
  return out;
}

}  // namespace

int run_busy_program(const BusyOptions& options) {
  if (options.processor >= 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(options.processor, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  const uint64_t bytes = options.granules * granule_bytes;
  nlohmann::json out;
  if (options.heap) {
    auto* memory = static_cast<char*>(std::malloc(bytes + granule_bytes));
    if (memory == nullptr) die("no memory");
    memory += (granule_bytes - reinterpret_cast<uintptr_t>(memory) % granule_bytes) % granule_bytes;
    std::memset(memory, 1, bytes);
    const Backing backing(memory, options.granules, -1);
    Program program(memory, options, backing, nullptr);
    out = measure(program, options);
  } else {
    test::FakeSession session(bytes);
    auto tiering = must(Tiering::start({.session = nullptr}), "Tiering::start");
    auto lease = make_lease(session, bytes);
    auto range = must(
        tiering->make_range(
            {.bytes = bytes, .ddr_bytes_max = options.ddr_granules * granule_bytes, .name = "busy"}, {lease}),
        "make_range");
    std::memset(range->bytes().data(), 1, bytes);
    const Backing backing(reinterpret_cast<char*>(range->bytes().data()), options.granules, lease->fd());
    Program program(reinterpret_cast<char*>(range->bytes().data()), options, backing, range.get());
    out = measure(program, options);
    const TieredRangeStatus status = range->status();
    out["promotions"] = status.promotions;
    out["demotions"] = status.demotions;
    if (status.state != TieringState::running) out["reason"] = status.reason;
  }
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace terrace::bench
