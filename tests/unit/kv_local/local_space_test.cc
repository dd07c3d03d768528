// SPDX-License-Identifier: Apache-2.0
// Local copies of a KV space's blocks: when they answer, and when they must not.
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "core/base/unique_fd.h"
#include "core/os/lossy_access.h"
#include "libclient/coherence/formatting.h"
#include "libclient/kv/block.h"
#include "tests/support/eventually.h"
#include "tests/unit/kv_local/local_fixture.h"

namespace terrace {
namespace {

TEST_CASE("a block that is read a second time is read from its copy from then on") {
  for (const SpaceCoherence coherence : both_coherences) {
    LocalFixture scene(coherence);
    const auto space = scene.attach(LocalFixture::open());
    REQUIRE(kv_put(*space, scene.names, "k").ok());
    REQUIRE(kv_put(*space, scene.names, "once").ok());
    CHECK(kv_check(*space, scene.names, "once") == 1);
    CHECK(kv_check(*space, scene.names, "k") == 1);
    CHECK(space->counters().local_copied == 0);
    CHECK(kv_check(*space, scene.names, "k") == 1);
    CHECK(space->counters().local_copied == 1);
    CHECK(space->counters().local_hits == 0);
    for (int time = 0; time < 5; ++time) CHECK(scene.is_local(*space, "k"));
    const auto view = space->view(scene.names, "k");
    REQUIRE(view.ok());
    CHECK(LocalFixture::has_bytes(*view, "k"));
    CHECK(reinterpret_cast<uintptr_t>(view->bytes().data()) % 64 == 0);
    const auto memory = scene.scene.memory.span();
    CHECK((view->bytes().data() < memory.data() || view->bytes().data() >= memory.data() + memory.size()));
    const KvCounters counted = space->counters();
    CHECK(counted.local_hits == 6);
    CHECK(counted.local_hit_bytes == 6 * 4096);
    CHECK(counted.hits == 9);
    CHECK(counted.misses == 0);
    const KvStat stat = *space->stat();
    CHECK(stat.local_blocks == 1);
    CHECK(stat.local_bytes >= 4096);
    CHECK(stat.local_max_bytes == 1 << 20);
    // Too little room is an error of a copy, too.
    std::vector<std::byte> into(100);
    CHECK(space->get(scene.names, {.key = "k", .into = into}).error().code == ErrorCode::invalid_argument);
    // Equal keys of another namespace are other blocks.
    const KvNamespace other = *KvNamespace::of("other");
    CHECK(kv_check(*space, other, "k") == 0);
  }
}

TEST_CASE("views make copies, and are of copies") {
  for (const SpaceCoherence coherence : both_coherences) {
    LocalFixture scene(coherence);
    const auto space = scene.attach(LocalFixture::open());
    REQUIRE(kv_put(*space, scene.names, "k").ok());
    auto first = space->view(scene.names, "k");
    auto second = space->view(scene.names, "k");
    auto third = space->view(scene.names, "k");
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    REQUIRE(third.ok());
    CHECK(space->counters().local_copied == 1);
    CHECK(space->counters().local_hits == 1);
    CHECK(first->bytes().data() != second->bytes().data());
    CHECK(second->bytes().data() == third->bytes().data());
    first->reset();
    // No pin is left: it can be erased, and the copy's bytes stay.
    CHECK(space->erase(scene.names, "k").ok());
    REQUIRE(scene.put_other(*space, "k").ok());
    CHECK(LocalFixture::has_bytes(*third, "k"));
    CHECK(LocalFixture::has_bytes(*second, "k"));
    CHECK(scene.has_other(*space, "k"));
    KvView moved = std::move(*third);
    second->reset();
    CHECK(LocalFixture::has_bytes(moved, "k"));
    CHECK(space->view(scene.names, "nothing").error().code == ErrorCode::not_found);
  }
}

TEST_CASE("what was erased, evicted or replaced is not read from its copy") {
  for (const SpaceCoherence coherence : both_coherences) {
    LocalFixture scene(coherence);
    const auto owner = scene.scene.attach(true);
    const auto reader = scene.attach(LocalFixture::open(), false);
    REQUIRE(kv_put(*owner, scene.names, "k").ok());
    scene.warm(*reader, "k");
    CHECK(scene.is_local(*reader, "k"));
    REQUIRE(owner->erase(scene.names, "k").ok());
    CHECK(kv_check(*reader, scene.names, "k") == 0);
    CHECK(reader->view(scene.names, "k").error().code == ErrorCode::not_found);
    CHECK(reader->counters().local_stale == 1);
    CHECK(reader->stat()->local_blocks == 0);
    // The same key in the same record, other bytes.
    for (int round = 0; round < 3; ++round) {
      REQUIRE(scene.put_other(*owner, "k").ok());
      for (int time = 0; time < 3; ++time) CHECK(scene.has_other(*reader, "k"));
      REQUIRE(owner->erase(scene.names, "k").ok());
      REQUIRE(kv_put(*owner, scene.names, "k").ok());
      for (int time = 0; time < 3; ++time) CHECK(kv_check(*reader, scene.names, "k") == 1);
      REQUIRE(owner->erase(scene.names, "k").ok());
    }
    CHECK(reader->counters().local_hits >= 6);
    // Evicted, by want of room and by hand.
    REQUIRE(kv_put(*owner, scene.names, "e").ok());
    scene.warm(*reader, "e");
    for (int index = 0; index < 2000; ++index)
      REQUIRE(kv_put(*owner, scene.names, "many " + std::to_string(index)).ok());
    CHECK(owner->counters().evicted > 500);
    REQUIRE(owner->evict(UINT64_MAX).ok());
    CHECK(kv_check(*reader, scene.names, "e") == 0);
  }
}

TEST_CASE("a copy ends with its block's time") {
  LocalFixture scene;
  const auto space = scene.attach(LocalFixture::open());
  REQUIRE(kv_put(*space, scene.names, "short", 64, {.ttl_s = 2}).ok());
  REQUIRE(kv_put(*space, scene.names, "long", 64, {.ttl_s = 1000}).ok());
  (void)kv_check(*space, scene.names, "short", 64);  // which takes no time, or finds nothing any more
  (void)kv_check(*space, scene.names, "short", 64);
  scene.warm(*space, "long", 64);
  CHECK(test::eventually([&] { return kv_check(*space, scene.names, "short", 64) == 0; }));
  CHECK(space->view(scene.names, "short").error().code == ErrorCode::not_found);
  CHECK(scene.is_local(*space, "long", 64));
  REQUIRE(scene.put_other(*space, "short", 64).ok());
  CHECK(scene.has_other(*space, "short", 64));
}

TEST_CASE("a record that says another thing under the same version is not its copy's") {
  LocalFixture scene;
  const auto space = scene.attach(LocalFixture::open());
  REQUIRE(kv_put(*space, scene.names, "one").ok());
  REQUIRE(kv_put(*space, scene.names, "two").ok());
  scene.warm(*space, "one");
  const uint64_t seed = kv::namespace_hash("test");
  const kv::BlockKey one = kv::key_of(seed, "one"), two = kv::key_of(seed, "two");
  const auto record_of = [&](const kv::BlockKey& key) -> layout::BlockRecord* {
    const auto memory = scene.scene.memory.span();
    for (size_t at = 0; at + 64 <= memory.size(); at += 64) {
      auto* const record = reinterpret_cast<layout::BlockRecord*>(memory.data() + at);
      if (record->key[0] == key.low && record->key[1] == key.high && record->word >> 63 == 1) return record;
    }
    FAIL("no such record");
    return nullptr;
  };
  // As a host leaves it that lost power with its own last stores, and whose successor took the version anew.
  kv::Block other;
  const auto geometry = coherence::read_geometry(scene.scene.memory.span(), coherence::SpaceContent::blocks);
  REQUIRE(geometry.ok());
  other = *kv::block_of(*record_of(two), *geometry);
  layout::BlockRecord* const record = record_of(one);
  const uint64_t word = record->word;
  other.key = one;
  other.word = word;
  *record = kv::record_of(other, word & layout::word_version_mask);
  REQUIRE(record->word == word);
  std::vector<std::byte> into(4096);
  CHECK(space->get(scene.names, {.key = "one", .into = into}).error().code == ErrorCode::corrupt);
  CHECK(space->counters().local_stale == 1);
}

#if !defined(TERRACE_LOSSY_PLAIN)  // memory that goes away ends the process
TEST_CASE("a lease that ends is an error with copies as without") {
  for (const SpaceCoherence coherence : both_coherences) {
    const UniqueFd file(::memfd_create("kv_local", 0));
    constexpr size_t bytes = 4 << 20;
    REQUIRE(::ftruncate(file.get(), bytes) == 0);
    auto* const at =
        static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    REQUIRE(at != MAP_FAILED);
    const std::span<std::byte> memory(at, bytes);
    REQUIRE(KvSpace::format(memory, LocalFixture::options(coherence)).ok());
    const KvNamespace names = *KvNamespace::of("test");
    {
      const auto local = LocalFixture::open();
      auto space = KvSpace::attach(
          memory, {.ownership = std::make_shared<KvTestOwnership>(std::make_shared<KvBook>()), .local = local});
      REQUIRE(space.ok());
      for (const char* const key : {"k", "l"}) {
        REQUIRE(kv_put(**space, names, key).ok());
        for (int time = 0; time < 3; ++time) REQUIRE(kv_check(**space, names, key) == 1);
      }
      REQUIRE((*space)->counters().local_hits == 2);
      const auto view = (*space)->view(names, "k");
      REQUIRE(view.ok());
      REQUIRE(::ftruncate(file.get(), 0) == 0);
      std::vector<std::byte> into(4096);
      CHECK((*space)->get(names, {.key = "k", .into = into}).error().code == ErrorCode::lease_expired);
      CHECK((*space)->view(names, "l").error().code == ErrorCode::lease_expired);
      CHECK((*space)->get(names, {.key = "l", .into = into}).error().code == ErrorCode::lease_expired);
      CHECK((*space)->health().error().code == ErrorCode::lease_expired);
      CHECK(LocalFixture::has_bytes(*view, "k"));  // what was given before stays
    }
    ::munmap(at, bytes);
  }
}
#endif

TEST_CASE("spaces of one process share copies' room, not copies") {
  LocalFixture one, two;
  const auto local = LocalFixture::open();
  auto a = one.attach(local);
  const auto b = two.attach(local);
  REQUIRE(kv_put(*a, one.names, "k").ok());
  REQUIRE(two.put_other(*b, "k").ok());
  one.warm(*a, "k");
  for (int time = 0; time < 3; ++time) CHECK(two.has_other(*b, "k"));
  CHECK(b->counters().local_hits == 1);
  CHECK(one.is_local(*a, "k"));
  CHECK(a->stat()->local_blocks == 1);
  a.reset();  // its copies go with it, also where another space comes to lie in the same memory
  REQUIRE(KvSpace::format(one.scene.memory.span(), KvFixture::small()).ok());
  const auto again = one.attach(local);
  CHECK(again->stat()->local_blocks == 0);
  REQUIRE(one.put_other(*again, "k").ok());
  CHECK(one.has_other(*again, "k"));
  CHECK(two.has_other(*b, "k"));
}

TEST_CASE("bad options are refused") {
  CHECK(KvLocal::open({}).error().code == ErrorCode::invalid_argument);
  CHECK(KvLocal::open({.bytes = (1 << 20) - 1}).error().detail.find("1 MiB") != std::string::npos);
  CHECK(KvLocal::open({.bytes = UINT64_MAX}).error().code == ErrorCode::invalid_argument);
  CHECK(KvLocal::open({.bytes = 1 << 20, .budgets = {{"a", 1}, {"a", 2}}}).error().code ==
        ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace terrace
