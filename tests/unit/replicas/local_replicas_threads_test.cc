// SPDX-License-Identifier: Apache-2.0
// Threads that fetch, copy ahead, modify and change the budget at once, while another holder publishes.
#include <doctest/doctest.h>

#include <signal.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/base/prng.h"
#include "tests/support/eventually.h"
#include "tests/unit/replicas/replicas_fixture.h"

using namespace terrace;

namespace {

constexpr uint32_t tensors = 12;
constexpr int rounds = 400;

// A tensor's bytes are its number, over and over.
struct Truth {
  std::atomic<uint64_t> published[tensors] = {};
  std::atomic<int> torn = 0, stale = 0, errors = 0;
};

uint64_t number_in(std::span<const std::byte> bytes, Truth& truth) {
  uint64_t first = 0, word = 0;
  std::memcpy(&first, bytes.data(), 8);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    std::memcpy(&word, bytes.data() + at, 8);
    if (word != first) {
      ++truth.torn;
      break;
    }
  }
  return first;
}

void fill(std::span<std::byte> bytes, uint64_t number) {
  for (size_t at = 0; at < bytes.size(); at += 8) std::memcpy(bytes.data() + at, &number, 8);
}

// The first `count` of the list.
void read_at_random(LocalReplicas& replicas, const std::vector<SharedTensor>& list, uint32_t count,
                    Truth& truth, uint64_t seed) {
  Prng prng(seed);
  for (int round = 0; round < rounds; ++round) {
    const auto index = prng.below(count);
    if (prng.chance(1, 8)) replicas.prefetch(std::span(list).subspan(prng.below(count - 3), 3));
    const uint64_t floor = truth.published[index];
    const Result<LocalReplica> replica = replicas.fetch(list[index]);
    if (!replica.ok()) {
      ++truth.errors;
      continue;
    }
    if (number_in(replica->bytes(), truth) < floor) ++truth.stale;
    if (prng.chance(1, 32)) replicas.set_budget((5 + prng.below(5)) * block_bytes);
  }
}

void publish_at_random(TensorSpace& space, const std::vector<SharedTensor>& list, Truth& truth,
                       const std::atomic<bool>& stop) {
  Prng prng(99);
  std::vector<std::byte> bytes(block_bytes);
  for (uint64_t number = 1; !stop; ++number) {
    const auto index = prng.below(tensors / 2);
    fill(bytes, number);
    if (space.publish(list[index], bytes, 1'000'000'000).ok()) truth.published[index] = number;
    if (number % 4 == 0) std::this_thread::yield();
  }
}

void modify_at_random(LocalReplicas& replicas, const std::vector<SharedTensor>& list, Truth& truth) {
  Prng prng(7);
  for (int round = 0; round < rounds; ++round) {
    const auto index = tensors / 2 + prng.below(tensors / 2);
    const Result<LocalReplica> replica = replicas.overwrite(list[index]);
    if (!replica.ok()) continue;  // somebody reads it, or there is no room now
    const Result<std::span<std::byte>> bytes = replicas.modified_bytes(*replica);
    const uint64_t number = truth.published[index] + 1;
    fill(*bytes, number);
    if (replicas.write_back(*replica).ok()) truth.published[index] = number;
  }
}

}  // namespace

TEST_CASE("LocalReplicas: threads never get torn or old bytes") {
  // Six tensors are written by another holder, six by this one through its replicas.
  ReplicasFixture fixture(8, {.wait_ns = 30'000'000'000});
  Truth truth;
  std::vector<SharedTensor> list, written;
  for (uint32_t index = 0; index < tensors / 2; ++index) {
    list.push_back(fixture.tensor("theirs" + std::to_string(index), 0));
    written.push_back(*fixture.writer->open(list.back().name()));
  }
  for (uint32_t index = 0; index < tensors / 2; ++index) {
    list.push_back(*fixture.reader->create(u8_tensor("mine" + std::to_string(index), block_bytes)));
    REQUIRE(fixture.reader->publish(list.back(), bytes_of(0, block_bytes)).ok());
  }
  std::atomic<bool> stop = false;
  std::thread writer([&] { publish_at_random(*fixture.writer, written, truth, stop); });
  {
    // A modified replica is its modifier's until it is written back: readers stay with the others' tensors.
    std::vector<std::thread> threads;
    for (uint64_t seed = 0; seed < 3; ++seed)
      threads.emplace_back([&, seed] { read_at_random(*fixture.replicas, list, tensors / 2, truth, seed); });
    threads.emplace_back([&] { modify_at_random(*fixture.replicas, list, truth); });
    for (std::thread& thread : threads) thread.join();
  }
  // Nobody modifies any more: all are read.
  std::vector<std::thread> readers;
  for (uint64_t seed = 10; seed < 13; ++seed)
    readers.emplace_back([&, seed] { read_at_random(*fixture.replicas, list, tensors, truth, seed); });
  for (std::thread& thread : readers) thread.join();
  // On a busy machine the writer may have had no turn between two reads of one tensor.
  CHECK(test::eventually([&] {
    if (fixture.replicas->stats().stale > 0) return true;
    read_at_random(*fixture.replicas, list, tensors, truth, 13);
    return false;
  }));
  stop = true;
  writer.join();
  CHECK(truth.torn == 0);
  CHECK(truth.stale == 0);
  CHECK(truth.errors == 0);
  const LocalReplicaStats stats = fixture.replicas->stats();
  CHECK(stats.evicted > 0);
  CHECK(stats.written_back_bytes > 0);
  CHECK(stats.pinned_bytes == 0);
  CHECK(stats.modified_bytes == 0);
  CHECK(stats.resident_bytes == stats.replicas * block_bytes);
}

TEST_CASE("LocalReplicas: what another thread publishes while a replica waits to be written back is not lost") {
  ReplicasFixture fixture(4, {.wait_ns = 60'000'000'000});
  const auto mine = *fixture.reader->create(u8_tensor("mine", block_bytes));
  for (int round = 0; round < 50; ++round) {
    CAPTURE(round);
    REQUIRE(fixture.reader->publish(mine, bytes_of(1, block_bytes)).ok());
    const Result<LocalReplica> changed = fixture.replicas->fetch(mine);
    std::memset(fixture.replicas->mark_modified(*changed)->data(), 2, block_bytes);
    const Result<LocalReplica> seen = fixture.replicas->fetch(mine);
    Result<TensorWrite> writing = fixture.reader->write(mine);  // write_back() has to wait for it
    REQUIRE(writing.ok());
    ErrorCode outcome = ErrorCode::ok;
    std::thread writer([&] { outcome = code_of(fixture.replicas->write_back(*changed)); });
    const bool waits =
        test::eventually([&] { return code_of(fixture.replicas->modified_bytes(*seen)) == ErrorCode::busy; },
                         std::chrono::seconds(30));
    std::memset(writing->bytes().data(), 3, block_bytes);
    CHECK(writing->publish() != 0);
    writer.join();
    CHECK(waits);
    CHECK(outcome == ErrorCode::busy);
    fixture.replicas->discard(mine);
    CHECK(fixture.fetched(mine) == bytes_of(3, block_bytes));
  }
}

TEST_CASE("LocalReplicas: the thread that copies ahead gets none of the program's signals") {
  const auto threads = [] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      found.insert(entry.path().string());
    return found;
  };
  const std::set<std::string> before = threads();
  ReplicasFixture fixture(2);
  int others = 0;
  for (const std::string& thread : threads()) {
    if (before.count(thread) != 0) continue;
    ++others;
    uint64_t blocked = 0;
    const auto look = [&] {
      std::ifstream status(thread + "/status");
      for (std::string line; std::getline(status, line);)
        if (line.rfind("SigBlk:", 0) == 0) blocked = std::stoull(line.substr(7), nullptr, 16);
      return (blocked >> (SIGSEGV - 1) & 1) == 0;  // a thread is created with all blocked, for a moment
    };
    CHECK(test::eventually(look, std::chrono::seconds(30)));
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) CHECK((blocked >> (signal - 1) & 1) == 1);
  }
  CHECK(others == 1);
}
