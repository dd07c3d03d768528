// SPDX-License-Identifier: Apache-2.0
// Ranges over two memory nodes: against a kernel that is made up, and as far as one node goes against this one.
#include "tiering/migration/node_moves.h"

#include <doctest/doctest.h>
#include <errno.h>
#include <fcntl.h>

#include <map>
#include <set>
#include <vector>

#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"
#include "tiering/engine/engine.h"

using namespace terrace;
using namespace terrace::test;
using tiering::MoveReport;
using tiering::MoveResult;
using tiering::Residency;

namespace {

constexpr uint64_t page = 4096;
constexpr int near_node = 0, far_node = 1;

// Where pages are, and what is refused. As in Linux a page without a translation is not found, one that is
// named is moved alone or with its huge page, and pages whose copy was refused are only counted.
struct MadeUpKernel {
  std::map<uintptr_t, int> nodes;  // of pages that moved; all others are near
  std::set<uintptr_t> pinned;
  uint64_t far_room_pages = UINT64_MAX;
  bool huge = false;
  int refuses_mbind = 0;
  uint64_t asked = 0;  // calls that move
  std::vector<int> preferred;
  UniqueFd pagemap{::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)};

  bool present(uintptr_t at) const {
    uint64_t entry = 0;
    REQUIRE(::pread(pagemap.get(), &entry, 8, static_cast<off_t>(at / page * 8)) == 8);
    return entry >> 63 != 0;
  }
  int node_of(uintptr_t at) const {
    const auto found = nodes.find(at);
    return found == nodes.end() ? near_node : found->second;
  }
  uint64_t far_pages() const {
    uint64_t count = 0;
    for (const auto& [at, node] : nodes) count += node == far_node ? 1 : 0;
    return count;
  }
};
MadeUpKernel* made_up = nullptr;

long move_pages(unsigned long count, void** pages, const int* nodes, int* status) {
  MadeUpKernel& kernel = *made_up;
  long failed = 0;
  if (nodes != nullptr) ++kernel.asked;
  for (unsigned long i = 0; i < count; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(pages[i]);
    if (!kernel.present(at)) {
      status[i] = -ENOENT;
    } else if (nodes == nullptr) {
      status[i] = kernel.node_of(at);
    } else if (kernel.pinned.contains(at)) {
      ++failed;
    } else {
      const uintptr_t first = kernel.huge ? at / (2 * mib) * (2 * mib) : at;
      for (uintptr_t one = first; one < first + (kernel.huge ? 2 * mib : page); one += page) {
        if (nodes[i] == far_node && kernel.node_of(one) != far_node &&
            kernel.far_pages() == kernel.far_room_pages) {
          errno = ENOMEM;
          return -1;
        }
        kernel.nodes[one] = nodes[i];
      }
      status[i] = nodes[i];
    }
  }
  return failed;
}

long prefer(void*, unsigned long, int node) {
  made_up->preferred.push_back(node);
  errno = made_up->refuses_mbind;
  return errno == 0 ? 0 : -1;
}

constexpr tiering::NodeCalls made_up_calls = {.move_pages = move_pages, .prefer = prefer};

struct NodeRange {
  explicit NodeRange(uint32_t granules, uint64_t granule_bytes = 2 * mib,
                     const tiering::NodeCalls* calls = &made_up_calls, int cxl_node = far_node)
      : map(take(os::MemoryMap::reserve(granules * granule_bytes, 2 * mib))),
        file(take(os::make_memory_file("nodes", granules * granule_bytes))) {
    made_up = &kernel;
    REQUIRE(memory.open({.base = reinterpret_cast<char*>(map.data()),
                         .bytes = granules * granule_bytes,
                         .granule_bytes = granule_bytes,
                         .ddr_fd = file.get(),
                         .ddr_node = near_node,
                         .cxl_node = cxl_node,
                         .node_calls = calls}) == 0);
  }
  ~NodeRange() { memory.close(); }

  uint64_t* words(uint32_t granule) {
    return reinterpret_cast<uint64_t*>(map.data() + granule * memory.granule_bytes());
  }
  void fill(uint32_t granule) {
    for (uint64_t i = 0; i < memory.granule_bytes() / 8; ++i) words(granule)[i] = uint64_t{granule} << 32 | i;
  }
  bool holds(uint32_t granule) {
    for (uint64_t i = 0; i < memory.granule_bytes() / 8; ++i)
      if (words(granule)[i] != (uint64_t{granule} << 32 | i)) return false;
    return true;
  }
  uintptr_t page_at(uint32_t granule, uint64_t index) {
    return reinterpret_cast<uintptr_t>(words(granule)) + index * page;
  }

  os::MemoryMap map;
  UniqueFd file;
  MadeUpKernel kernel;
  tiering::TieredMemory memory;
  tiering::Mover none;  // never started
};

}  // namespace

TEST_CASE("node moves: every page arrives, huge or small, also after a zap; the policy is told first") {
  for (const bool huge : {false, true}) {
    NodeRange range(4);
    range.kernel.huge = huge;
    REQUIRE(range.memory.map(0, 2, Residency::ddr) == 0);
    REQUIRE(range.memory.map(2, 2, Residency::cxl) == 0);
    CHECK(range.kernel.preferred == std::vector<int>{near_node, far_node});
    for (uint32_t granule = 0; granule < 4; ++granule) range.fill(granule);
    REQUIRE(::madvise(range.map.data(), range.memory.bytes(), MADV_DONTNEED) == 0);  // as the sampler does
    const MoveReport report = range.memory.move(range.none, 0, 2, Residency::cxl);
    CHECK(report.result == MoveResult::done);
    CHECK(report.granules == 2);
    CHECK(report.times.copy_ns > 0);
    CHECK(report.times.stall_ns >= report.times.copy_ns);
    CHECK(range.kernel.far_pages() == 2 * 512);
    CHECK(range.memory.free_slots() == 0);  // all have sunk
    CHECK(range.memory.move(range.none, 1, 1, Residency::ddr).result == MoveResult::done);
    CHECK(range.kernel.far_pages() == 512);
    CHECK(range.memory.residency(1) == Residency::ddr);
    CHECK(range.memory.mappings() == 0);  // one mapping, whatever is where
    for (uint32_t granule = 0; granule < 4; ++granule) CHECK(range.holds(granule));
    CHECK(range.memory.check_all() == nullptr);
  }
}

TEST_CASE("node moves: a few pinned pages stay behind, many keep the granule where it is") {
  NodeRange range(2);
  REQUIRE(range.memory.map(0, 2, Residency::ddr) == 0);
  for (uint64_t i = 0; i < 8; ++i) range.kernel.pinned.insert(range.page_at(0, 3 + i));
  CHECK(range.memory.move(range.none, 0, 1, Residency::cxl).result == MoveResult::done);
  CHECK(range.kernel.far_pages() == 512 - 8);
  for (uint64_t i = 0; i < 9; ++i) range.kernel.pinned.insert(range.page_at(1, 3 + i));
  const MoveReport report = range.memory.move(range.none, 1, 1, Residency::cxl);
  CHECK(report.result == MoveResult::held);
  CHECK(report.os_errno == EBUSY);
  CHECK(range.memory.residency(1) == Residency::ddr);
  CHECK(range.kernel.far_pages() == 512 - 8);  // what went came back
  CHECK(range.kernel.preferred.back() == near_node);
  CHECK(range.memory.check_all() == nullptr);
}

TEST_CASE("node moves: a node without room, and a kernel that refuses, leave all as it was") {
  NodeRange range(3);
  range.kernel.far_room_pages = 700;
  REQUIRE(range.memory.map(0, 3, Residency::ddr) == 0);
  CHECK(range.memory.move(range.none, 0, 3, Residency::cxl).granules == 1);
  MoveReport report = range.memory.move(range.none, 1, 1, Residency::cxl);
  CHECK(report.result == MoveResult::no_memory);
  CHECK(range.kernel.far_pages() == 512);
  CHECK(range.memory.cxl_granules() == 1);
  range.kernel.refuses_mbind = EPERM;
  report = range.memory.move(range.none, 1, 1, Residency::cxl);
  CHECK(report.result == MoveResult::refused);
  CHECK(report.os_errno == EPERM);
  CHECK(range.memory.map(2, 1, Residency::cxl) == EPERM);
}

TEST_CASE(
    "node moves: held granules stay; small ones go together, and one by one where one of them is pinned") {
  NodeRange range(8, 64 * kib);
  REQUIRE(range.memory.map(0, 8, Residency::ddr) == 0);
  range.memory.hold(3, 1);
  CHECK(range.memory.move(range.none, 0, 8, Residency::cxl).granules == 3);
  CHECK(range.memory.move(range.none, 3, 1, Residency::cxl).result == MoveResult::held);
  range.memory.unhold(3, 1);
  range.kernel.pinned.insert(range.page_at(4, 0));  // one of sixteen is too many
  CHECK(range.memory.move(range.none, 3, 5, Residency::cxl).granules == 1);
  CHECK(range.kernel.far_pages() == 4 * 16);
  CHECK(range.memory.move(range.none, 5, 3, Residency::cxl).granules == 3);
  range.kernel.pinned.clear();
  range.kernel.asked = 0;
  CHECK(range.memory.move(range.none, 0, 3, Residency::ddr).granules == 3);
  CHECK(range.kernel.asked == 1);
  CHECK(range.memory.move(range.none, 0, 8, Residency::ddr).granules == 0);
  CHECK(range.memory.check_all() == nullptr);
}

TEST_CASE("node moves: giving prepared pages back takes nothing away, forgetting does") {
  NodeRange range(2, 64 * kib);
  REQUIRE(range.memory.map(0, 2, Residency::cxl) == 0);
  range.fill(0);
  range.fill(1);
  CHECK(range.memory.prepare_ddr(0, 2) == 2);
  range.memory.give_prepared_back(0, 2);
  CHECK(range.holds(0));
  CHECK(range.holds(1));
  range.memory.forget(0, 1, false);
  CHECK(range.words(0)[5] == 0);
  CHECK(range.holds(1));
  range.memory.forget(1, 1, true);
  CHECK(range.holds(1));
  CHECK(range.memory.cxl_granules() == 0);
  CHECK(range.memory.check_all() == nullptr);
}

TEST_CASE("node moves: an engine without userfaultfd moves ranges over nodes, and no others") {
  NodeRange range(4);
  REQUIRE(range.memory.map(0, 4, Residency::ddr) == 0);
  for (uint32_t granule = 0; granule < 4; ++granule) range.fill(granule);
  TwoFiles files(1);
  REQUIRE(files.memory.map(0, 1, Residency::ddr) == 0);
  UniqueFd no_device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  tiering::Engine engine;
  tiering::EngineOptions options;
  options.userfault_device = no_device.get();
  options.publish = false;
  REQUIRE(engine.open(options) != 0);
  CHECK_FALSE(engine.can_move());
  uint32_t nodes = 0, other = 0;
  tiering::RangeOptions chosen;
  chosen.ddr_granules_max = 2;
  REQUIRE(engine.add_range(&range.memory, chosen, &nodes) == 0);
  REQUIRE(engine.add_range(&files.memory, chosen, &other) == 0);
  CHECK(engine.statistics(nodes).state == static_cast<uint32_t>(layout::TierState::running));
  CHECK(engine.statistics(other).state == static_cast<uint32_t>(layout::TierState::no_uffd));
  CHECK(engine.move_now(nodes, 0, 3, Residency::cxl) == MoveResult::done);
  CHECK(range.kernel.far_pages() == 3 * 512);
  CHECK(engine.move_now(nodes, 0, 1, Residency::ddr) == MoveResult::done);
  CHECK(engine.move_now(nodes, 1, 1, Residency::ddr) == MoveResult::no_memory);  // the bound
  CHECK(engine.statistics(nodes).demotions == 3);
  CHECK(engine.statistics(nodes).promotions == 1);
  for (uint32_t granule = 0; granule < 4; ++granule) CHECK(range.holds(granule));
  engine.close();
}

TEST_CASE("node moves: options that make no sense are refused") {
  os::MemoryMap map = take(os::MemoryMap::reserve(2 * mib, 2 * mib));
  tiering::TieredMemory memory;
  tiering::TieredMemoryOptions options;
  options.base = reinterpret_cast<char*>(map.data());
  options.bytes = 2 * mib;
  options.ddr_node = 0;
  CHECK(memory.open(options) == EINVAL);
  options.cxl_node = 1;
  CHECK(memory.open(options) == EBADF);
  NodeRange range(1);
  CHECK(range.memory.add_segment(range.file.get(), 2 * mib) == EINVAL);
}

TEST_CASE("node moves: this kernel finds pages on the node where they are, and no node that is not there") {
  NodeRange range(2, 2 * mib, &tiering::kernel_node_calls, near_node);
  if (const int failed = range.memory.map(0, 2, Residency::ddr); failed != 0) {
    TERRACE_SKIP(memory_policy, "mbind is refused here, errno " << failed);
    return;
  }
  range.fill(0);
  const MoveReport report = range.memory.move(range.none, 0, 2, Residency::cxl);
  CHECK(report.result == MoveResult::done);
  CHECK(report.granules == 2);
  CHECK(range.holds(0));
  NodeRange nowhere(1, 2 * mib, &tiering::kernel_node_calls, 1000);
  REQUIRE(nowhere.memory.map(0, 1, Residency::ddr) == 0);
  nowhere.fill(0);
  CHECK(nowhere.memory.move(nowhere.none, 0, 1, Residency::cxl).result == MoveResult::refused);
  CHECK(nowhere.memory.residency(0) == Residency::ddr);
  CHECK(nowhere.holds(0));
}
