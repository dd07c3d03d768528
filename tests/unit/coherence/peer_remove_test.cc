// SPDX-License-Identifier: Apache-2.0
// Tensors that a holder has removed from another one's part.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "libclient/coherence/geometry.h"
#include "libclient/coherence/word.h"
#include "tests/unit/coherence/space_fixture.h"

using namespace terrace;

namespace {

constexpr uint64_t second_ns = 1'000'000'000;
constexpr CreateOptions removable{.peers_may_remove = true};

class LockedOwnership final : public OwnershipSource {
 public:
  explicit LockedOwnership(std::shared_ptr<MadeUpOwnership::Book> book) : below_(std::move(book)) {}
  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    const std::lock_guard lock(mutex);
    return below_.claim(part, last_epoch);
  }
  void release(uint32_t part) override {
    const std::lock_guard lock(mutex);
    below_.release(part);
  }
  bool is_dead(uint32_t part, uint64_t epoch) override {
    const std::lock_guard lock(mutex);
    return below_.is_dead(part, epoch);
  }

 private:
  static inline std::mutex mutex;
  MadeUpOwnership below_;
};

struct Spaces : SpaceFixture {
  explicit Spaces(SpaceCoherence coherence) : SpaceFixture(with(coherence)) {}
  static SpaceOptions with(SpaceCoherence coherence) {
    SpaceOptions options = small();
    options.coherence = coherence;
    return options;
  }
  std::unique_ptr<TensorSpace> holder(bool own = true) {
    auto space = TensorSpace::attach(memory.span(),
                                     {.ownership = std::make_shared<LockedOwnership>(book), .own_a_part = own});
    REQUIRE_MESSAGE(space.ok(), space.error().to_string());
    return std::move(*space);
  }
};

SharedTensor made(TensorSpace& space, const std::string& name, const CreateOptions& options = removable) {
  auto tensor = space.create(u8_tensor(name, 4096), options);
  REQUIRE_MESSAGE(tensor.ok(), tensor.error().to_string());
  REQUIRE(space.publish(*tensor, bytes_of(7, 4096)).ok());
  return *tensor;
}

ErrorCode code_of(const Status& status) {
  return status.ok() ? ErrorCode::ok : status.error().code;
}

// Calls `tend` until it is destroyed.
class Tending {
 public:
  explicit Tending(std::function<void()> tend)
      : thread_([this, tend = std::move(tend)] {
          while (!stop_) tend();
        }) {}
  ~Tending() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

const SpaceCoherence kinds[] = {SpaceCoherence::coherent, SpaceCoherence::noncoherent};

}  // namespace

TEST_CASE("what its owner allows is removed by a peer; nothing else is") {
  for (const SpaceCoherence kind : kinds) {
    Spaces spaces(kind);
    const auto owner = spaces.holder(), peer = spaces.holder();
    const uint64_t free_bytes = owner->free_bytes();
    made(*owner, "kept", {});
    made(*owner, "gone");
    const SharedTensor kept = *peer->open("kept"), gone = *peer->open("gone");
    CHECK((gone.flags() & TensorFlags::peers_may_remove) != 0);
    CHECK((kept.flags() & TensorFlags::peers_may_remove) == 0);
    {
      const Tending tending([&] { owner->tend(); });
      CHECK(code_of(peer->remove(kept, second_ns / 10)) == ErrorCode::permission_denied);
      CHECK(code_of(peer->remove(gone, 30 * second_ns)) == ErrorCode::ok);
      CHECK(code_of(peer->remove(gone, second_ns)) == ErrorCode::not_found);
    }
    CHECK(peer->open("gone").error().code == ErrorCode::not_found);
    CHECK(owner->version(gone).error().code == ErrorCode::not_found);
    CHECK(owner->version(kept).ok());
    REQUIRE(owner->remove(kept).ok());
    CHECK(owner->free_bytes() == free_bytes);
    made(*peer, "gone");
  }
}

TEST_CASE("its owner does it in any call that stores") {
  for (const SpaceCoherence kind : kinds) {
    Spaces spaces(kind);
    const auto owner = spaces.holder(), peer = spaces.holder(), reader = spaces.holder(false);
    const SharedTensor own = made(*owner, "own");
    int round = 0;
    const std::function<void()> calls[] = {
        [&] { (void)owner->publish(own, bytes_of(1, 4096)); },
        [&] {
          const auto other = owner->create(u8_tensor("other", 64));
          if (other.ok()) (void)owner->remove(*other);
        },
    };
    for (const auto& call : calls)
      for (TensorSpace* const asking : {peer.get(), reader.get()}) {
        const std::string name = "t" + std::to_string(round++);
        made(*owner, name);
        const SharedTensor tensor = *asking->open(name);
        const Tending tending(call);
        const Status removed = asking->remove(tensor, 30 * second_ns);
        CHECK_MESSAGE(removed.ok(), removed.error().to_string());
      }
    CHECK(reader->seat().has_value());  // it asked from there
  }
}

TEST_CASE("an owner that makes no call is waited for, and may find nothing later") {
  Spaces spaces(SpaceCoherence::coherent);
  const auto owner = spaces.holder(), peer = spaces.holder();
  made(*owner, "t");
  const SharedTensor tensor = *peer->open("t");
  CHECK(code_of(peer->remove(tensor)) == ErrorCode::busy);
  CHECK(code_of(peer->remove(tensor, second_ns / 20)) == ErrorCode::busy);
  CHECK(owner->tend() == 0);
  CHECK(owner->version(tensor).ok());
  // A peer that only copies has no place to ask from.
  const auto copies = TensorSpace::attach(spaces.memory.span());
  REQUIRE(copies.ok());
  CHECK(code_of((*copies)->remove(tensor, second_ns)) == ErrorCode::permission_denied);
}

TEST_CASE("what is read in place or written stays until then") {
  Spaces spaces(SpaceCoherence::coherent);
  const auto owner = spaces.holder(), peer = spaces.holder(), third = spaces.holder();
  // Two, since the owner may be about to remove the one when the peer gives up and the reader leaves.
  const SharedTensor read = made(*owner, "r"), own = made(*owner, "t");
  const SharedTensor tensor = *peer->open("t");
  const Tending tending([&] { owner->tend(); });
  {
    const auto pin = third->pin(*third->open("r"), second_ns);
    REQUIRE(pin.ok());
    CHECK(code_of(peer->remove(*peer->open("r"), second_ns / 20)) == ErrorCode::busy);
    CHECK(pin->bytes()[0] == std::byte{7});
    CHECK(owner->version(read).ok());
  }
  {
    auto write = owner->write(own, second_ns);
    REQUIRE(write.ok());
    CHECK(code_of(peer->remove(tensor, second_ns / 20)) == ErrorCode::busy);
    REQUIRE(write->fill(bytes_of(9, 4096)).ok());
    CHECK(write->publish() != 0);
  }
  CHECK(code_of(peer->remove(tensor, 30 * second_ns)) == ErrorCode::ok);
}

TEST_CASE("a tensor that came into the same record is another one") {
  Spaces spaces(SpaceCoherence::coherent);
  const auto owner = spaces.holder(), peer = spaces.holder();
  const SharedTensor first = made(*owner, "t");
  const SharedTensor tensor = *peer->open("t");
  Status removed = Error{.code = ErrorCode::busy, .where = "test", .detail = "not asked"};
  std::thread asking([&] { removed = peer->remove(tensor, 60 * second_ns); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  (void)owner->remove(first);  // not_found: it saw what the peer asks for at once
  const SharedTensor second = made(*owner, "t");
  CHECK(second.identity().record == first.identity().record);
  for (int i = 0; i < 100; ++i) CHECK(owner->tend() == 0);
  asking.join();
  CHECK(removed.ok());
  CHECK(owner->version(second).ok());
}

TEST_CASE("a dead owner removes nothing; the next one may") {
  Spaces spaces(SpaceCoherence::coherent);
  auto owner = spaces.holder();
  const auto peer = spaces.holder();
  made(*owner, "t");
  const SharedTensor tensor = *peer->open("t");
  spaces.die(std::move(owner));
  CHECK(code_of(peer->remove(tensor, 10 * second_ns)) == ErrorCode::unavailable);
  const auto next = spaces.holder();
  REQUIRE(next->part() == tensor.part());
  const Tending tending([&] { next->tend(); });
  CHECK(code_of(peer->remove(*peer->open("t"), 30 * second_ns)) == ErrorCode::ok);
}

TEST_CASE("room that a peer frees is there for a creator that finds none") {
  Spaces spaces(SpaceCoherence::coherent);
  const auto owner = spaces.holder(), peer = spaces.holder();
  std::vector<std::string> names;
  const CreateOptions once{.double_buffered = false, .wait_ns = 0, .peers_may_remove = true};
  while (owner->create(u8_tensor("t" + std::to_string(names.size()), 60000), once).ok())
    names.push_back("t" + std::to_string(names.size()));
  REQUIRE(names.size() >= 2);
  Status removed = Error{.code = ErrorCode::busy, .where = "test", .detail = "not asked"};
  std::thread asking([&] { removed = peer->remove(*peer->open(names[0]), 60 * second_ns); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(owner->create(u8_tensor("late", 60000), once).ok());
  asking.join();
  CHECK(removed.ok());
}

TEST_CASE("whatever stands in a peer's pins removes only what is allowed") {
  Spaces spaces(SpaceCoherence::coherent);
  const auto owner = spaces.holder(), peer = spaces.holder();
  const SharedTensor kept = made(*owner, "kept", {}), allowed = made(*owner, "allowed");
  layout::SpaceHeader header;
  std::memcpy(&header, spaces.memory.span().data(), sizeof header);
  const auto geometry = coherence::check_header(header, spaces.memory.span());
  REQUIRE(geometry.ok());
  const uint32_t holder = *peer->part();
  geometry->owner(holder)->pins_used = 8;
  std::mt19937_64 random(1);
  uint64_t removed = 0;
  for (int i = 0; i < 20000; ++i) {
    for (uint32_t pin = 0; pin < 8; ++pin) {
      const uint64_t bits = random();
      const bool near = bits % 2 == 0;  // its own part, record and incarnation, but for a bit
      const TensorIdentity id = (bits & 2 ? kept : allowed).identity();
      *geometry->pin(holder, pin) = near ? coherence::removal_word(id.part, id.record, id.incarnation) ^
                                               uint64_t { 1 } << (bits >> 8) % 62
                                         : bits;
    }
    removed += owner->tend();
  }
  CHECK(removed == 0);
  CHECK(owner->version(kept).ok());
  CHECK(owner->version(allowed).ok());
  *geometry->pin(holder, 0) =
      coherence::removal_word(kept.identity().part, kept.identity().record, kept.identity().incarnation);
  CHECK(owner->tend() == 0);
}

TEST_CASE("holders create and have removed at once") {
  for (const SpaceCoherence kind : kinds) {
    Spaces spaces(kind);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    std::atomic<uint64_t> removals = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    std::vector<std::unique_ptr<TensorSpace>> holders;
    for (int i = 0; i < 3; ++i) holders.push_back(spaces.holder());
    for (size_t i = 0; i < 3; ++i)
      threads.emplace_back([&, i] {
        TensorSpace& space = *holders[i];
        std::mt19937_64 random(i);
        std::vector<std::byte> copy(4096);
        for (uint64_t round = 0; std::chrono::steady_clock::now() < end; ++round) {
          const auto value = static_cast<uint8_t>(round);
          if (auto tensor = space.create(u8_tensor(std::to_string(random() % 12), 4096), removable);
              tensor.ok())
            (void)space.publish(*tensor, bytes_of(value, 4096));
          auto other = space.open(std::to_string(random() % 12));
          if (!other.ok()) continue;
          if (space.read(*other, copy).ok() && std::memcmp(copy.data(), copy.data() + 1, 4095) != 0) ++wrong;
          if (space.remove(*other, 200'000).ok()) ++removals;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(removals > 10);
    for (const auto& holder : holders)
      for (const SharedTensor& tensor : holder->list()) {
        const Status removed = tensor.part() == *holder->part() ? holder->remove(tensor, second_ns) : Status{};
        CHECK(removed.ok());
      }
    for (const auto& holder : holders) CHECK(holder->list().empty());
  }
}
