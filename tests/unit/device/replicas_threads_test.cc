// SPDX-License-Identifier: Apache-2.0
// Many threads over one cache that is much too small: every replica has the bytes of the version it says,
// whatever is evicted, invalidated and copied meanwhile.
#include <atomic>
#include <mutex>
#include <thread>

#include "terrace/device_replicas.h"
#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// Each version's bytes are made of the version alone. Old ones stay, as double-buffered tensors' do for a
// while.
constexpr size_t versions_max = 64;
constexpr size_t tensor_bytes_count = 32 * kib;

struct Versioned {
  explicit Versioned(uint64_t number) : id(number) {}
  std::span<const std::byte> bytes_of(uint64_t wanted) {
    const std::lock_guard lock(mutex);
    Bytes& bytes = stored[wanted % versions_max];
    if (bytes.empty()) bytes = random_bytes(tensor_bytes_count, id * 1000 + wanted);
    return bytes;
  }
  uint64_t id;
  std::atomic<uint64_t> version = 2;
  std::mutex mutex;
  std::array<Bytes, versions_max> stored;
};

struct Outcome {
  std::atomic<uint64_t> good = 0, wrong = 0, short_of_room = 0, behind = 0, other = 0;
};

void read_some(DeviceMemory& device, DeviceReplicas& replicas, std::vector<std::unique_ptr<Versioned>>& tensors,
               uint64_t seed, int rounds, Outcome& outcome) {
  Prng prng(seed);
  auto stream = device.make_stream();
  for (int round = 0; round < rounds; ++round) {
    Versioned& tensor = *tensors[prng.below(tensors.size())];
    const uint64_t version = tensor.version;
    auto replica = replicas.fetch(
        {.id = tensor.id, .name = "t", .bytes = tensor.bytes_of(version), .version_now = {}}, version);
    if (!replica.ok()) {
      const ErrorCode code = replica.error().code;
      ++(code == ErrorCode::capacity_exhausted ? outcome.short_of_room
         : code == ErrorCode::invalid_argument ? outcome.behind
                                               : outcome.other);
      continue;
    }
    Bytes back(tensor_bytes_count);
    if (!replica->ready().wait().ok()) {
      ++outcome.other;
      continue;
    }
    const auto copied = (*stream)->download(back, replica->buffer(), 0);
    const bool same =
        copied.ok() && copied->wait().ok() && std::ranges::equal(back, tensor.bytes_of(replica->version()));
    ++(same && replica->version() == version ? outcome.good : outcome.wrong);
  }
}

void attack(const std::shared_ptr<DeviceMemory>& device, int rounds) {
  auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 6 * tensor_bytes_count}));
  std::vector<std::unique_ptr<Versioned>> tensors;
  for (uint64_t id = 0; id < 16; ++id) tensors.push_back(std::make_unique<Versioned>(id));
  Outcome outcome;
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] { read_some(*device, *replicas, tensors, number, rounds, outcome); });
  }
  std::atomic<bool> done = false;
  std::thread writer([&] {
    Prng prng(99);
    while (!done) {
      Versioned& tensor = *tensors[prng.below(tensors.size())];
      if (tensor.version + 2 < versions_max) {
        tensor.version += 2;
        if (prng.below(2) == 0) (void)replicas->invalidate(tensor.id, tensor.version);
      }
      if (prng.below(8) == 0) replicas->discard(prng.below(tensors.size()));
      if (prng.below(8) == 0) replicas->set_budget((4 + prng.below(4)) * tensor_bytes_count);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  writer.join();
  CHECK(outcome.wrong == 0);
  CHECK(outcome.other == 0);
  CHECK(outcome.good > static_cast<uint64_t>(rounds));
  const ReplicaStats stats = replicas->stats();
  CHECK(stats.pinned_bytes == 0);
  CHECK(stats.modified_bytes == 0);
  CHECK(stats.resident_bytes <= stats.budget_bytes);
  CHECK(stats.resident_bytes == stats.replicas * tensor_bytes_count);
  CHECK(must(device->use()).allocated_bytes == stats.resident_bytes);
  CHECK(stats.evicted > 0);
  replicas.reset();
  CHECK(must(device->use()).allocated_bytes == 0);
}

}  // namespace

TEST_CASE("DeviceReplicas: threads on an emulated device never get another version's bytes") {
  attack(emulated({.capacity_bytes = 64 * mib}), 400);
}

TEST_CASE("DeviceReplicas: threads on a CUDA device never get another version's bytes") {
  FakeDriver driver;
  attack(driver.open(), 250);
}

TEST_CASE("DeviceReplicas: owners modify and write back while readers fetch, and no update is lost") {
  const auto device = emulated({.capacity_bytes = 8 * mib});
  const auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 8 * 4096}));
  // Each thread owns tensors of its own and counts in them, on the device; the cache is shared and too small.
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      auto stream = device->make_stream();
      std::vector<Bytes> host(4, Bytes(4096));
      std::vector<uint64_t> versions(4, 2), counts(4, 0);
      for (uint64_t round = 0; round < 200; ++round) {
        const size_t which = round * 7 % 4;
        const ReplicaSource source{
            .id = number * 4 + which, .name = "counter", .bytes = host[which], .version_now = {}};
        auto replica = replicas->fetch(source, versions[which]);
        if (!replica.ok()) continue;  // no room now
        uint64_t count = 0;
        if (!replica->ready().wait().ok() || !replicas->mark_modified(*replica).ok()) {
          ++wrong;
          continue;
        }
        const std::span value(reinterpret_cast<std::byte*>(&count), sizeof count);
        (void)(*stream)->download(value, replica->buffer(), 0)->wait();
        if (count != counts[which]) ++wrong;
        ++count;
        (void)(*stream)->upload(replica->buffer(), 0, value)->wait();
        const auto back = replicas->write_back(*replica, host[which], versions[which] + 2);
        if (!back.ok() || !back->wait().ok()) ++wrong;
        versions[which] += 2;
        ++counts[which];
      }
      for (size_t which = 0; which < 4; ++which) {
        uint64_t count = 0;
        std::memcpy(&count, host[which].data(), sizeof count);
        if (count != counts[which] || counts[which] == 0) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
