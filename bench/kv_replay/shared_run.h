// SPDX-License-Identifier: Apache-2.0
// State that the parent and the workers share outside Terrace: the requests, the truth, the times of uses, the
// counts. A memory file that each maps; it outlives a worker that is killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "bench/kv_replay/block.h"
#include "bench/kv_replay/histogram.h"
#include "bench/kv_replay/trace.h"
#include "bench/kv_replay/truth.h"
#include "core/base/unique_fd.h"

namespace terrace::bench {

enum class Plant : uint8_t { none, lost, torn, stale, stuck };
enum class Wrong : uint8_t { lost, torn, stale };

inline constexpr uint32_t workers_max = 32;
inline constexpr const char* lease_label = "kv-replay";

struct Settings {
  uint64_t block_bytes = 64 << 10;
  uint64_t ddr_bytes = 64ull << 20;  // of each worker
  uint32_t workers = 4;
  uint32_t in_place_every = 4;   // of the reads from the pool; 0: none
  uint32_t rewrite_every = 100;  // of the uses of a block in the worker's own part; 0: none, one slot a block
  double speed = 0;              // of the trace's clock; 0: as fast as possible
  bool prefetch = true;
  Plant plant = Plant::none;
  char socket[200] = {};
};

// Of one worker's place; one process at a time writes it.
struct WorkerCounts {
  std::atomic<uint64_t> serving;  // the request's number + 1; 0: none
  std::atomic<uint64_t> lookups, uses;
  std::atomic<uint64_t> hits_ddr, hits_ahead, hits_cxl, in_place;
  std::atomic<uint64_t> stored, pending, not_stored;  // misses
  std::atomic<uint64_t> rewritten, evicted, evicted_busy, adopted;
  std::atomic<uint64_t> copied_bytes, in_place_bytes, stored_bytes, ddr_evicted, prefetched, prefetch_dropped;
  std::atomic<uint64_t> take_over_ns;  // the longest, until the successor serves
  Histogram lookup, read_ddr, read_cxl, store, request;
};

inline void add(std::atomic<uint64_t>& counter, uint64_t more = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

struct Control {
  Settings settings;
  uint32_t requests = 0, block_entries = 0, block_count = 0;
  std::atomic<uint32_t> ready, go;
  std::atomic<uint64_t> begin_ns;
  std::atomic<uint64_t> next_request, done_requests;
  std::atomic<uint64_t> gate;  // requests after this one wait, so that no kill comes too late
  std::atomic<uint64_t> use_clock;
  std::atomic<uint64_t> wrong[3];
  std::atomic<uint32_t> told;
  char first_wrong[320];
  WorkerCounts workers[workers_max];
};

class SharedRun {
 public:
  SharedRun(const Settings& settings, const Trace& trace);  // ends the program when there is no memory
  explicit SharedRun(int fd);                               // of the parent's
  ~SharedRun();
  SharedRun(const SharedRun&) = delete;
  SharedRun& operator=(const SharedRun&) = delete;

  int fd() const { return fd_.get(); }
  Control& control() { return *control_; }
  const Settings& settings() const { return control_->settings; }
  Truth& truth() { return *truth_; }
  std::atomic<uint64_t>& stamp(uint32_t block) { return stamps_[block]; }
  const TraceRequest& request(uint64_t number) const { return requests_[number]; }
  std::span<const uint32_t> blocks_of(const TraceRequest& request) const {
    return blocks_.subspan(request.first, request.count);
  }
  // A block was used now.
  void used(uint32_t block) {
    stamps_[block].store(control_->use_clock.fetch_add(1, std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }
  void found_wrong(Wrong what, uint32_t block, const std::string& text);

 private:
  void map(uint64_t bytes);

  UniqueFd fd_;
  std::span<std::byte> memory_;
  Control* control_ = nullptr;
  std::unique_ptr<Truth> truth_;
  std::span<std::atomic<uint64_t>> stamps_;
  std::span<TraceRequest> requests_;
  std::span<uint32_t> blocks_;
};

// What was read of a block after its truth was `before`; `how` says by whom.
void judge_block(SharedRun& run, uint32_t block, Fact before, const SeenBlock& seen, const char* how);

std::string block_name(uint32_t block);

}  // namespace terrace::bench
