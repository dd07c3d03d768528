// SPDX-License-Identifier: Apache-2.0
// Hosts that share memory and have no coherent caches, made up: each host has a write-back cache of 64-byte
// lines over one memory, and everything that such hardware may do is done, at random, as seldom or as often as
// a seed says:
//
//   a dirty line is evicted at any moment, in any order with others       (stores overtake each other)
//   a line is fetched at any moment, and stays                            (stale copies)
//   a write-back lands at any moment up to the next barrier               (a barrier that lacks is noticed)
//   an invalidation happens at any moment up to the next barrier          (the same)
//   a copy's loads happen at any moment up to the next barrier            (the same)
//   between any two accesses of one program, others run
//   a host that dies loses some of its dirty lines, and others not
//
// EmulatedHost is a CoherenceMemory: the protocol runs on it as it does on the real ones.
//
// Threads   One; programs are fibers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/prng.h"
#include "libclient/coherence/memory/memory.h"

namespace terrace::coherence {

// Thrown out of an access by a program that was killed.
struct Killed {};

class Fabric {
 public:
  Fabric(uint64_t bytes, uint32_t hosts, uint64_t seed);

  std::span<std::byte> memory() { return {memory_, lines_ * 64}; }
  bool has(const void* at) const {
    return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(memory_) < lines_ * 64;
  }
  // That step of the protocol is left out everywhere.
  void leave_out(Step step) { left_out_ = step; }
  bool leaves_out(Step step) const { return step != Step::none && left_out_ == step; }
  // How wild caches are from now on: out of 64 accesses, how many does something of its own accord accompany.
  void set_wildness(uint32_t of_64) { wildness_ = of_64; }

  uint64_t load(uint32_t host, const void* at);
  void store(uint32_t host, void* at, uint64_t value);
  void read(uint32_t host, void* to, const void* from, size_t bytes);   // within one line
  void write(uint32_t host, void* to, const void* from, size_t bytes);  // within one line
  void write_back(uint32_t host, const void* at, size_t bytes);
  void invalidate(uint32_t host, const void* at, size_t bytes);
  void finish_write_backs(uint32_t host);
  void finish_invalidations(uint32_t host);

  // The host writes back and drops its lines of a range: what fencing a holder does on the host where it died.
  void fence(uint32_t host, const void* at, size_t bytes);
  // The host loses power.
  void lose_power(uint32_t host);
  // A line leaves the cache right before a late read of it, which then gets what is in memory by now.
  void evict_at_will(uint32_t host, const void* at) {
    if (prng_.chance(1, 2)) drop(line_of(at), hosts_[host].lines[line_of(at)]);
  }
  bool chance_of_late_read() { return prng_.chance(1, 4); }

 private:
  enum class Cached : uint8_t { no, clean, dirty };
  struct Line {
    Cached cached = Cached::no;
    bool writing_back = false;
    bool invalidating = false;
    alignas(8) std::byte bytes[64];
  };
  struct Host {
    std::vector<Line> lines;
    std::vector<uint32_t> writing_back, invalidating;
  };

  uint32_t line_of(const void* at) const {
    return static_cast<uint32_t>((static_cast<const std::byte*>(at) - memory_) / 64);
  }
  Line& fetch(uint32_t host, uint32_t line);
  void clean(uint32_t line, Line& copy);
  void drop(uint32_t line, Line& copy);
  void misbehave();
  void carry_out_early(uint32_t host, uint64_t draw);

  std::unique_ptr<std::byte[]> owner_;
  std::byte* memory_ = nullptr;
  uint64_t lines_ = 0;
  std::vector<Host> hosts_;
  std::vector<uint32_t>
      used_;  // lines that any program ever touched: only these are evicted or fetched at will
  std::vector<bool> is_used_;
  Prng prng_;
  uint32_t wildness_ = 16;
  Step left_out_ = Step::none;
};

// One program's way to the fabric.
struct Program {
  uint32_t host = 0;
  bool killed = false;
  bool unwinding = false;
  std::function<void()> turn;  // lets others run
  struct LateRead {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::vector<LateRead> late_reads = {};  // copies that may still happen, as if only now
};

class EmulatedHost {
 public:
  static constexpr bool coherent = false;

  EmulatedHost(Fabric& fabric, Program& program) : fabric_(&fabric), program_(&program) {}

  uint64_t load(const uint64_t* word) const;
  void store(uint64_t* word, uint64_t value) const;
  void read(void* to, const void* from, size_t bytes) const;
  void write(void* to, const void* from, size_t bytes) const;
  void write_back(const void* at, size_t bytes, Step step) const;
  void invalidate(const void* at, size_t bytes, Step step) const;
  void store_barrier(Step step) const;
  void load_barrier(Step step) const;
  void full_barrier(Step step) const;
  bool performs(Step step) const { return !fabric_->leaves_out(step); }
  void pause() const { begin(); }

 private:
  void finish_reads() const { program_->late_reads.clear(); }
  bool begin() const;  // others run; false: this program is dead and unwinds, nothing is done

  Fabric* fabric_;
  Program* program_;
};
static_assert(CoherenceMemory<EmulatedHost>);

}  // namespace terrace::coherence
