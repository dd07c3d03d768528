// SPDX-License-Identifier: Apache-2.0
// A tiered range over two memory nodes of a real kernel: pages are where the range says, bytes stay whole, a
// pinned page keeps its place, and a fork changes nothing. Nodes: 0 and 1; without node 1 nothing is tested.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "core/os/node_attributes.h"
#include "terrace/tiering.h"
#include "tests/support/skip.h"

using namespace terrace;

namespace {

constexpr uint64_t page = 4096;

bool two_nodes() {
  if (os::node_attributes(1).total_bytes > 0) return true;
  TERRACE_SKIP(second_node, "there is no memory node 1");
  return false;
}

template <typename Value>
Value take(Result<Value> result) {
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? std::string() : result.error().to_string()));
  return std::move(*result);
}

// Pages of the part on `node`, as the kernel says.
uint64_t pages_on(std::span<std::byte> part, int node) {
  std::vector<void*> pages;
  for (uint64_t at = 0; at < part.size(); at += page) pages.push_back(part.data() + at);
  std::vector<int> status(pages.size(), -1);
  REQUIRE(::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, status.data(), 0) == 0);
  return static_cast<uint64_t>(std::count(status.begin(), status.end(), node));
}

uint64_t mappings_of(std::span<std::byte> part) {
  FILE* file = ::fopen("/proc/self/maps", "re");
  REQUIRE(file != nullptr);
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  uint64_t count = 0;
  char line[4352];
  while (::fgets(line, sizeof(line), file) != nullptr) {
    const uintptr_t start = std::strtoull(line, nullptr, 16);
    if (start >= begin && start < begin + part.size()) ++count;
  }
  ::fclose(file);
  return count;
}

void fill(std::span<std::byte> bytes) {
  auto* words = reinterpret_cast<uint64_t*>(bytes.data());
  for (uint64_t i = 0; i < bytes.size() / 8; ++i) words[i] = i * 0x9e3779b97f4a7c15u;
}

bool whole(std::span<std::byte> bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  for (uint64_t i = 0; i < bytes.size() / 8; ++i)
    if (words[i] != i * 0x9e3779b97f4a7c15u) return false;
  return true;
}

struct NodeRange {
  explicit NodeRange(uint64_t bytes, uint64_t ddr, const char* policy = "static", uint64_t granule = 2 * mib,
                     uint64_t round_ns = 250'000'000)
      : tiering(take(Tiering::start({.copy_bytes_per_s_max = 0, .round_ns = round_ns}))),
        range(take(tiering->make_range({.bytes = bytes,
                                        .ddr_bytes_max = ddr,
                                        .granule_bytes = granule,
                                        .name = "nodes",
                                        .policy = policy,
                                        .ddr_node = 0,
                                        .cxl_node = 1},
                                       {}))) {}
  std::span<std::byte> part(uint64_t at, uint64_t bytes) { return range->bytes().subspan(at, bytes); }
  uint64_t to(Tier tier, uint64_t at, uint64_t bytes) { return take(range->move_to(part(at, bytes), tier)); }

  std::unique_ptr<Tiering> tiering;
  std::unique_ptr<TieredRange> range;
};

}  // namespace

TEST_CASE("first touches land on the node of the granule's tier, and moves take every page along") {
  if (!two_nodes()) return;
  for (const uint64_t granule : {2 * mib, 64 * kib}) {
    NodeRange nodes(32 * mib, 16 * mib, "static", granule);
    CHECK(nodes.range->status().state == TieringState::running);
    fill(nodes.range->bytes());
    CHECK(pages_on(nodes.part(0, 16 * mib), 0) == 16 * mib / page);
    CHECK(pages_on(nodes.part(16 * mib, 16 * mib), 1) == 16 * mib / page);
    CHECK(nodes.to(Tier::cxl, 2 * mib, 4 * mib) == 4 * mib);
    CHECK(pages_on(nodes.part(2 * mib, 4 * mib), 1) == 4 * mib / page);
    CHECK(pages_on(nodes.part(0, 2 * mib), 0) == 2 * mib / page);
    // As the sampler leaves them: without translations.
    REQUIRE(::madvise(nodes.range->bytes().data(), 32 * mib, MADV_DONTNEED) == 0);
    CHECK(nodes.to(Tier::ddr, 20 * mib, 4 * mib) == 4 * mib);
    CHECK(pages_on(nodes.part(20 * mib, 4 * mib), 0) == 4 * mib / page);
    CHECK(whole(nodes.range->bytes()));
    CHECK(mappings_of(nodes.range->bytes()) == 1);
    const TieredRangeStatus status = nodes.range->status();
    CHECK(status.promotions == 4 * mib / granule);
    CHECK(status.demotions == 4 * mib / granule);
    MESSAGE("granules of " << granule / kib << " KiB: copied at "
                           << (status.promoted_bytes + status.demoted_bytes) * 1'000'000'000 / mib /
                                  std::max<uint64_t>(status.copy_ns, 1)
                           << " MiB/s, all included");
    CHECK_FALSE(nodes.range->move_to(nodes.part(24 * mib, 8 * mib), Tier::ddr).ok());  // beyond the bound
  }
}

TEST_CASE("memory touched only after a move comes from the node that the granule went to") {
  if (!two_nodes()) return;
  NodeRange nodes(8 * mib, 8 * mib);
  CHECK(nodes.to(Tier::cxl, 0, 4 * mib) == 4 * mib);
  fill(nodes.range->bytes());
  CHECK(pages_on(nodes.part(0, 4 * mib), 1) == 4 * mib / page);
  CHECK(pages_on(nodes.part(4 * mib, 4 * mib), 0) == 4 * mib / page);
}

TEST_CASE("what a pipe has pinned stays, is read from the pipe unchanged, and moves when it is let go") {
  if (!two_nodes()) return;
  // A pinned page is the whole granule where that is one huge page; of small pages so many are pinned that it
  // stays.
  for (const uint64_t granule : {2 * mib, 64 * kib}) {
    NodeRange nodes(4 * mib, 4 * mib, "static", granule);
    fill(nodes.range->bytes());
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    UniqueFd out(ends[0]), in(ends[1]);
    constexpr uint64_t pinned = 12 * page;
    const iovec vector{.iov_base = nodes.range->bytes().data(), .iov_len = pinned};
    REQUIRE(::vmsplice(in.get(), &vector, 1, 0) == static_cast<ssize_t>(pinned));
    CHECK(nodes.to(Tier::cxl, 0, 2 * mib) == 2 * mib - granule);
    CHECK(nodes.range->tier_of(nodes.range->bytes().data()) == Tier::ddr);
    CHECK(pages_on(nodes.part(0, granule), 0) == granule / page);
    CHECK(whole(nodes.range->bytes()));
    // The pipe sees what is stored now: it is the same page still.
    auto* first = reinterpret_cast<uint64_t*>(nodes.range->bytes().data());
    *first = 77;
    std::vector<uint64_t> got(pinned / 8);
    REQUIRE(::read(out.get(), got.data(), pinned) == static_cast<ssize_t>(pinned));
    CHECK(got[0] == 77);
    *first = 0;
    CHECK(nodes.to(Tier::cxl, 0, granule) == granule);
    CHECK(pages_on(nodes.part(0, granule), 1) == granule / page);
    CHECK(whole(nodes.range->bytes()));
  }
}

TEST_CASE("a fork does not inherit it, and moves go on beside a child that lives") {
  if (!two_nodes()) return;
  NodeRange nodes(8 * mib, 8 * mib);
  fill(nodes.range->bytes());
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd out(ends[0]), in(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    char go = 0;
    if (::read(out.get(), &go, 1) != 1) ::_exit(1);
    ::signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile uint64_t*>(nodes.range->bytes().data()) = 666;
    ::_exit(0);
  }
  REQUIRE(child > 0);
  CHECK(nodes.to(Tier::cxl, 0, 8 * mib) == 8 * mib);
  CHECK(pages_on(nodes.range->bytes(), 1) == 8 * mib / page);
  REQUIRE(::write(in.get(), "g", 1) == 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(whole(nodes.range->bytes()));
}

TEST_CASE("a sleeper on a futex that processes share is found after the page has moved") {
  if (!two_nodes()) return;
  NodeRange nodes(2 * mib, 2 * mib);
  auto* word = reinterpret_cast<uint32_t*>(nodes.range->bytes().data());
  std::atomic<bool> woken{false};
  std::thread sleeper([&] {
    while (std::atomic_ref<uint32_t>(*word).load() == 0) ::syscall(SYS_futex, word, FUTEX_WAIT, 0, nullptr);
    woken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(nodes.to(Tier::cxl, 0, 2 * mib) == 2 * mib);
  std::atomic_ref<uint32_t>(*word).store(1);
  CHECK(::syscall(SYS_futex, word, FUTEX_WAKE, 1) == 1);
  sleeper.join();
  CHECK(woken);
}

TEST_CASE("two writers lose nothing while granules go to and fro") {
  if (!two_nodes()) return;
  NodeRange nodes(16 * mib, 16 * mib);
  constexpr uint64_t words = 16 * mib / 8;
  auto* at = reinterpret_cast<uint64_t*>(nodes.range->bytes().data());
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, stores{0};
  auto write = [&](uint64_t mine) {
    std::vector<uint64_t> shadow(words / 512);
    for (uint64_t turn = 1; !stop; ++turn) {
      const uint64_t i = turn * 40503 % shadow.size();
      uint64_t& word = at[i * 512 + mine];
      if (word != shadow[i]) ++wrong;
      word = shadow[i] = turn << 1 | mine;
      ++stores;
    }
  };
  std::thread one(write, 0), two(write, 1);
  uint64_t moved = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    moved += nodes.to(Tier::cxl, 0, 16 * mib) / (2 * mib);
    moved += nodes.to(Tier::ddr, 0, 16 * mib) / (2 * mib);
  }
  stop = true;
  one.join();
  two.join();
  CHECK(wrong == 0);
  CHECK(moved > 8);
  MESSAGE(moved << " granules moved under " << stores << " checked stores");
}

TEST_CASE("without a sampler, what is said to be used rises by itself and the rest makes room") {
  if (!two_nodes()) return;
  NodeRange nodes(32 * mib, 8 * mib, "", 2 * mib, 20'000'000);
  fill(nodes.range->bytes());
  const auto hot = nodes.part(24 * mib, 4 * mib);
  bool there = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!there && std::chrono::steady_clock::now() < end) {
    nodes.range->note_access(hot, 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    there = nodes.range->tier_of(hot.data()) == Tier::ddr && nodes.range->tier_of(&hot.back()) == Tier::ddr;
  }
  CHECK(there);
  nodes.range->pause();
  CHECK(pages_on(hot, 0) == hot.size() / page);
  CHECK(nodes.range->status().ddr_bytes <= 8 * mib);
  CHECK(whole(nodes.range->bytes()));
}
