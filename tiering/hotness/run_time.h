// SPDX-License-Identifier: Apache-2.0
// How long the program ran. What migration sees of a program's accesses, and how old they are, is counted in
// this time: a program that waits for a processor, or for anything else, is not colder for it.
//
// The time that the program ran between two readings is the CPU time that its threads took, those of migration
// left out, and never more than the time that passed: eight busy threads are no eight times as old as one.
//
// Place     kernel's CPU clocks → RunTime → Sampler (exposures), engine (the clock of policies)
// Threads   One at a time: the engine's.
// Memory    libc only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

// CPU time of the program's threads so far, in ns.
using ReadCpuTime = uint64_t (*)(void* owner);

class RunTime {
 public:
  struct Reading {
    uint64_t wall_ns = 0;  // monotonic_ns()
    uint64_t cpu_ns = 0;
  };

  // `read_cpu`: the seam of tests; nullptr: the kernel's clocks. The clock of policies begins at monotonic_ns(). Without /proc
  // the program counts as always running.
  void open(ReadCpuTime read_cpu = nullptr, void* owner = nullptr);

  Reading read();
  // The same to the ns and at a tenth of the cost, of the watched threads only (of all where none is watched): to be
  // compared with others of the same watch().
  Reading read_exactly() const;
  static uint64_t between(const Reading& from, const Reading& to);

  // The clock of policies: monotonic_ns() when it was opened, and from then on the time that the program ran.
  // Never ahead of monotonic_ns().
  uint64_t now_ns() { return now_ns(read()); }
  uint64_t now_ns(const Reading& reading);
  // That clock as it was at `wall_ns`, not long before the last now_ns().
  uint64_t at_ns(uint64_t wall_ns) const;

  // Whether a watched thread runs or waits for a processor; true where that is not known.
  bool wants_to_run() const;

  // Now and then: which of the program's threads run. Their clocks are read exactly; what other threads run is
  // known when a tick or a switch of theirs has counted it, some milliseconds late.
  void look_for_threads(uint64_t wall_ns);
  uint32_t watched() const { return watched_count_; }
  uint32_t watch() const { return watch_; }  // counts how often other threads came to be watched

  static constexpr uint32_t watched_max = 8;
  static constexpr uint32_t threads_max = 512;  // that are looked at

 private:
  struct Thread {
    int id = 0;
    uint64_t cpu_ns = 0;
  };
  struct Busiest;
  uint64_t program_cpu_ns() const;
  static uint32_t list_threads(Thread* threads);

  ReadCpuTime read_ = nullptr;
  bool blind_ = false;  // its threads cannot be listed
  void* owner_ = nullptr;
  Reading last_;
  uint64_t now_ns_ = 0;
  uint64_t ahead_ns_ = 0;  // CPU time that has not passed yet: several threads ran
  Thread threads_[threads_max];
  uint32_t thread_count_ = 0;
  int watched_[watched_max] = {};
  uint32_t watched_count_ = 0, watch_ = 0;
  uint64_t look_due_ns_ = 0;
};

}  // namespace terrace::tiering
