#include "core/os/measure_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/units.h"
#include "core/os/fault_guard.h"

namespace terrace::os {
namespace {

using Steady = std::chrono::steady_clock;

constexpr uint64_t line_bytes = 64;
constexpr uint64_t span_bytes_min = 64 * kib;
// Enough lines that no cache holds them, few enough that slow memory is written in time.
constexpr uint64_t chain_lines_max = 1u << 20;

double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

uint64_t load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
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

uint32_t chase(std::span<std::byte> span, Steady::duration time_max) {
  const uint64_t slots = power_of_two_within(std::min(span.size() / line_bytes, chain_lines_max));
  const uint64_t stride = span.size() / slots / line_bytes * line_bytes;  // over all of the span
  const Cycle cycle(slots);
  for (uint64_t slot = 0; slot < slots; ++slot) {
    const uint64_t to = cycle.next(slot) * stride;
    std::memcpy(span.data() + slot * stride, &to, sizeof(to));
  }
  constexpr uint64_t steps_at_once = 4096;
  const auto begin = Steady::now();
  uint64_t at = 0, steps = 0;
  do {
    for (uint64_t i = 0; i < steps_at_once; ++i) at = load(span.data() + at);
    steps += steps_at_once;
  } while (Steady::now() - begin < time_max);
  volatile uint64_t keep = at;
  (void)keep;
  const double ns = seconds_since(begin) * 1e9 / static_cast<double>(steps);
  return static_cast<uint32_t>(std::clamp(ns, 1.0, 4e9));
}

uint64_t stream(std::span<std::byte> span, Steady::duration time_max) {
  constexpr uint64_t piece_bytes = 64 * kib;
  const auto begin = Steady::now();
  uint64_t sum = 0, read = 0;
  do {
    for (uint64_t at = 0; at + piece_bytes <= span.size(); at += piece_bytes) {
      uint64_t sums[4] = {};
      for (uint64_t i = 0; i < piece_bytes; i += 32)
        for (uint64_t lane = 0; lane < 4; ++lane) sums[lane] += load(span.data() + at + i + lane * 8);
      sum += sums[0] + sums[1] + sums[2] + sums[3];
      read += piece_bytes;
      if (Steady::now() - begin >= time_max) break;
    }
  } while (Steady::now() - begin < time_max);
  volatile uint64_t keep = sum;
  (void)keep;
  return static_cast<uint64_t>(static_cast<double>(read) / std::max(seconds_since(begin), 1e-9));
}

}  // namespace

MemorySpeed measure_memory(std::span<std::byte> span, MeasureOptions options) {
  if (span.size() < span_bytes_min) return {};
  const auto time_max = std::chrono::milliseconds(std::max(options.time_ms, 1u));
  MemorySpeed speed;
  const bool there = guarded([&] {
    speed.latency_ns = chase(span, time_max);
    speed.bandwidth_bytes_per_s = stream(span, time_max);
  });
  return there ? speed : MemorySpeed{};
}

}  // namespace terrace::os
