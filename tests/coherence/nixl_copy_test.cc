// SPDX-License-Identifier: Apache-2.0
// Transfers of the backend for NIXL on emulated hosts without coherent caches: an agent with memory, another one that
// writes and reads it, and the truth beside. Each kind of step is left out once, and damage must be seen.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bindings/nixl/copy.h"
#include "core/base/prng.h"
#include "tests/coherence/emulated_hosts.h"

using namespace terrace;
using namespace terrace::coherence;

namespace {

enum class LeftOut { nothing, acquire, edges, publish, publish_all, acquire_written };

constexpr size_t region_bytes = 16 * 64;

// What one host does to memory of the fabric; the other side of a copy is the host's own.
struct EmulatedLines {
  Fabric& fabric;
  EmulatedHost host;
  LeftOut left_out;

  void drop(const std::byte* at, size_t bytes) const {
    host.invalidate(at, bytes, Step::none);
    host.full_barrier(Step::none);
  }
  void bring_back(const std::byte* at, size_t bytes) const {
    host.write_back(at, bytes, Step::none);
    host.full_barrier(Step::none);
  }
  void acquire(const std::byte* at, size_t bytes) const {
    if (left_out != LeftOut::acquire) drop(at, bytes);
  }
  void acquire_edge(const std::byte* at) const {
    if (left_out != LeftOut::edges) drop(at, 1);
  }
  void publish(const std::byte* at, size_t bytes) const {
    if (left_out != LeftOut::publish) bring_back(at, bytes);
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) const {
    if (fabric.has(to))
      host.write(to, from, bytes);
    else
      host.read(to, from, bytes);
    host.load_barrier(Step::none);  // on x86 a later store, as of a notification, does not overtake a load
  }
};

// false: somebody read another byte than was written last.
bool goes_well(uint64_t seed, LeftOut left_out) {
  Fabric fabric(region_bytes, 2, seed);
  Prng prng(seed);
  fabric.set_wildness(static_cast<uint32_t>(prng.below(48)));
  Program at_home{.host = 0, .turn = [] {}}, away{.host = 1, .turn = [] {}};
  const EmulatedLines owner{fabric, EmulatedHost(fabric, at_home), left_out},
      peer{fabric, EmulatedHost(fabric, away), left_out};
  std::byte* const memory = fabric.memory().data();
  std::vector<std::byte> truth(region_bytes), own(region_bytes);
  owner.copy(memory, truth.data(), region_bytes);
  owner.bring_back(memory, region_bytes);
  for (int round = 0; round < 60; ++round) {
    const size_t first = prng.below(region_bytes),
                 bytes = 1 + prng.below(std::min<size_t>(region_bytes - first, 200));
    const auto change = [&] {
      for (size_t at = first; at != first + bytes; ++at)
        own[at] = truth[at] = static_cast<std::byte>(prng.below(256));
    };
    switch (prng.below(3)) {
      case 0:  // the owner stores by itself, and notifies
        change();
        owner.copy(memory + first, own.data() + first, bytes);
        if (left_out != LeftOut::publish_all) owner.bring_back(memory, region_bytes);
        break;
      case 1:  // the peer writes and notifies; the owner fetches the notification
        change();
        nixl::copy_by(peer,
                      {.to = memory + first, .from = own.data() + first, .bytes = bytes, .publish = true});
        if (left_out != LeftOut::acquire_written) owner.drop(memory + first, bytes);
        owner.copy(own.data(), memory, region_bytes);
        if (own != truth) return false;
        break;
      default:  // the peer reads
        nixl::copy_by(peer,
                      {.to = own.data() + first, .from = memory + first, .bytes = bytes, .acquire = true});
        if (std::memcmp(own.data() + first, truth.data() + first, bytes) != 0) return false;
    }
  }
  return true;
}

int damaged(LeftOut left_out) {
  int worlds = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) worlds += !goes_well(seed, left_out);
  return worlds;
}

}  // namespace

TEST_CASE("NIXL copies: hosts without coherent caches read what was written last") {
  CHECK(damaged(LeftOut::nothing) == 0);
}

TEST_CASE("NIXL copies: no step is there for nothing") {
  CHECK(damaged(LeftOut::acquire) > 0);
  CHECK(damaged(LeftOut::edges) > 0);
  CHECK(damaged(LeftOut::publish) > 0);
  CHECK(damaged(LeftOut::publish_all) > 0);
  CHECK(damaged(LeftOut::acquire_written) > 0);
}
