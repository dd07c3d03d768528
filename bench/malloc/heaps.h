// SPDX-License-Identifier: Apache-2.0
// Under which malloc a measured program runs, and running it: bench_malloc's one place that knows libraries,
// their environment, and how a program ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/supply/broker.h"
#include "tests/support/fake_session.h"

namespace terrace::bench {

enum class Heap {
  glibc,              // nothing is preloaded
  jemalloc,           // Debian's
  whole,              // all of the program's heap is Terrace's
  tiered,             // the same, where the supply has leases too and memory moves
  min_size,           // Terrace serves what is at least 64 KiB
  memtier,            // Debian's libmemkind, one tier of DRAM: at its fastest
  memtier_two_tiers,  // DRAM and a file, one to four
};
const char* name_of(Heap heap);

// Empty: there is no such library on this machine.
std::string library_of(Heap heap);
// Other files than this build's; empty: this build's. Before anything runs.
void choose_libraries(const std::string& whole, const std::string& large);

// A supervisor's side without manager and command: budgets, and leases that are memory files.
class Supply {
 public:
  // `moves`: as `terrace run` does by default, where this process may. False: memory stays where it is put.
  Supply(uint64_t ddr_bytes, uint64_t cxl_bytes, bool moves = false);
  // What ended gives its memory back before this returns.
  void settle() { broker_->scan(); }
  const std::string& socket_path() const { return broker_->socket_path(); }
  supply::RunStats stats() { return broker_->stats(); }

 private:
  test::FakeSession session_;
  UniqueFd userfault_device_;
  std::unique_ptr<supply::Broker> broker_;
};

// `supply` is looked at for Terrace's heaps only: whole, tiered, min_size.
std::vector<std::string> environment_for(Heap heap, const Supply* supply);

struct Outcome {
  double figure = 0;  // what it printed first
  double by_cpu = 0;  // what it printed second, if it did: the same for a second of CPU time
  std::string output;
  std::string why;  // not empty: it failed, and how
  double took_ms = 0;
};

// A program by its path, its stdout read to the end. Killed after `limit_s`.
Outcome run_program(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                    double limit_s = 120);
// A part of bench_malloc_child.
Outcome run_part(const std::string& part, const std::vector<uint64_t>& numbers, Heap heap,
                 const Supply* supply);

// Started and not waited for, its stdout and stderr in `log_file`.
int start_program(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                  const std::string& log_file);

double now_s();
double median(std::vector<double> values);
[[noreturn]] void die(const std::string& what);

}  // namespace terrace::bench
