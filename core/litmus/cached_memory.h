// SPDX-License-Identifier: Apache-2.0
// A made-up host with its own cache, not coherent with the caches of others. It shows memory without hardware
// coherence on any machine. A line is fetched at its first use and stays until refresh(); stores stay in it
// until publish() or refresh(). It is milder than hardware, which evicts lines at any time. A litmus run over
// it must still find that it is not coherent.
//
// Place     core/litmus; the manager uses it for an emulated device that is to be seen to fail
// (docs/design/0017).
// Threads   One side each.
#pragma once

#include <atomic>
#include <bitset>

#include "core/litmus/host_memory.h"
#include "core/litmus/region.h"

namespace terrace::litmus {

class CachedMemory {
 public:
  // `region` outlives it.
  CachedMemory(Region& region, HostMemory host) : region_(region), host_(host) {}

  uint64_t load(const uint64_t* word) { return *cached(word); }
  void store(uint64_t* word, uint64_t value) {
    *cached(word) = value;
    dirty_.set(line_of(word));
  }
  bool compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired) {
    if (*cached(word) != expected) return false;
    store(word, desired);
    return true;
  }
  void full_barrier() { host_.full_barrier(); }
  void publish(const uint64_t* at, size_t bytes) {
    for (size_t line = line_of(at); line <= line_of(at + bytes / 8 - 1); ++line) write_back(line);
    host_.full_barrier();
  }
  void refresh(const uint64_t* at, size_t bytes) {
    publish(at, bytes);
    for (size_t line = line_of(at); line <= line_of(at + bytes / 8 - 1); ++line) valid_.reset(line);
  }
  bool wait(uint64_t turn) { return host_.wait(turn); }
  void pause() { host_.pause(); }

 private:
  static constexpr size_t lines = sizeof(Region) / 64;

  uint64_t* memory() { return reinterpret_cast<uint64_t*>(&region_); }
  size_t line_of(const uint64_t* word) { return static_cast<size_t>(word - memory()) / 8; }
  uint64_t* cached(const uint64_t* word) {
    const size_t line = line_of(word);
    if (!valid_.test(line)) {
      for (size_t at = line * 8; at < line * 8 + 8; ++at) cache_[at] = host_.load(memory() + at);
      valid_.set(line);
    }
    return cache_ + (word - memory());
  }
  void write_back(size_t line) {
    if (!dirty_.test(line)) return;
    for (size_t at = line * 8; at < line * 8 + 8; ++at) host_.store(memory() + at, cache_[at]);
    dirty_.reset(line);
  }

  Region& region_;
  HostMemory host_;
  std::bitset<lines> valid_, dirty_;
  uint64_t cache_[lines * 8] = {};
};
static_assert(LitmusMemory<CachedMemory>);

}  // namespace terrace::litmus
