// SPDX-License-Identifier: Apache-2.0
// Measures the speed of memory, for devices without figures from the firmware.
//
// Only reads. Every line is flushed from the caches before it is timed, so that the size of the last cache
// does not matter: a sample of a few megabytes says as much as one of gigabytes. The measured memory should be
// idle; its contents do not matter.
//
// Place     core/os; backends use it once for a device, on free memory.
// Threads   The calling one only; at most about `MeasureOptions::time_ms`, some ten milliseconds on fast
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::os {

// 0: not measured.
struct MemorySpeed {
  uint32_t latency_ns = 0;             // of a load whose address the load before it gave
  uint64_t bandwidth_bytes_per_s = 0;  // of one thread that reads ahead

  bool known() const { return latency_ns != 0 && bandwidth_bytes_per_s != 0; }
  bool operator==(const MemorySpeed&) const = default;
};

// Enough that its loads are spread over the memory's banks and not all in open rows.
inline constexpr uint64_t measured_bytes = uint64_t{8} << 20;

struct MeasureOptions {
  uint32_t time_ms = 500;  // for all of it, at most
};

// Of the first `measured_bytes` of the span: follows a chain of loads in an order that no prefetcher knows, one
// load each 256 bytes, and reads from the beginning to the end. Both in pieces of some ten microseconds, of
// which the median is taken. Fewer than 64 KiB, or memory that fails under it: nothing is measured. Small and
// large pages differ by some nanoseconds, as they do for a holder.
MemorySpeed measure_memory(std::span<const std::byte> span, MeasureOptions options = {});

}  // namespace terrace::os
