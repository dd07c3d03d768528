// SPDX-License-Identifier: Apache-2.0
#include "terrace/local_replicas.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/eventually.h"
#include "tests/unit/replicas/replicas_fixture.h"

using namespace terrace;

TEST_CASE("LocalReplicas: what was fetched is there until another version is published") {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    ReplicasFixture fixture(4, {.wait_ns = 0},
                            {.parts = 3, .records_per_part = 32, .pins_per_part = 8, .coherence = coherence});
    const SharedTensor a = fixture.tensor("a", 1);
    CHECK(fixture.replicas->state(a) == ReplicaState::invalid);
    CHECK(fixture.fetched(a) == bytes_of(1, block_bytes));
    CHECK(fixture.replicas->state(a) == ReplicaState::shared);
    CHECK(fixture.fetched(a) == bytes_of(1, block_bytes));
    CHECK(fixture.replicas->stats().hits == 1);
    CHECK(fixture.replicas->stats().misses == 1);

    fixture.publish(a, 2);
    CHECK(fixture.replicas->state(a) == ReplicaState::invalid);
    CHECK(fixture.fetched(a) == bytes_of(2, block_bytes));
    const LocalReplicaStats stats = fixture.replicas->stats();
    CHECK(stats.misses == 2);
    CHECK(stats.stale == 1);
    CHECK(stats.copied_bytes == 2 * block_bytes);
    CHECK(stats.resident_bytes == block_bytes);
    CHECK(stats.replicas == 1);
  }
}

TEST_CASE("LocalReplicas: a replica in use keeps its bytes when its tensor goes on, and when the cache goes") {
  ReplicasFixture fixture(4);
  const SharedTensor a = fixture.tensor("a", 1);
  Result<LocalReplica> old = fixture.replicas->fetch(a);
  REQUIRE(old.ok());
  fixture.publish(a, 2);
  Result<LocalReplica> now = fixture.replicas->fetch(a);
  REQUIRE(now.ok());
  CHECK(now->version() > old->version());
  CHECK(fixture.replicas->stats().resident_bytes == 2 * block_bytes);
  CHECK(old->bytes()[7] == std::byte{1});
  CHECK(now->bytes()[7] == std::byte{2});
  CHECK(reinterpret_cast<uintptr_t>(now->bytes().data()) % 64 == 0);
  old->release();
  CHECK(fixture.replicas->stats().resident_bytes == block_bytes);
  fixture.replicas.reset();
  CHECK(now->bytes()[block_bytes - 1] == std::byte{2});
}

TEST_CASE("LocalReplicas: a name that was removed and created again is another tensor") {
  ReplicasFixture fixture(4);
  const SharedTensor first = fixture.tensor("a", 1);
  CHECK(fixture.fetched(first) == bytes_of(1, block_bytes));
  REQUIRE(fixture.writer->remove(*fixture.writer->open("a")).ok());
  CHECK(code_of(fixture.replicas->fetch(first)) == ErrorCode::not_found);
  CHECK(fixture.replicas->stats().replicas == 0);
  const SharedTensor second = fixture.tensor("a", 2);
  CHECK(first.identity() != second.identity());
  CHECK(fixture.fetched(second) == bytes_of(2, block_bytes));
  CHECK(code_of(fixture.replicas->fetch(first)) == ErrorCode::not_found);
}

TEST_CASE("LocalReplicas: what was not used for longest makes room; what is in use stays") {
  ReplicasFixture fixture(3);
  const SharedTensor a = fixture.tensor("a", 1), b = fixture.tensor("b", 2), c = fixture.tensor("c", 3),
                     d = fixture.tensor("d", 4);
  const Result<LocalReplica> held = fixture.replicas->fetch(a);
  fixture.fetched(b);
  fixture.fetched(c);
  fixture.fetched(b);
  fixture.fetched(d);  // c goes: a is in use, b was used later
  CHECK(fixture.replicas->state(a) == ReplicaState::shared);
  CHECK(fixture.replicas->state(b) == ReplicaState::shared);
  CHECK(fixture.replicas->state(c) == ReplicaState::invalid);
  CHECK(fixture.replicas->state(d) == ReplicaState::shared);
  const LocalReplicaStats stats = fixture.replicas->stats();
  CHECK(stats.evicted == 1);
  CHECK(stats.evicted_bytes == block_bytes);
  CHECK(stats.resident_bytes == 3 * block_bytes);
  CHECK(stats.pinned_bytes == block_bytes);
}

TEST_CASE("LocalReplicas: what does not fit is refused with the bytes that are short, and evicts nothing") {
  ReplicasFixture fixture(2);
  const SharedTensor a = fixture.tensor("a", 1), b = fixture.tensor("b", 2),
                     big = fixture.tensor("big", 3, 2 * block_bytes + 64);
  fixture.fetched(a);
  const Result<LocalReplica> held = fixture.replicas->fetch(b);
  const Result<LocalReplica> refused = fixture.replicas->fetch(big);
  REQUIRE(code_of(refused) == ErrorCode::capacity_exhausted);
  // a can go, b cannot: 64 bytes and a block are missing
  CHECK(refused.error().detail.find("tensor 'big' needs 8256 bytes in tier ddr, 4160 short") !=
        std::string::npos);
  CHECK(refused.error().detail.find("pinned 4096") != std::string::npos);
  CHECK(fixture.replicas->state(a) == ReplicaState::shared);
  fixture.replicas->set_budget(4 * block_bytes);
  CHECK(fixture.fetched(big) == bytes_of(3, 2 * block_bytes + 64));
}

TEST_CASE("LocalReplicas: a smaller budget evicts at once what can go, and the rest when it is let go") {
  ReplicasFixture fixture(3);
  const SharedTensor a = fixture.tensor("a", 1), b = fixture.tensor("b", 2), c = fixture.tensor("c", 3);
  Result<LocalReplica> held = fixture.replicas->fetch(a);
  fixture.fetched(b);
  fixture.fetched(c);
  fixture.replicas->set_budget(block_bytes / 2);
  CHECK(fixture.replicas->stats().resident_bytes == block_bytes);
  held->release();
  CHECK(fixture.replicas->stats().resident_bytes == 0);
}

TEST_CASE("LocalReplicas: what is modified here is seen elsewhere once it is written back") {
  ReplicasFixture fixture(3);
  const auto mine = fixture.reader->create(u8_tensor("mine", block_bytes));
  REQUIRE(mine.ok());
  CHECK(code_of(fixture.replicas->fetch(*mine)) == ErrorCode::busy);  // never published
  {
    Result<LocalReplica> fresh = fixture.replicas->overwrite(*mine);
    REQUIRE(fresh.ok());
    CHECK(fresh->version() == 0);
    const Result<std::span<std::byte>> bytes = fixture.replicas->modified_bytes(*fresh);
    REQUIRE(bytes.ok());
    std::memset(bytes->data(), 5, bytes->size());
    CHECK(fixture.replicas->state(*mine) == ReplicaState::modified);
    const Result<uint64_t> version = fixture.replicas->write_back(*fresh);
    REQUIRE(version.ok());
    CHECK(fresh->version() == *version);
  }
  CHECK(fixture.replicas->state(*mine) == ReplicaState::shared);
  const SharedTensor seen = *fixture.writer->open("mine");
  std::vector<std::byte> copy(block_bytes);
  REQUIRE(fixture.writer->read(seen, copy).ok());
  CHECK(copy == bytes_of(5, block_bytes));

  Result<LocalReplica> again = fixture.replicas->fetch(*mine);
  REQUIRE(again.ok());
  const Result<std::span<std::byte>> bytes = fixture.replicas->mark_modified(*again);
  REQUIRE(bytes.ok());
  (*bytes)[0] = std::byte{6};
  CHECK(fixture.fetched(*mine)[0] == std::byte{6});  // its own changes, before anybody else
  REQUIRE(fixture.writer->read(seen, copy).ok());
  CHECK(copy[0] == std::byte{5});
  REQUIRE(fixture.replicas->write_back(*again).ok());
  REQUIRE(fixture.writer->read(seen, copy).ok());
  CHECK(copy[0] == std::byte{6});
  CHECK(code_of(fixture.replicas->write_back(*again)) == ErrorCode::invalid_argument);
  CHECK(fixture.replicas->stats().written_back_bytes == 2 * block_bytes);
  CHECK(fixture.replicas->stats().modified_bytes == 0);
}

TEST_CASE("LocalReplicas: what is modified is not evicted, and only its part's owner modifies") {
  ReplicasFixture fixture(2);
  const SharedTensor a = fixture.tensor("a", 1), b = fixture.tensor("b", 2), c = fixture.tensor("c", 3);
  const auto mine = *fixture.reader->create(u8_tensor("mine", block_bytes));
  fixture.replicas->overwrite(mine)->release();
  fixture.fetched(a);
  fixture.fetched(b);
  fixture.fetched(c);
  CHECK(fixture.replicas->state(mine) == ReplicaState::modified);
  CHECK(fixture.replicas->stats().modified_bytes == block_bytes);
  CHECK(code_of(fixture.replicas->overwrite(mine)) == ErrorCode::busy);
  CHECK(code_of(fixture.replicas->overwrite(a)) == ErrorCode::permission_denied);
  {
    const Result<LocalReplica> one = fixture.replicas->fetch(c);
    CHECK(code_of(fixture.replicas->mark_modified(*one)) == ErrorCode::permission_denied);
  }
  fixture.replicas->discard(mine);
  CHECK(fixture.replicas->state(mine) == ReplicaState::invalid);
  CHECK(fixture.replicas->stats().modified_bytes == 0);
}

TEST_CASE("LocalReplicas: a replica that another user here reads is not modified under it") {
  ReplicasFixture fixture(2);
  const auto mine = *fixture.reader->create(u8_tensor("mine", block_bytes));
  REQUIRE(fixture.reader->publish(mine, bytes_of(1, block_bytes)).ok());
  const Result<LocalReplica> one = fixture.replicas->fetch(mine);
  {
    const Result<LocalReplica> other = fixture.replicas->fetch(mine);
    CHECK(code_of(fixture.replicas->mark_modified(*one)) == ErrorCode::busy);
    CHECK(code_of(fixture.replicas->overwrite(mine)) == ErrorCode::busy);
  }
  CHECK(fixture.replicas->mark_modified(*one).ok());
}

TEST_CASE("LocalReplicas: both sides changed: neither is taken for the other") {
  ReplicasFixture fixture(2);
  const auto mine = *fixture.reader->create(u8_tensor("mine", block_bytes));
  REQUIRE(fixture.reader->publish(mine, bytes_of(1, block_bytes)).ok());
  const Result<LocalReplica> one = fixture.replicas->fetch(mine);
  REQUIRE(fixture.replicas->mark_modified(*one).ok());
  REQUIRE(fixture.reader->publish(mine, bytes_of(2, block_bytes)).ok());  // past the replicas
  CHECK(code_of(fixture.replicas->write_back(*one)) == ErrorCode::busy);
  CHECK(code_of(fixture.replicas->fetch(mine)) == ErrorCode::busy);
  fixture.replicas->discard(mine);
  CHECK(code_of(fixture.replicas->mark_modified(*one)) == ErrorCode::cancelled);
  CHECK(fixture.fetched(mine) == bytes_of(2, block_bytes));
}

TEST_CASE("LocalReplicas: a writer that dies leaves what it published, and takes the rest with it") {
  ReplicasFixture fixture(4);
  const SharedTensor kept = fixture.tensor("kept", 1);
  const auto single = fixture.writer->create(u8_tensor("single", block_bytes), {.double_buffered = false});
  REQUIRE(fixture.writer->publish(*single, bytes_of(1, block_bytes)).ok());
  const SharedTensor lost = *fixture.reader->open("single");
  fixture.fetched(kept);
  fixture.fetched(lost);
  auto writing_kept = fixture.writer->write(*fixture.writer->open("kept"));
  auto writing_single = fixture.writer->write(*single);
  REQUIRE(writing_kept.ok());
  REQUIRE(writing_single.ok());
  std::memset(writing_kept->bytes().data(), 9, 100);
  std::memset(writing_single->bytes().data(), 9, 100);
  fixture.book->owned.erase(*fixture.writer->part());  // as after kill -9
  CHECK(fixture.replicas->state(kept) == ReplicaState::shared);
  CHECK(fixture.fetched(kept) == bytes_of(1, block_bytes));
  CHECK(fixture.replicas->state(lost) == ReplicaState::invalid);
  CHECK(code_of(fixture.replicas->fetch(lost)) == ErrorCode::unavailable);
  CHECK(fixture.replicas->stats().failed == 1);

  // The next owner gives what was kept another number: it is copied again.
  const auto successor = fixture.attach();
  CHECK(successor->part() == 0u);
  CHECK(fixture.fetched(kept) == bytes_of(1, block_bytes));
  CHECK(code_of(fixture.replicas->fetch(lost)) == ErrorCode::busy);
}

TEST_CASE("LocalReplicas: what is wanted next is copied ahead, and counts as a hit") {
  ReplicasFixture fixture(8);
  std::vector<SharedTensor> list;
  for (int each = 0; each < 4; ++each)
    list.push_back(fixture.tensor("t" + std::to_string(each), static_cast<uint8_t>(each)));
  fixture.replicas->prefetch(list);
  REQUIRE(
      test::eventually([&] { return fixture.replicas->stats().prefetched == 4; }, std::chrono::seconds(30)));
  for (int each = 0; each < 4; ++each) {
    CHECK(fixture.replicas->state(list[each]) == ReplicaState::shared);
    CHECK(fixture.fetched(list[each]) == bytes_of(static_cast<uint8_t>(each), block_bytes));
  }
  fixture.fetched(list[0]);
  const LocalReplicaStats stats = fixture.replicas->stats();
  CHECK(stats.hits == 5);
  CHECK(stats.hits_ahead == 4);
  CHECK(stats.misses == 0);
  CHECK(stats.copied_bytes == 4 * block_bytes);
}

TEST_CASE("LocalReplicas: copying ahead waits for use, and a new list takes the old one's place") {
  ReplicasFixture fixture(8, {.wait_ns = 0, .prefetch_bytes_max = 2 * block_bytes});
  std::vector<SharedTensor> list;
  for (int each = 0; each < 4; ++each) list.push_back(fixture.tensor("t" + std::to_string(each), 1));
  const SharedTensor other = fixture.tensor("other", 2);
  const auto prefetched = [&](uint64_t count) {
    return test::eventually([&] { return fixture.replicas->stats().prefetched == count; },
                            std::chrono::seconds(30));
  };
  fixture.replicas->prefetch(list);
  REQUIRE(prefetched(2));
  CHECK(fixture.replicas->stats().prefetch_pending == 2);
  CHECK(fixture.replicas->state(list[2]) == ReplicaState::invalid);
  fixture.fetched(list[0]);  // room for one more
  REQUIRE(prefetched(3));
  CHECK(fixture.replicas->state(list[2]) == ReplicaState::shared);
  CHECK(fixture.replicas->stats().prefetch_pending == 1);
  fixture.replicas->prefetch(std::span(&other, 1));
  REQUIRE(prefetched(4));
  CHECK(fixture.replicas->state(other) == ReplicaState::shared);
  CHECK(fixture.replicas->state(list[3]) == ReplicaState::invalid);
  CHECK(fixture.replicas->stats().prefetch_pending == 0);
}

TEST_CASE("LocalReplicas: what cannot be copied ahead is left out, and the rest goes on") {
  ReplicasFixture fixture(2);
  const SharedTensor a = fixture.tensor("a", 1), b = fixture.tensor("b", 2);
  const auto blank = fixture.writer->create(u8_tensor("blank", block_bytes));
  const auto gone = fixture.tensor("gone", 3);
  REQUIRE(fixture.writer->remove(*fixture.writer->open("gone")).ok());
  const std::vector<SharedTensor> list = {*fixture.reader->open("blank"), gone, SharedTensor(), a};
  const Result<LocalReplica> held = fixture.replicas->fetch(b);
  fixture.replicas->prefetch(list);
  REQUIRE(
      test::eventually([&] { return fixture.replicas->stats().prefetched == 1; }, std::chrono::seconds(30)));
  CHECK(fixture.replicas->state(a) == ReplicaState::shared);
  CHECK(fixture.replicas->stats().prefetch_dropped == 2);
  CHECK(blank.ok());
}

TEST_CASE("LocalReplicas: copying ahead takes no room from its own list, and some from the list before") {
  ReplicasFixture fixture(8, {.wait_ns = 0}, {.parts = 3, .records_per_part = 2048, .pins_per_part = 8},
                          32 << 20);
  std::vector<Result<LocalReplica>> held;
  for (int each = 0; each < 6; ++each)
    held.push_back(fixture.replicas->fetch(fixture.tensor("held" + std::to_string(each), 1)));
  std::vector<SharedTensor> list;
  for (int each = 0; each < 1000; ++each) list.push_back(fixture.tensor("t" + std::to_string(each), 2));
  const auto looked_at = [&](uint64_t count) {
    return test::eventually(
        [&] {
          const LocalReplicaStats stats = fixture.replicas->stats();
          return stats.prefetch_pending == 0 && stats.prefetched + stats.prefetch_dropped == count;
        },
        std::chrono::seconds(30));
  };
  fixture.replicas->prefetch(list);
  REQUIRE(looked_at(1000));
  LocalReplicaStats stats = fixture.replicas->stats();
  CHECK(stats.prefetched == 2);
  CHECK(stats.prefetch_dropped == 998);
  CHECK(stats.evicted == 0);
  CHECK(fixture.replicas->state(list[0]) == ReplicaState::shared);
  CHECK(fixture.replicas->state(list[1]) == ReplicaState::shared);

  // What the next list finds there is its own, too; the rest of the one before makes room.
  fixture.replicas->prefetch(std::vector<SharedTensor>{list[1], list[2], list[3]});
  REQUIRE(looked_at(1002));
  stats = fixture.replicas->stats();
  CHECK(stats.prefetched == 3);
  CHECK(stats.evicted == 1);
  CHECK(fixture.replicas->state(list[0]) == ReplicaState::invalid);
  CHECK(fixture.replicas->state(list[1]) == ReplicaState::shared);
  CHECK(fixture.replicas->state(list[2]) == ReplicaState::shared);

  // What was used is nobody's any more.
  fixture.fetched(list[1]);
  fixture.replicas->prefetch(std::vector<SharedTensor>{list[4]});
  REQUIRE(looked_at(1003));
  CHECK(fixture.replicas->state(list[4]) == ReplicaState::shared);
}

TEST_CASE("LocalReplicas: tensors of another space, and tensors that are none, are refused") {
  ReplicasFixture fixture(2), other(2);
  const SharedTensor a = fixture.tensor("a", 1), foreign = other.tensor("a", 2);
  fixture.fetched(a);
  CHECK(code_of(fixture.replicas->fetch(foreign)) == ErrorCode::invalid_argument);
  CHECK(code_of(fixture.replicas->fetch(SharedTensor())) == ErrorCode::invalid_argument);
  CHECK(fixture.fetched(a) == bytes_of(1, block_bytes));
  CHECK(code_of(LocalReplicas::make(*fixture.reader, {.budget_bytes = 0})) == ErrorCode::invalid_argument);
}

TEST_CASE("LocalReplicas: a forked child can do nothing with its parent's, and harms nothing") {
  ReplicasFixture fixture(2);
  const SharedTensor a = fixture.tensor("a", 1);
  Result<LocalReplica> held = fixture.replicas->fetch(a);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool refused = code_of(fixture.replicas->fetch(a)) == ErrorCode::unavailable;
    fixture.replicas->prefetch(std::span(&a, 1));
    const bool readable = held->bytes()[0] == std::byte{1};
    held->release();
    fixture.replicas.reset();
    ::_exit(refused && readable ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(fixture.fetched(a) == bytes_of(1, block_bytes));
}
