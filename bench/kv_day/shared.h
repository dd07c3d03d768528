// SPDX-License-Identifier: Apache-2.0
// What the processes of bench_day share beside the KV space: settings, the trace, and what each engine did. It outlives
// any of them.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <string>

#include "bench/kv_replay/histogram.h"
#include "bench/kv_replay/trace.h"
#include "bench/kv_space/support.h"

namespace terrace::bench::day {

inline constexpr uint32_t engines_max = 32;
inline constexpr uint32_t hosts_max = 8;
inline constexpr uint32_t hours = 24;                // equal pieces of the trace
inline constexpr uint32_t processes_max = 1u << 16;  // that are started in one run
inline constexpr const char* lease_label = "day";

enum class Plant : uint32_t { none, torn, other };

struct Settings {
  char socket[100] = {};
  uint32_t engines = 8, hosts = 2;
  uint32_t parts_per_host = 0, seats_per_host = 0;
  uint64_t block_bytes = 0;
  uint64_t rereads = 0;  // requests that are read once more, behind each one
  Plant plant = Plant::none;
};

// Of the engine with that number, by whichever process it is; one writer at a time. Counted when a request is done.
struct alignas(64) EngineCounts {
  std::atomic<uint64_t> current;  // the request that it serves, and one; 0: none
  std::atomic<uint64_t> requests, copied, in_place, read_bytes;
  std::atomic<uint64_t> put, put_bytes, there_already, refused, evicted;
  std::array<std::atomic<uint64_t>, hours> uses, hits;
  std::atomic<uint64_t> uses_of_successor, hits_of_successor;  // of the process that the upgrade started
  std::atomic<uint64_t> start_ns;                              // the longest, until a process served
  Histogram read;                                              // one in eight
};

struct Control {
  uint64_t bytes = sizeof(Control);  // another program must have the same
  Settings settings;
  uint32_t requests = 0, block_entries = 0, block_count = 0;
  std::atomic<uint32_t> ready, go, stop;
  std::atomic<uint32_t> processes;  // that were started
  std::atomic<uint32_t> successor;  // the process of the upgrade, and one; 0: none yet
  std::atomic<uint64_t> next_request, done_requests;
  std::atomic<uint64_t> end_request;  // of these; UINT64_MAX: until `stop`
  std::atomic<uint64_t> gate;         // requests from this one on wait
  std::atomic<uint64_t> wrong;
  char first_wrong[320];
  std::array<EngineCounts, engines_max> engines;
  std::array<std::atomic<uint32_t>, processes_max> puts_begun;  // by process
};

inline void add(std::atomic<uint64_t>& counter, uint64_t more = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

class Shared {
 public:
  Shared(const Settings& settings, const Trace& trace);
  explicit Shared(int fd);  // another process's

  int fd() const { return memory_.fd(); }
  Control& control() const { return *control_; }
  const Settings& settings() const { return control_->settings; }
  // Request numbers go on behind the end of the trace, from its beginning.
  std::span<const uint32_t> blocks_of(uint64_t request) const;
  uint32_t hour_of(uint64_t request) const;

  // Notes a block that is not what was asked for. `how` says by whom it was read.
  void found_wrong(uint64_t block, const char* how, const std::string& what) const;
  // Whether all of `bytes` is block `block` as somebody has put it; else it is noted.
  bool judge(uint64_t block, std::span<const std::byte> bytes, const char* how) const;

 private:
  void find_places();

  kv::MemoryFile memory_;
  Control* control_ = nullptr;
  std::span<const TraceRequest> requests_;
  std::span<const uint32_t> blocks_;
};

std::string key_of(uint32_t block);

}  // namespace terrace::bench::day
