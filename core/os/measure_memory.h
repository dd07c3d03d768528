// How fast memory is, measured: for devices of which the firmware says nothing (no HMAT).
//
// Place     core/os; backends use it once for a device, on memory that nobody has yet.
// Threads   The calling one only; takes about `MeasureOptions::time_ms`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::os {

struct MemorySpeed {
  uint32_t latency_ns = 0;             // of a load whose address the load before it gave
  uint64_t bandwidth_bytes_per_s = 0;  // of one thread that reads ahead
};

struct MeasureOptions {
  uint32_t time_ms = 200;  // for each of both, at most
};

// Writes a chain of pointers over `span` and follows it, then reads the span from its beginning to its end.
// Destroys what is in it. A span below a few times the last cache measures that cache: at least 64 MiB says
// something of memory. Fewer than 64 KiB, or memory that
// fails under it: nothing is measured.
MemorySpeed measure_memory(std::span<std::byte> span, MeasureOptions options = {});

}  // namespace terrace::os
