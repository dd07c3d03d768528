// SPDX-License-Identifier: Apache-2.0
// Which kind of owners a space has, and holders that own no part and read in place.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/base/crc32c.h"
#include "core/base/unique_fd.h"
#include "core/layout/tensor_space.h"
#include "libclient/coherence/geometry.h"
#include "terrace/host_ownership.h"
#include "tests/unit/coherence/space_fixture.h"

using namespace terrace;

namespace {

bool says(const Error& error, const std::string& text) {
  return error.detail.find(text) != std::string::npos;
}

// Parts by the program's own book, under the name of another kind.
class OfKind final : public OwnershipSource {
 public:
  OfKind(SpaceOwnership kind, std::shared_ptr<MadeUpOwnership::Book> book)
      : kind_(kind), made_up_(std::move(book)) {}
  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    const std::lock_guard lock(mutex_);
    return made_up_.claim(part, last_epoch);
  }
  void release(uint32_t part) override {
    const std::lock_guard lock(mutex_);
    made_up_.release(part);
  }
  bool is_dead(uint32_t part, uint64_t epoch) override {
    const std::lock_guard lock(mutex_);
    return made_up_.is_dead(part, epoch);
  }
  SpaceOwnership kind() const override { return kind_; }

 private:
  const SpaceOwnership kind_;
  std::mutex mutex_;
  MadeUpOwnership made_up_;
};

// A space in a file, so that locks are there.
struct InAFile {
  explicit InAFile(const SpaceOptions& options = SpaceFixture::small())
      : file(::memfd_create("space", MFD_CLOEXEC)) {
    REQUIRE(file.valid());
    REQUIRE(::ftruncate(file.get(), bytes) == 0);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    REQUIRE(at != MAP_FAILED);
    memory = {static_cast<std::byte*>(at), bytes};
    const Status formatted = TensorSpace::format(memory, options);
    REQUIRE_MESSAGE(formatted.ok(), formatted.error().to_string());
  }
  ~InAFile() { ::munmap(memory.data(), memory.size()); }

  Result<std::unique_ptr<TensorSpace>> attach(std::shared_ptr<OwnershipSource> ownership, bool own = true) {
    return TensorSpace::attach(memory, {.ownership = std::move(ownership), .own_a_part = own});
  }
  std::shared_ptr<OwnershipSource> of(SpaceOwnership kind) {
    if (kind == SpaceOwnership::locks) return *ownership_by_locks(file.get());
    if (kind == SpaceOwnership::hosts)
      return *ownership_by_host_ranges(file.get(), {.ranges = *equal_host_ranges(3, 1), .host = 0});
    return std::make_shared<OfKind>(kind, book);
  }

  static constexpr size_t bytes = 1 << 20;
  UniqueFd file;
  std::span<std::byte> memory;
  std::shared_ptr<MadeUpOwnership::Book> book = std::make_shared<MadeUpOwnership::Book>();
};

constexpr SpaceOwnership kinds[] = {SpaceOwnership::manager, SpaceOwnership::hosts, SpaceOwnership::locks,
                                    SpaceOwnership::program};

layout::SpaceHeader header_of(std::span<const std::byte> memory) {
  layout::SpaceHeader header;
  std::memcpy(&header, memory.data(), sizeof header);
  return header;
}

void store_header(std::span<std::byte> memory, layout::SpaceHeader header) {
  header.checksum = crc32c(std::as_bytes(std::span(&header, 1)).first(layout::space_header_checked_bytes));
  std::memcpy(memory.data(), &header, sizeof header);
}

std::unique_ptr<TensorSpace> reader_of(SpaceFixture& fixture) {
  auto space =
      TensorSpace::attach(fixture.memory.span(),
                          {.ownership = std::make_shared<MadeUpOwnership>(fixture.book), .own_a_part = false});
  REQUIRE_MESSAGE(space.ok(), space.error().to_string());
  return std::move(*space);
}

}  // namespace

TEST_CASE("Holders: all of a space have the first owner's kind of source") {
  for (const SpaceOwnership first : kinds)
    for (const SpaceOwnership other : kinds) {
      InAFile space;
      auto owner = space.attach(space.of(first));
      REQUIRE_MESSAGE(owner.ok(), owner.error().to_string());
      const SharedTensor tensor = *(*owner)->create(u8_tensor("t", 64));
      for (const bool own : {true, false}) {
        const auto more = space.attach(space.of(other), own);
        CHECK(more.ok() == (first == other));
        if (more.ok()) continue;
        CHECK(more.error().code == ErrorCode::permission_denied);
        CHECK(says(more.error(), "all holders of a space use the same kind of source"));
      }
      CHECK((*owner)->publish(tensor, bytes_of(1, 64)).ok());
      owner->reset();
      CHECK(space.attach(space.of(other)).ok() == (first == other));  // it stays
    }
}

TEST_CASE("Holders: a space that was formatted for a kind refuses another though nobody owned a part") {
  for (const SpaceOwnership said : kinds) {
    SpaceOptions options = SpaceFixture::small();
    options.ownership = said;
    InAFile space(options);
    for (const SpaceOwnership kind : kinds) {
      const auto attached = space.attach(space.of(kind));
      CHECK(attached.ok() == (kind == said));
    }
    CHECK(space.book->owned.empty());  // no refused one kept a part
  }
}

TEST_CASE("Holders: who finds another kind there only once it has claimed a part gives that back") {
  // Another kind's first owner comes between this one's look at the kind and its claim.
  struct Late final : OwnershipSource {
    Late(std::function<void()> act, std::shared_ptr<MadeUpOwnership::Book> book)
        : before_claim(std::move(act)), made_up(std::move(book)) {}
    Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
      if (before_claim) std::exchange(before_claim, nullptr)();
      return made_up.claim(part, last_epoch);
    }
    void release(uint32_t part) override { made_up.release(part); }
    bool is_dead(uint32_t part, uint64_t epoch) override { return made_up.is_dead(part, epoch); }
    SpaceOwnership kind() const override { return SpaceOwnership::manager; }
    std::function<void()> before_claim;
    MadeUpOwnership made_up;
  };
  InAFile space;
  Result<std::unique_ptr<TensorSpace>> first = Error{};
  const auto late = space.attach(
      std::make_shared<Late>([&] { first = space.attach(space.of(SpaceOwnership::locks)); }, space.book));
  REQUIRE(first.ok());
  CHECK(late.error().code == ErrorCode::permission_denied);
  CHECK(space.book->owned.empty());
  CHECK((*first)->create(u8_tensor("t", 64)).ok());
}

TEST_CASE("Holders: a reader that asks a source of another kind hears of no death") {
  InAFile space;
  const auto wrong = space.attach(space.of(SpaceOwnership::program), false);  // nobody owned a part yet
  REQUIRE(wrong.ok());
  auto owner = space.attach(space.of(SpaceOwnership::locks));
  REQUIRE(owner.ok());
  const SharedTensor tensor = *(*owner)->create(u8_tensor("t", 64), {.double_buffered = false});
  auto write = (*owner)->write(tensor);
  REQUIRE(write.ok());
  // To the book the part is free: its owner would be dead, and the content lost.
  CHECK((*wrong)->version(tensor).error().code == ErrorCode::busy);
  CHECK((*wrong)->pin(tensor).error().code == ErrorCode::permission_denied);
}

TEST_CASE("Holders: of two kinds that come at the same moment one is refused") {
  int of_both = 0;
  for (int turn = 0; turn < 300; ++turn) {
    InAFile space;
    std::atomic<int> waiting = 2;
    Result<std::unique_ptr<TensorSpace>> taken[2] = {Error{}, Error{}};
    const auto claim = [&](int which) {
      const auto source = space.of(which == 0 ? SpaceOwnership::locks : SpaceOwnership::manager);
      --waiting;
      while (waiting.load() != 0) std::this_thread::yield();
      taken[which] = space.attach(source);
    };
    std::thread second([&] { claim(1); });
    claim(0);
    second.join();
    CHECK(taken[0].ok() != taken[1].ok());
    of_both += taken[0].ok() && taken[1].ok();
  }
  CHECK(of_both == 0);
}

TEST_CASE("Holders: who owns no part pins from a seat, and holds a writer up until it lets go or dies") {
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  const SharedTensor tensor = *writer->create(u8_tensor("t", 64), {.double_buffered = false});
  REQUIRE(writer->publish(tensor, bytes_of(4, 64)).ok());
  auto reader = reader_of(fixture);
  CHECK(reader->part() == std::nullopt);
  CHECK(reader->seat() == std::nullopt);  // not before it needs one
  CHECK(fixture.book->owned.size() == 1);
  {
    const auto pin = reader->pin(*reader->open("t"));
    REQUIRE_MESSAGE(pin.ok(), pin.error().to_string());
    CHECK(pin->bytes()[63] == std::byte{4});
    CHECK(reader->seat() == 0u);
    CHECK(writer->publish(tensor, bytes_of(5, 64)).error().code == ErrorCode::busy);
    CHECK(writer->remove(tensor).error().code == ErrorCode::busy);
  }
  CHECK(writer->publish(tensor, bytes_of(5, 64)).ok());
  auto pin = reader->pin(tensor);
  REQUIRE(pin.ok());
  fixture.book->owned.erase(fixture.book->owned.find(3));  // seat 0, beside 3 parts: its process dies
  CHECK(writer->publish(tensor, bytes_of(6, 64)).ok());
  // The next one in that seat finds no pins in it.
  const auto heir = reader_of(fixture);
  REQUIRE(heir->pin(tensor).ok());
  CHECK(heir->seat() == 0u);
  CHECK(writer->remove(tensor).ok());
}

TEST_CASE("Holders: who only reads leaves a dead writer's part to the next writer") {
  SpaceOptions one = SpaceFixture::small();
  one.parts = 1;
  SpaceFixture fixture(one);
  auto writer = fixture.attach();
  REQUIRE(writer->publish(*writer->create(u8_tensor("t", 64)), bytes_of(1, 64)).ok());
  fixture.die(std::move(writer));
  const auto reader = reader_of(fixture);
  const auto pin = reader->pin(*reader->open("t"));
  REQUIRE_MESSAGE(pin.ok(), pin.error().to_string());
  const auto heir = fixture.attach();
  CHECK(heir->part() == 0u);
  CHECK(heir->publish(*heir->open("t"), bytes_of(2, 64)).ok());
  CHECK(pin->bytes()[0] == std::byte{1});
}

TEST_CASE("Holders: seats run out with words, and come back") {
  SpaceOptions options = SpaceFixture::small();
  options.seats = 2;
  SpaceFixture fixture(options);
  const auto writer = fixture.attach();
  const SharedTensor tensor = *writer->create(u8_tensor("t", 64));
  REQUIRE(writer->publish(tensor, bytes_of(1, 64)).ok());
  auto a = reader_of(fixture), b = reader_of(fixture);
  const auto c = reader_of(fixture);
  for (const auto& reader : {&a, &b}) REQUIRE((*reader)->pin(tensor).ok());
  const auto refused = c->pin(tensor);
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(says(refused.error(), "'t': none of 2 seats"));
  a.reset();
  CHECK(c->pin(tensor).ok());
  CHECK(c->seat() == 0u);
  for (const auto& reader : {&b}) CHECK((*reader)->seat() == 1u);
}

TEST_CASE("Holders: a seat whose holder died is taken before one that was left") {
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  const SharedTensor tensor = *writer->create(u8_tensor("t", 64));
  REQUIRE(writer->publish(tensor, bytes_of(1, 64)).ok());
  auto leaves = reader_of(fixture), dies = reader_of(fixture);
  for (const auto& reader : {&leaves, &dies}) REQUIRE((*reader)->pin(tensor).ok());
  REQUIRE(dies->seat() == 1u);
  leaves.reset();
  fixture.book->owned.erase(writer->parts() + 1);
  fixture.dead.push_back(std::move(dies));
  const auto next = reader_of(fixture);
  REQUIRE(next->pin(tensor).ok());
  CHECK(next->seat() == 1u);
}

TEST_CASE("Holders: a space without seats, or of a library before seats, says so") {
  SpaceOptions options = SpaceFixture::small();
  options.seats = 0;
  SpaceFixture fixture(options);
  const layout::SpaceHeader header = header_of(fixture.memory.span());
  const auto check = [&] {
    const auto writer = fixture.attach();
    const SharedTensor tensor = *writer->create(u8_tensor("t", 64));
    REQUIRE(writer->publish(tensor, bytes_of(1, 64)).ok());
    const auto reader = reader_of(fixture);
    const auto refused = reader->pin(tensor);
    CHECK(refused.error().code == ErrorCode::permission_denied);
    CHECK(says(refused.error(), "no seats"));
    CHECK(writer->pin(tensor).ok());
    REQUIRE(writer->remove(tensor).ok());
  };
  check();
  layout::SpaceHeader old = header;
  old.features &= ~layout::space_feature_holders;
  old.seats_offset = 0;
  store_header(fixture.memory.span(), old);
  std::memset(fixture.memory.span().data() + sizeof old, 0xff, 4096 - sizeof old);  // was never looked at
  check();
}

TEST_CASE("Holders: a library before seats refuses a space of this one") {
  SpaceFixture fixture;
  const layout::SpaceHeader header = header_of(fixture.memory.span());
  CHECK((header.features & ~layout::space_feature_checksums) != 0);  // all that it knew
  CHECK(header.seat_count == 8);
}

TEST_CASE("Holders: seats that are not where seats can be are refused") {
  SpaceFixture fixture;
  const layout::SpaceHeader good = header_of(fixture.memory.span());
  const auto refused = [&](auto change) {
    layout::SpaceHeader bad = good;
    change(bad);
    store_header(fixture.memory.span(), bad);
    const auto space = TensorSpace::attach(fixture.memory.span());
    return !space.ok() && space.error().code == ErrorCode::corrupt;
  };
  using Header = layout::SpaceHeader;
  CHECK(refused([](Header& h) { h.seats_offset = 0; }));
  CHECK(refused([](Header& h) { h.seats_offset = 256; }));
  CHECK(refused([](Header& h) { h.seats_offset = 330; }));
  CHECK(refused([](Header& h) { h.seats_offset = 4096; }));
  CHECK(refused([](Header& h) { h.seats_offset = ~0ull & ~63ull; }));
  CHECK(refused([](Header& h) { h.seat_count = 62; }));
  CHECK(refused([](Header& h) { h.seat_count = ~0u; }));
  CHECK(refused([](Header& h) {
    h.seat_count = 61;
    h.part_count = 4;
  }));
  CHECK(refused([](Header& h) {
    h.parts_offset = 0;
    h.seat_count = 0;
  }));
  CHECK_FALSE(refused([](Header&) {}));
  SpaceOptions options = SpaceFixture::small();
  options.seats = 62;
  CHECK(TensorSpace::format(fixture.memory.span(), options).error().code == ErrorCode::invalid_argument);
  options.seats = std::nullopt;
  options.parts = 60;
  options.records_per_part = 1;
  REQUIRE(TensorSpace::format(fixture.memory.span(), options).ok());
  CHECK(header_of(fixture.memory.span()).seat_count == 4);
}

TEST_CASE("Holders: threads that pin at once take one seat, and a forked child none") {
  InAFile space;
  const auto owner = space.attach(space.of(SpaceOwnership::locks));
  REQUIRE(owner.ok());
  const SharedTensor tensor = *(*owner)->create(u8_tensor("t", 64));
  REQUIRE((*owner)->publish(tensor, bytes_of(1, 64)).ok());
  auto reader = space.attach(space.of(SpaceOwnership::locks), false);
  REQUIRE(reader.ok());
  std::atomic<int> pinned = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int turn = 0; turn < 200; ++turn) pinned += (*reader)->pin(tensor).ok();
      });
  }
  CHECK(pinned == 800);
  CHECK((*reader)->seat() == 0u);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool refused = (*reader)->pin(tensor).error().code == ErrorCode::unavailable;
    reader->reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  auto other = space.attach(space.of(SpaceOwnership::locks), false);
  REQUIRE((*other)->pin(tensor).ok());
  CHECK((*other)->seat() == 1u);  // the child gave nothing away
}

namespace {

std::unique_ptr<TensorSpace> later_holder_of(SpaceFixture& fixture) {
  auto space = TensorSpace::attach(
      fixture.memory.span(),
      {.ownership = std::make_shared<MadeUpOwnership>(fixture.book), .claim = PartClaim::when_needed});
  REQUIRE_MESSAGE(space.ok(), space.error().to_string());
  return std::move(*space);
}

SpaceOptions with_parts(uint32_t parts, uint32_t seats) {
  SpaceOptions options = SpaceFixture::small();
  options.parts = parts;
  options.seats = seats;
  return options;
}

}  // namespace

// Found by programs that attached as every process was told to, only read, and kept the restarted writer out.
TEST_CASE("Holders: who may write later owns nothing while it opens, reads and pins") {
  SpaceFixture fixture(with_parts(1, 2));
  auto writer = fixture.attach();
  REQUIRE(writer->publish(*writer->create(u8_tensor("t", 64)), bytes_of(1, 64)).ok());
  fixture.die(std::move(writer));
  const auto reader = later_holder_of(fixture);
  const SharedTensor seen = *reader->open("t");
  CHECK(reader->create(u8_tensor("t", 64)).error().code == ErrorCode::already_exists);
  const auto pin = reader->pin(seen);
  REQUIRE_MESSAGE(pin.ok(), pin.error().to_string());
  CHECK(reader->part() == std::nullopt);
  CHECK(reader->seat() == 0u);
  CHECK(reader->tend() == 0);
  const auto heir = fixture.attach();
  CHECK(heir->publish(*heir->open("t"), bytes_of(2, 64)).ok());
  CHECK(pin->bytes()[0] == std::byte{1});
  // The part has an owner who lives: nothing is left to become the owner of.
  CHECK(reader->write(seen).error().code == ErrorCode::permission_denied);
  CHECK(reader->remove(seen).error().code == ErrorCode::permission_denied);
  const auto refused = reader->create(u8_tensor("u", 64));
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(says(refused.error(), "none of 1 parts can be had"));
}

TEST_CASE("Holders: who writes later becomes the owner of the part that it writes to") {
  SpaceFixture fixture(with_parts(3, 2));
  std::unique_ptr<TensorSpace> writers[] = {fixture.attach(), fixture.attach()};
  for (const auto& writer : writers)
    REQUIRE(
        writer->publish(*writer->create(u8_tensor("t" + std::to_string(*writer->part()), 64)), bytes_of(1, 64))
            .ok());
  for (auto& writer : writers) fixture.die(std::move(writer));
  const auto heir = later_holder_of(fixture);
  CHECK(heir->free_bytes() > 0);
  const auto pin = heir->pin(*heir->open("t0"));
  REQUIRE(pin.ok());
  const SharedTensor second = *heir->open("t1");
  CHECK(heir->publish(second, bytes_of(2, 64)).ok());
  CHECK(heir->part() == 1u);
  CHECK(heir->seat() == 0u);
  const auto more = heir->pin(second);  // both from the seat
  REQUIRE(more.ok());
  CHECK(more->bytes()[0] == std::byte{2});
  CHECK(heir->remove(second).error().code == ErrorCode::busy);  // its own pin is heeded
  const auto other = later_holder_of(fixture);
  CHECK(other->create(u8_tensor("u", 64)).ok());
  CHECK(other->part() == 0u);  // what the dead left comes first
  const auto third = later_holder_of(fixture);
  CHECK(third->remove(second).error().code == ErrorCode::permission_denied);
  CHECK(third->part() == std::nullopt);
}

TEST_CASE("Holders: without a seat left who may write later pins from a part that no dead writer left") {
  SpaceFixture fixture(with_parts(2, 0));
  auto writer = fixture.attach();
  REQUIRE(writer->publish(*writer->create(u8_tensor("t", 64)), bytes_of(1, 64)).ok());
  fixture.die(std::move(writer));
  const auto reader = later_holder_of(fixture);
  REQUIRE(reader->pin(*reader->open("t")).ok());
  CHECK(reader->part() == 1u);
  const auto late = later_holder_of(fixture);
  const auto refused = late->pin(*late->open("t"));
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(says(refused.error(), "none of 0 seats"));
  CHECK(fixture.attach()->part() == 0u);
}

TEST_CASE("Holders: threads that pin and create at once take one seat at most and one part") {
  InAFile space;
  const auto owner = space.attach(space.of(SpaceOwnership::locks));
  REQUIRE(owner.ok());
  const SharedTensor tensor = *(*owner)->create(u8_tensor("t", 64));
  REQUIRE((*owner)->publish(tensor, bytes_of(1, 64)).ok());
  for (int turn = 0; turn < 50; ++turn) {
    auto holder = TensorSpace::attach(
        space.memory, {.ownership = space.of(SpaceOwnership::locks), .claim = PartClaim::when_needed});
    REQUIRE(holder.ok());
    std::atomic<int> pinned = 0, made = 0;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
          for (int n = 0; n < 20; ++n) pinned += (*holder)->pin(tensor).ok();
        });
        threads.emplace_back([&, i] {
          const auto mine = (*holder)->create(u8_tensor("m" + std::to_string(i), 64));
          made += mine.ok() && (*holder)->remove(*mine).ok();
        });
      }
    }
    CHECK(pinned == 40);
    CHECK(made == 2);
    CHECK((*holder)->part() == 1u);
  }
}
