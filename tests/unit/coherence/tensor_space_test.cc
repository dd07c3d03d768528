// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/base/prng.h"
#include "tests/unit/coherence/space_fixture.h"

using namespace terrace;

namespace {

SpaceOptions with(SpaceCoherence coherence) {
  SpaceOptions options = SpaceFixture::small();
  options.coherence = coherence;
  return options;
}

template <typename Value>
ErrorCode code_of(const Result<Value>& result) {
  return result.ok() ? ErrorCode::ok : result.error().code;
}

}  // namespace

TEST_CASE("TensorSpace: what one holder publishes, another reads by copy and in place") {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    SpaceFixture fixture(with(coherence));
    const auto writer = fixture.attach();
    const auto reader = fixture.attach();
    CHECK(writer->part() == 0u);
    CHECK(reader->part() == 1u);
    CHECK(reader->coherence() == coherence);
    const auto tensor = writer->create({.name = "w",
                                        .dtype = DType::bf16,
                                        .shape = {3, 50},
                                        .hint = TensorHint::weights,
                                        .flags = TensorFlags::read_mostly});
    REQUIRE(tensor.ok());
    const auto seen = reader->open("w");
    REQUIRE(seen.ok());
    CHECK(seen->dtype() == DType::bf16);
    CHECK(seen->shape() == Shape{3, 50});
    CHECK(seen->hint() == TensorHint::weights);
    CHECK(seen->flags() == TensorFlags::read_mostly);
    CHECK(seen->bytes() == 300);
    CHECK(seen->part() == 0);
    std::vector<std::byte> copy(300);
    CHECK(code_of(reader->read(*seen, copy)) == ErrorCode::busy);  // nothing was published

    const auto first = writer->publish(*tensor, bytes_of(1, 300));
    REQUIRE(first.ok());
    CHECK(*first == *reader->read(*seen, copy));
    CHECK(copy == bytes_of(1, 300));
    CHECK(reader->is_current(*seen, *first));
    const auto second = writer->publish(*tensor, bytes_of(2, 300));
    CHECK(*second > *first);
    CHECK_FALSE(reader->is_current(*seen, *first));
    CHECK(reader->read(*seen, copy, *first).ok());
    CHECK(copy == bytes_of(2, 300));
    copy = bytes_of(9, 300);
    CHECK(*reader->read(*seen, copy, *second) == *second);  // the caller has it: not copied
    CHECK(copy == bytes_of(9, 300));

    const auto pin = reader->pin(*seen);
    REQUIRE(pin.ok());
    CHECK(pin->version() == *second);
    CHECK(reinterpret_cast<uintptr_t>(pin->bytes().data()) % 64 == 0);
    CHECK(std::memcmp(pin->bytes().data(), bytes_of(2, 300).data(), 300) == 0);
  }
}

TEST_CASE("TensorSpace: a pinned version stays while the next is published, and no further") {
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  const auto reader = fixture.attach();
  const auto tensor = *writer->create(u8_tensor("kv", 100));
  REQUIRE(writer->publish(tensor, bytes_of(1, 100)).ok());
  auto pin = reader->pin(*reader->open("kv"));
  REQUIRE(pin.ok());
  CHECK(writer->publish(tensor, bytes_of(2, 100)).ok());
  CHECK(code_of(writer->publish(tensor, bytes_of(3, 100))) == ErrorCode::busy);
  CHECK(code_of(writer->remove(tensor)) == ErrorCode::busy);
  CHECK(pin->bytes()[50] == std::byte{1});
  std::vector<std::byte> copy(100);
  CHECK(reader->read(*reader->open("kv"), copy).ok());
  CHECK(copy == bytes_of(2, 100));
  pin->reset();
  CHECK(writer->publish(tensor, bytes_of(3, 100)).ok());
  CHECK(writer->remove(tensor).ok());
  CHECK(code_of(reader->open("kv")) == ErrorCode::not_found);
}

TEST_CASE("TensorSpace: a holder that died with pins holds nobody up") {
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  auto reader = fixture.attach();
  const auto tensor = *writer->create(u8_tensor("kv", 100), {.double_buffered = false});
  REQUIRE(writer->publish(tensor, bytes_of(1, 100)).ok());
  auto pin = reader->pin(*reader->open("kv"));
  REQUIRE(pin.ok());
  CHECK(code_of(writer->publish(tensor, bytes_of(2, 100))) == ErrorCode::busy);
  fixture.die(std::move(reader));
  CHECK(writer->publish(tensor, bytes_of(2, 100)).ok());
  CHECK(writer->remove(tensor).ok());
  pin->reset();  // its space is only stranded, not unmapped
}

TEST_CASE("TensorSpace: the last version survives its writer, and the next owner goes on from it") {
  SpaceFixture fixture;
  auto writer = fixture.attach();
  const auto reader = fixture.attach();
  const auto twice = *writer->create(u8_tensor("twice", 100));
  const auto once = *writer->create(u8_tensor("once", 100), {.double_buffered = false});
  const uint64_t version = *writer->publish(twice, bytes_of(1, 100));
  REQUIRE(writer->publish(once, bytes_of(1, 100)).ok());
  const auto seen_twice = *reader->open("twice"), seen_once = *reader->open("once");
  const auto half = writer->write(twice), other_half = writer->write(once);  // destroyed when all is over
  std::memset(half->bytes().data(), 7, 50);
  std::memset(other_half->bytes().data(), 7, 50);
  fixture.die(std::move(writer));

  std::vector<std::byte> copy(100);
  CHECK(*reader->read(seen_twice, copy) == version);  // at once: nobody took the part over yet
  CHECK(copy == bytes_of(1, 100));
  const auto lost = reader->read(seen_once, copy);
  CHECK(code_of(lost) == ErrorCode::unavailable);
  CHECK(lost.error().detail.find("'once'") != std::string::npos);

  const auto heir = fixture.attach();
  CHECK(heir->part() == 0u);
  CHECK(reader->read(seen_twice, copy).ok());
  CHECK(copy == bytes_of(1, 100));
  CHECK(code_of(reader->read(seen_once, copy)) == ErrorCode::busy);  // blank
  REQUIRE(heir->publish(*heir->open("twice"), bytes_of(2, 100)).ok());
  REQUIRE(heir->publish(*heir->open("once"), bytes_of(3, 100)).ok());
  CHECK(reader->read(seen_twice, copy).ok());
  CHECK(copy == bytes_of(2, 100));
  CHECK(reader->read(seen_once, copy).ok());
  CHECK(copy == bytes_of(3, 100));
}

TEST_CASE("TensorSpace: a write that is given up leaves a double-buffered tensor as it was") {
  SpaceFixture fixture;
  const auto space = fixture.attach();
  const auto twice = *space->create(u8_tensor("twice", 100));
  const auto once = *space->create(u8_tensor("once", 100), {.double_buffered = false});
  REQUIRE(space->publish(twice, bytes_of(1, 100)).ok());
  REQUIRE(space->publish(once, bytes_of(1, 100)).ok());
  for (const SharedTensor& tensor : {twice, once}) {
    const auto writing = space->write(tensor);
    REQUIRE(writing.ok());
    std::memset(writing->bytes().data(), 5, 100);
    CHECK(code_of(space->write(tensor)) == ErrorCode::busy);
  }
  std::vector<std::byte> copy(100);
  CHECK(space->read(twice, copy).ok());
  CHECK(copy == bytes_of(1, 100));
  CHECK(code_of(space->read(once, copy)) == ErrorCode::busy);
}

TEST_CASE("TensorSpace: a name is one tensor's, over all parts, and free again after removal") {
  SpaceFixture fixture;
  const auto a = fixture.attach(), b = fixture.attach();
  const auto tensor = a->create(u8_tensor("name", 64));
  REQUIRE(tensor.ok());
  CHECK(code_of(a->create(u8_tensor("name", 64))) == ErrorCode::already_exists);
  CHECK(code_of(b->create(u8_tensor("name", 64))) == ErrorCode::already_exists);
  CHECK(code_of(b->remove(*b->open("name"))) == ErrorCode::permission_denied);
  const auto stale = *b->open("name");
  CHECK(a->remove(*tensor).ok());
  CHECK(code_of(a->remove(*tensor)) == ErrorCode::not_found);
  const auto again = b->create(u8_tensor("name", 128));
  REQUIRE(again.ok());
  CHECK(again->part() == 1);
  CHECK(code_of(a->version(stale)) == ErrorCode::not_found);
  CHECK(a->open("name")->bytes() == 128);
}

TEST_CASE("TensorSpace: records and bytes run out with words, and come back") {
  SpaceFixture fixture;
  const auto space = fixture.attach();
  const uint64_t free = space->free_bytes();
  std::vector<SharedTensor> made;
  Result<SharedTensor> last = space->create(u8_tensor("0", 64));
  for (int index = 1; last.ok(); ++index) {
    made.push_back(*last);
    last = space->create(u8_tensor(std::to_string(index), 64));
  }
  CHECK(last.error().code == ErrorCode::capacity_exhausted);
  CHECK(made.size() == 12);  // three quarters of 16
  CHECK(space->list().size() == 12);
  for (const SharedTensor& tensor : made) {
    CHECK(space->open(tensor.name()).ok());
    CHECK(space->remove(tensor).ok());
  }
  CHECK(space->list().empty());
  CHECK(space->free_bytes() == free);
  const auto huge = space->create(u8_tensor("huge", free));
  CHECK(huge.error().code == ErrorCode::capacity_exhausted);
  CHECK(huge.error().detail.find(std::to_string(free)) != std::string::npos);
}

TEST_CASE("TensorSpace: names that share a chain are found whatever is removed in between") {
  SpaceFixture fixture;
  const auto space = fixture.attach();
  const auto reader = fixture.attach();
  Prng prng(11);
  std::vector<std::string> there;
  for (int round = 0; round < 3000; ++round) {
    if (!there.empty() && (there.size() > 9 || prng.chance(1, 2))) {
      const size_t victim = prng.below(there.size());
      REQUIRE(space->remove(*space->open(there[victim])).ok());
      there.erase(there.begin() + static_cast<long>(victim));
    } else {
      const std::string name = "t" + std::to_string(round);
      REQUIRE(space->create(u8_tensor(name, 64)).ok());
      there.push_back(name);
    }
    for (const std::string& name : there) REQUIRE(reader->open(name).ok());
    REQUIRE(code_of(reader->open("never")) == ErrorCode::not_found);
  }
}

TEST_CASE("TensorSpace: who owns no part reads by copy and does nothing else") {
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  const auto tensor = *writer->create(u8_tensor("t", 64));
  REQUIRE(writer->publish(tensor, bytes_of(4, 64)).ok());
  const auto attached = TensorSpace::attach(fixture.memory.span());
  const auto& reader = *attached;
  CHECK(reader->part() == std::nullopt);
  const auto seen = reader->open("t");
  std::vector<std::byte> copy(64), short_copy(63);
  CHECK(reader->read(*seen, copy).ok());
  CHECK(code_of(reader->read(*seen, short_copy)) == ErrorCode::invalid_argument);
  CHECK(code_of(reader->pin(*seen)) == ErrorCode::permission_denied);
  CHECK(code_of(reader->write(*seen)) == ErrorCode::permission_denied);
  CHECK(code_of(reader->create(u8_tensor("u", 64))) == ErrorCode::permission_denied);
}

TEST_CASE("TensorSpace: as many holders as parts") {
  SpaceFixture fixture;
  auto a = fixture.attach();
  const auto b = fixture.attach(), c = fixture.attach();
  const auto more = TensorSpace::attach(fixture.memory.span(),
                                        {.ownership = std::make_shared<MadeUpOwnership>(fixture.book)});
  CHECK(more.error().code == ErrorCode::busy);
  a.reset();
  CHECK(fixture.attach()->part() == 0u);
}

TEST_CASE("TensorSpace: a waiting reader hears of a version when it is published") {
  SpaceFixture fixture;
  const auto writer = fixture.attach(), reader = fixture.attach();
  const auto tensor = *writer->create(u8_tensor("t", 4096));
  const auto seen = *reader->open("t");
  CHECK(code_of(reader->wait_for_version(seen, 0, 1'000'000)) == ErrorCode::busy);
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (uint8_t value = 1; value <= 5; ++value) CHECK(writer->publish(tensor, bytes_of(value, 4096)).ok());
  });
  const auto first = reader->wait_for_version(seen, 0, 10'000'000'000);
  REQUIRE(first.ok());
  publisher.join();
  CHECK(*reader->wait_for_version(seen, *first, 10'000'000'000) >= *first);
  const uint64_t last = *reader->version(seen);
  CHECK(code_of(reader->wait_for_version(seen, last + 2, 1'000'000)) == ErrorCode::busy);
}

TEST_CASE("TensorSpace: readers beside a writer in threads never see a mixture") {
  SpaceFixture fixture;
  const auto writer = fixture.attach(), reader = fixture.attach();
  std::vector<SharedTensor> tensors;
  for (const bool double_buffered : {true, false})
    tensors.push_back(*writer->create(u8_tensor(double_buffered ? "a" : "b", 1000), {double_buffered}));
  for (const SharedTensor& tensor : tensors) REQUIRE(writer->publish(tensor, bytes_of(0, 1000)).ok());
  std::atomic<bool> stop = false;
  std::atomic<int> mixtures = 0, reads = 0;
  std::vector<std::thread> readers;
  for (int thread = 0; thread < 2; ++thread)
    readers.emplace_back([&, thread] {
      const SharedTensor seen = *reader->open(thread == 0 ? "a" : "b");
      std::vector<std::byte> copy(1000);
      while (!stop) {
        if (reader->read(seen, copy, 0, 1'000'000'000).ok()) {
          ++reads;
          if (copy != std::vector<std::byte>(1000, copy[0])) ++mixtures;
        }
        auto pin = reader->pin(seen, 1'000'000'000);
        if (!pin.ok()) continue;
        for (const std::byte each : pin->bytes()) mixtures += each != pin->bytes()[0];
      }
    });
  for (int round = 0; round < 2000; ++round)
    for (const SharedTensor& tensor : tensors)
      (void)writer->publish(tensor, bytes_of(static_cast<uint8_t>(round), 1000), 1'000'000'000);
  while (reads < 100) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : readers) thread.join();
  CHECK(mixtures == 0);
}
