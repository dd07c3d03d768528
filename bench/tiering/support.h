// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of bench_tiering: memory files that stand for DDR and CXL, medians, clocks.
//
// "CXL" is a second memory file in the same DRAM: the bench measures the cost of moves, not the speed of
// CXL memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/units.h"
#include "core/os/memory_map.h"
#include "terrace/tiering.h"
#include "tests/support/fake_session.h"
#include "tiering/migration/tiered_memory.h"

namespace terrace::bench {

struct Sizes {
  bool smoke = false;
  int rounds = 5;
  double soak_s = 60;
  double settle_s = 10;
};

[[noreturn]] void die(const std::string& text);
template <typename Value>
Value must(Result<Value> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.error().to_string());
  return std::move(*result);
}
void must(const Status& status, const char* what);

double median(std::vector<double> values);
double seconds();             // monotonic
double thread_cpu_seconds();  // of the calling thread

// xorshift64*: cheap beside an access to memory.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
  }
};

// A range over two memory files, all in DDR at first, with the CXL file's pages there already (as a lease's
// are).
struct TwoFiles {
  TwoFiles(uint64_t bytes, uint64_t granule_bytes);
  ~TwoFiles();
  bool huge = false;
  os::MemoryMap map;
  UniqueFd ddr, cxl;
  tiering::TieredMemory memory;
};

// A lease of `bytes` whose pages are there, in huge pages where the machine gives them to memory files.
std::shared_ptr<Lease> make_lease(Session& session, uint64_t bytes);
void populate(int fd, uint64_t bytes);
bool in_huge_pages(const void* at, uint64_t bytes);

// Each prints lines for a person and adds its keys.
void measure_mover(const Sizes& sizes, nlohmann::json& out);
void measure_sampler(const Sizes& sizes, nlohmann::json& out);
void measure_policy(const Sizes& sizes, nlohmann::json& out);
void measure_soak(const Sizes& sizes, nlohmann::json& out);

}  // namespace terrace::bench
