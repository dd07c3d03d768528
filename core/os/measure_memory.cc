// SPDX-License-Identifier: Apache-2.0
#include "core/os/measure_memory.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "core/base/units.h"
#include "core/os/fault_guard.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace terrace::os {
namespace {

using Steady = std::chrono::steady_clock;

constexpr uint64_t line_bytes = 64;
constexpr uint64_t page_bytes = 4 * kib;
// Between the loads of the chain: processors fetch lines in pairs.
constexpr uint64_t stride_bytes = 256;
constexpr uint64_t span_bytes_min = 64 * kib;

// Not looked at by a sanitizer: its own loads would be timed, too. Volatile: each is made.
[[gnu::no_sanitize_address]] inline uint64_t load(const std::byte* at) {
  return *reinterpret_cast<const volatile uint64_t*>(at);
}

#if defined(__x86_64__)
bool has_clflushopt() {
  constexpr unsigned leaf = 7, bit = 1u << 23;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(leaf, 0, &a, &b, &c, &d) != 0 && (b & bit) != 0;
}

// Its flushes run beside each other, which those of clflush do not.
[[gnu::target("clflushopt")]] void flush_lines_unordered(std::span<const std::byte> span, uint64_t step) {
  for (uint64_t at = 0; at < span.size(); at += step) _mm_clflushopt(const_cast<std::byte*>(span.data() + at));
}
#endif

void flush_from_caches(std::span<const std::byte> span, uint64_t step) {
#if defined(__x86_64__)
  _mm_mfence();
  if (has_clflushopt()) {
    flush_lines_unordered(span, step);
  } else {
    for (uint64_t at = 0; at < span.size(); at += step) _mm_clflush(span.data() + at);
  }
  _mm_mfence();
#else
  (void)span, (void)step;
#endif
}

// A permutation of all slots that is one cycle, without a table: i -> a*i + c modulo a power of two (a-1 a
// multiple of 4, c odd). Its steps follow no stride that a prefetcher would know.
class Cycle {
 public:
  explicit Cycle(uint64_t slots) : mask_(slots - 1) {}
  uint64_t next(uint64_t slot) const { return (slot * 0x9e3779b1u * 4 + slot + 0x7f4a7c15u) & mask_; }

 private:
  uint64_t mask_;
};

uint64_t power_of_two_within(uint64_t n) {
  uint64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

// The nanoseconds of pieces of work, of which some met another program on their processor, or a neighbour on
// the memory: the median says what the memory does.
class Pieces {
 public:
  explicit Pieces(Steady::duration time_max) : until_(Steady::now() + time_max) {}

  // False once the time is over.
  template <typename Work>
  bool time(Work&& work) {
    const auto begin = Steady::now();
    work();
    const auto end = Steady::now();
    if (count_ < ns_.size()) ns_[count_++] = std::chrono::duration<double, std::nano>(end - begin).count();
    return end < until_;
  }
  double median_ns() {
    if (count_ == 0) return 0;
    std::nth_element(ns_.begin(), ns_.begin() + count_ / 2, ns_.begin() + count_);
    return ns_[count_ / 2];
  }

 private:
  const Steady::time_point until_;
  std::array<double, 1024> ns_{};
  size_t count_ = 0;
};

// Where the next load goes is the cycle's choice plus what this one brought: the processor must wait for it,
// although erased memory brings zero. Within the span whatever it brings. Once round: then lines are cached.
double latency_ns(std::span<const std::byte> span, Steady::duration time_max) {
  constexpr uint64_t loads = 256;
  const uint64_t slots = power_of_two_within(span.size() / stride_bytes);
  const uint64_t within = slots * stride_bytes - 1;
  const Cycle cycle(slots);
  uint64_t slot = 0, brought = 0;
  flush_from_caches(span, stride_bytes);
  Pieces pieces(time_max);
  for (uint64_t piece = 0; piece < slots / loads; ++piece) {
    const bool go_on = pieces.time([&] {
      for (uint64_t i = 0; i < loads; ++i) {
        slot = cycle.next(slot);
        brought = load(span.data() + ((slot * stride_bytes + brought) & within & ~(line_bytes - 1)));
      }
    });
    if (!go_on) break;
  }
  return pieces.median_ns() / loads;
}

double bytes_per_s(std::span<const std::byte> span, Steady::duration time_max) {
  constexpr uint64_t piece_bytes = 32 * kib;
  uint64_t sums[4] = {};
  flush_from_caches(span, line_bytes);
  Pieces pieces(time_max);
  for (uint64_t begin = 0; begin + piece_bytes <= span.size(); begin += piece_bytes) {
    const bool go_on = pieces.time([&] {
      const std::byte* const piece = span.data() + begin;
      for (uint64_t at = 0; at < piece_bytes; at += 32)
        for (uint64_t lane = 0; lane < 4; ++lane) sums[lane] += load(piece + at + lane * 8);
    });
    if (!go_on) break;
  }
  volatile uint64_t keep = sums[0] + sums[1] + sums[2] + sums[3];
  (void)keep;
  return piece_bytes * 1e9 / std::max(pieces.median_ns(), 1.0);
}

}  // namespace

MemorySpeed measure_memory(std::span<const std::byte> span, MeasureOptions options) {
  if (span.size() < span_bytes_min) return {};
  span = span.first(std::min<uint64_t>(span.size(), measured_bytes));
  const Steady::duration time_max = std::chrono::milliseconds(std::max(options.time_ms, 1u)) / 2;
  MemorySpeed speed;
  const bool there = guarded([&] {
    for (uint64_t at = 0; at < span.size(); at += page_bytes)
      (void)load(span.data() + at);  // faults come first
    speed.latency_ns = static_cast<uint32_t>(std::clamp(latency_ns(span, time_max) + 0.5, 1.0, 4e9));
    speed.bandwidth_bytes_per_s = static_cast<uint64_t>(std::clamp(bytes_per_s(span, time_max), 1.0, 1e18));
  });
  return there ? speed : MemorySpeed{};
}

}  // namespace terrace::os
