// SPDX-License-Identifier: Apache-2.0
// Checkpoints of tensors of a space: a cut of one moment, whatever their writers do, and back into a space.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "terrace/checkpoint.h"
#include "tests/unit/coherence/space_fixture.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct Disk {
  explicit Disk(const char* parent = "/var/tmp") : directory(parent) {}
  const TemporaryDirectory directory;
  std::unique_ptr<CheckpointDirectory> checkpoints =
      take(CheckpointDirectory::open(directory.file("checkpoints")));
};

SharedTensor published(TensorSpace& space, const std::string& name, uint8_t value, uint64_t bytes,
                       bool double_buffered = true) {
  const SharedTensor tensor = take(space.create(u8_tensor(name, bytes), {.double_buffered = double_buffered}));
  take(space.publish(tensor, bytes_of(value, bytes)));
  return tensor;
}

bool all_of(std::span<const std::byte> bytes, uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == std::byte{value}; });
}

bool holds(TensorSpace& space, const std::string& name, uint8_t value) {
  const SharedTensor tensor = take(space.open(name));
  std::vector<std::byte> bytes(tensor.bytes());
  take(space.read(tensor, bytes));
  return all_of(bytes, value);
}

std::string letter(uint8_t number) {
  return {static_cast<char>('a' + number)};
}

// A space that does something behind each pin and each copy.
class Meddling final : public TensorSpace {
 public:
  Meddling(TensorSpace& real, std::function<void(const SharedTensor&)> behind)
      : real_(real), behind_(std::move(behind)) {}
  std::optional<uint32_t> part() const override { return real_.part(); }
  uint32_t parts() const override { return real_.parts(); }
  SpaceCoherence coherence() const override { return real_.coherence(); }
  uint64_t free_bytes() const override { return real_.free_bytes(); }
  uint64_t largest_free_bytes() const override { return real_.largest_free_bytes(); }
  Result<SharedTensor> create(const TensorSpec& spec, const CreateOptions& options) override {
    return real_.create(spec, options);
  }
  Result<SharedTensor> open(std::string_view name) override { return real_.open(name); }
  std::vector<SharedTensor> list() override { return real_.list(); }
  Status remove(const SharedTensor& tensor, uint64_t wait_ns) override { return real_.remove(tensor, wait_ns); }
  Result<uint64_t> version(const SharedTensor& tensor) override { return real_.version(tensor); }
  Result<uint64_t> read(const SharedTensor& tensor, std::span<std::byte> into, uint64_t known,
                        uint64_t wait_ns) override {
    auto result = real_.read(tensor, into, known, wait_ns);
    behind_(tensor);
    return result;
  }
  Result<TensorPin> pin(const SharedTensor& tensor, uint64_t wait_ns) override {
    auto result = real_.pin(tensor, wait_ns);
    behind_(tensor);
    return result;
  }
  Result<uint64_t> wait_for_version(const SharedTensor& tensor, uint64_t version, uint64_t wait_ns) override {
    return real_.wait_for_version(tensor, version, wait_ns);
  }
  Result<TensorWrite> write(const SharedTensor& tensor, uint64_t wait_ns) override {
    return real_.write(tensor, wait_ns);
  }
  Result<uint64_t> publish(const SharedTensor& tensor, std::span<const std::byte> bytes,
                           uint64_t wait_ns) override {
    return real_.publish(tensor, bytes, wait_ns);
  }

 protected:
  bool is_current_slowly(const SharedTensor& tensor, uint64_t version) override {
    const auto now = real_.version(tensor);
    return now.ok() && *now == version;
  }
  void unpin(uint32_t) override {}  // pins are the real one's

 private:
  TensorSpace& real_;
  std::function<void(const SharedTensor&)> behind_;
};

SpaceOptions one_part() {
  return {.parts = 1, .records_per_part = 16, .pins_per_part = 8};
}

// A space in a file, as a lease is one.
struct FileSpace {
  explicit FileSpace(uint64_t bytes) : fd(::memfd_create("space", MFD_CLOEXEC)), size(bytes) {
    REQUIRE(::ftruncate(fd, static_cast<off_t>(size)) == 0);
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(memory != MAP_FAILED);
    REQUIRE(TensorSpace::format(span(), one_part()).ok());
    space = take(TensorSpace::attach(span(), {.ownership = std::make_shared<MadeUpOwnership>(book)}));
  }
  ~FileSpace() {
    // Where the memory was lost a holder's end would be its process's.
    (void)::mmap(memory, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    space.reset();
    ::munmap(memory, size);
    ::close(fd);
  }
  void lose() const { REQUIRE(::ftruncate(fd, 0) == 0); }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory), size}; }

  const int fd;
  const uint64_t size;
  void* memory = nullptr;
  std::shared_ptr<MadeUpOwnership::Book> book = std::make_shared<MadeUpOwnership::Book>();
  std::unique_ptr<TensorSpace> space;
};

}  // namespace

TEST_CASE("space checkpoint: written, and restored into a space and into a pool") {
  const Disk disk;
  SpaceFixture source, target;
  const auto writer = source.attach(), reader = source.attach(), other = target.attach();
  const std::vector<SharedTensor> tensors = {published(*writer, "a", 1, 5000), published(*reader, "b", 2, 4096),
                                             published(*writer, "c", 3, 100, false)};
  SpaceCheckpointOptions options;
  options.metadata = {{"step", "3"}};
  const auto write = take(disk.checkpoints->checkpoint("one", *reader, tensors, options));
  REQUIRE(write->wait(patience_ns).ok());
  CHECK(write->progress().copied_at_once_bytes == 0);
  CHECK(write->progress().snapshot_bytes == 9196);
  const SpaceImport back = take(disk.checkpoints->restore("one", *other));
  CHECK(back.metadata == options.metadata);
  CHECK(back.tensors.size() == 3);
  CHECK(holds(*other, "a", 1));
  CHECK(holds(*other, "b", 2));
  CHECK(holds(*other, "c", 3));
  Pools pools(16 * mib, 0);
  take(disk.checkpoints->restore("one", *pools.pool));
  CHECK(pools.pool->statistics().tensors == 0);  // nobody kept them
  const PoolImport kept = take(disk.checkpoints->restore("one", *pools.pool));
  CHECK(all_of(take(pools.pool->find("b"))->bytes(), 2));
  // Nothing is pinned any more: everything can be removed.
  CHECK(writer->remove(tensors[0]).ok());
  CHECK(reader->remove(tensors[1]).ok());
}

TEST_CASE("space checkpoint: is of one moment while others publish without a pause") {
  const Disk disk("/dev/shm");  // many small checkpoints, of which each is synced several times
  SpaceFixture fixture({.parts = 3, .records_per_part = 32, .pins_per_part = 32}, 4 << 20);
  const auto writer = fixture.attach(), reader = fixture.attach();
  constexpr size_t count = 8;
  std::vector<SharedTensor> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(published(*writer, "t" + std::to_string(i), 0, 4096));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds{0};
  // In rounds, one tensor after the other: at any moment the first ones are a round ahead, or none is.
  std::thread publishes([&] {
    std::vector<uint64_t> words(512);
    for (uint64_t round = 1; !stop; ++round) {
      std::fill(words.begin(), words.end(), round);
      for (const SharedTensor& tensor : tensors)
        if (!writer->publish(tensor, std::as_bytes(std::span(words)), patience_ns).ok()) std::abort();
      rounds = round;
    }
  });
  for (int number = 0; number < 25; ++number) {
    const uint64_t before = rounds;
    CHECK(eventually([&] { return rounds > before; }, std::chrono::seconds(60)));
    SpaceCheckpointOptions options;
    options.copy_at_once = number % 2 == 1;
    options.wait_ns = patience_ns;
    const std::string name = "cut-" + std::to_string(number);
    const auto write = take(disk.checkpoints->checkpoint(name, *reader, tensors, options));
    REQUIRE(write->wait(patience_ns).ok());
    Pools pools(8 * mib, 0);
    const PoolImport back = take(disk.checkpoints->restore(name, *pools.pool));
    uint64_t first = 0, last = UINT64_MAX;
    for (size_t i = 0; i < count; ++i) {
      const auto tensor = take(pools.pool->find("t" + std::to_string(i)));
      const auto* words = reinterpret_cast<const uint64_t*>(tensor->data());
      CHECK(std::all_of(words, words + 512, [&](uint64_t word) { return word == words[0]; }));
      if (i == 0) first = words[0];
      CHECK_MESSAGE(words[0] <= last, name, ": t", i, " is of round ", words[0], " behind ", last);
      CHECK_MESSAGE(words[0] + 1 >= first, name, ": t", i, " is of round ", words[0], ", t0 of ", first);
      last = words[0];
    }
    CHECK(disk.checkpoints->remove(name).ok());
  }
  stop = true;
  publishes.join();
}

TEST_CASE("space checkpoint: whatever is published behind every pin comes to rest") {
  const Disk disk;
  SpaceFixture fixture;
  const auto writer = fixture.attach(), reader = fixture.attach();
  const std::vector<SharedTensor> tensors = {published(*writer, "a", 1, 4096),
                                             published(*writer, "b", 1, 4096)};
  uint32_t pins = 0;
  uint8_t last[2] = {1, 1};
  Meddling meddling(*reader, [&](const SharedTensor&) {
    ++pins;
    for (size_t i = 0; i < 2; ++i) {
      const auto next = static_cast<uint8_t>(last[i] + 1);
      if (writer->publish(tensors[i], bytes_of(next, 4096)).ok()) last[i] = next;
    }
  });
  const auto write = take(disk.checkpoints->checkpoint("one", meddling, tensors));
  REQUIRE(write->wait(patience_ns).ok());
  CHECK(pins == 4);  // each was pinned twice; an older pin kept it where it was after that
  CHECK(last[0] == 2);
  CHECK(last[1] == 3);
  Pools pools(8 * mib, 0);
  const PoolImport back = take(disk.checkpoints->restore("one", *pools.pool));
  for (size_t i = 0; i < 2; ++i) CHECK(all_of(back.tensors[i]->bytes(), last[i]));
}

TEST_CASE("space checkpoint: a tensor that does not stand still is named") {
  const Disk disk;
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  const auto reader = take(TensorSpace::attach(fixture.memory.span(), {}));
  const std::vector<SharedTensor> tensors = {published(*writer, "calm", 1, 4096),
                                             published(*writer, "restless", 1, 4096)};
  Meddling meddling(*reader, [&](const SharedTensor& tensor) {
    if (tensor.name() == "restless") take(writer->publish(tensor, bytes_of(2, 4096)));
  });
  SpaceCheckpointOptions options;
  options.wait_ns = 20'000'000;
  const auto refused = disk.checkpoints->checkpoint("one", meddling, tensors, options);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(refused.error().detail.find("'restless' does not stand still") != std::string::npos);
  options.wait_ns = patience_ns;
  options.cancelled = [] { return true; };
  CHECK(disk.checkpoints->checkpoint("one", meddling, tensors, options).error().code == ErrorCode::cancelled);
  CHECK(take(disk.checkpoints->list()).checkpoints.empty());
}

TEST_CASE("space checkpoint: without a part, or with too few pins, it copies and says so") {
  const Disk disk;
  SpaceFixture fixture({.parts = 3, .records_per_part = 32, .pins_per_part = 8});
  const auto writer = fixture.attach(), few = fixture.attach();
  const auto reader = take(TensorSpace::attach(fixture.memory.span(), {}));
  std::vector<SharedTensor> tensors;
  for (uint8_t i = 0; i < 12; ++i) tensors.push_back(published(*writer, letter(i), i, 4096));
  const auto check = [&](TensorSpace& space, const std::string& name, uint64_t copied) {
    const auto write = take(disk.checkpoints->checkpoint(name, space, tensors));
    REQUIRE(write->wait(patience_ns).ok());
    CHECK(write->progress().copied_at_once_bytes == copied);
    CHECK(write->progress().reason.find("no part, or too few pins") != std::string::npos);
    Pools pools(8 * mib, 0);
    const PoolImport back = take(disk.checkpoints->restore(name, *pools.pool));
    for (uint8_t i = 0; i < 12; ++i) CHECK(all_of(take(pools.pool->find(letter(i)))->bytes(), i));
  };
  check(*reader, "no-part", 12 * 4096);
  check(*few, "eight-pins", 4 * 4096);
}

TEST_CASE("space checkpoint: writers wait for what is not on the disk yet, and for copies not at all") {
  const Disk disk;
  SpaceFixture fixture({.parts = 2, .records_per_part = 16, .pins_per_part = 8}, 176 * mib);
  const auto writer = fixture.attach(), reader = fixture.attach();
  const std::vector<SharedTensor> tensors = {published(*writer, "a", 1, 56 * mib, false),
                                             published(*writer, "b", 1, 12 * mib)};
  const std::vector<std::byte> next_a = bytes_of(2, 56 * mib), next_b = bytes_of(2, 12 * mib);
  for (const bool copies : {false, true}) {
    std::atomic<bool> at_first{false}, go_on{false};
    SpaceCheckpointOptions options;
    options.copy_at_once = copies;
    options.progress = [&](uint64_t, uint64_t) {
      if (at_first.exchange(true)) return;
      (void)eventually([&] { return go_on.load(); }, std::chrono::seconds(60));
    };
    const auto write =
        take(disk.checkpoints->checkpoint(copies ? "copied" : "pinned", *reader, tensors, options));
    CHECK(eventually([&] { return at_first.load(); }, std::chrono::seconds(60)));
    for (int i = 0; i < 2; ++i) CHECK(writer->publish(tensors[0], next_a).ok());  // it is on the disk
    CHECK(writer->publish(tensors[1], next_b).ok());
    CHECK(writer->publish(tensors[1], next_b).ok() == copies);
    go_on = true;
    REQUIRE(write->wait(patience_ns).ok());
    CHECK(writer->publish(tensors[1], next_b).ok());
    CHECK(take(disk.checkpoints->verify(copies ? "copied" : "pinned")).damaged.empty());
  }
  Pools pools(96 * mib, 0);
  const PoolImport back = take(disk.checkpoints->restore("pinned", *pools.pool));
  for (const auto& tensor : back.tensors) CHECK(all_of(tensor->bytes(), 1));
}

TEST_CASE("space checkpoint: tensors that cannot be read are named, and nothing stays pinned") {
  const Disk disk;
  SpaceFixture fixture;
  const auto writer = fixture.attach(), reader = fixture.attach();
  const SharedTensor good = published(*writer, "good", 1, 64);
  const SharedTensor blank = take(writer->create(u8_tensor("blank", 64)));
  const SharedTensor gone = published(*writer, "gone", 1, 64);
  REQUIRE(writer->remove(gone).ok());
  SpaceCheckpointOptions options;
  options.wait_ns = 1'000'000;
  const auto error_of = [&](std::vector<SharedTensor> tensors) {
    const auto refused = disk.checkpoints->checkpoint("one", *reader, tensors, options);
    REQUIRE(!refused.ok());
    return refused.error();
  };
  CHECK(error_of({good, blank}).code == ErrorCode::busy);
  CHECK(error_of({good, blank}).detail.find("'blank'") != std::string::npos);
  CHECK(error_of({good, gone}).code == ErrorCode::not_found);
  CHECK(error_of({good, gone}).detail.find("'gone'") != std::string::npos);
  CHECK(error_of({good, good}).code == ErrorCode::already_exists);
  CHECK(error_of({}).code == ErrorCode::invalid_argument);
  CHECK(disk.checkpoints->checkpoint("no/name", *reader, std::vector{good}).error().code ==
        ErrorCode::invalid_argument);
  CHECK(writer->remove(good).ok());
  CHECK(take(disk.checkpoints->list()).checkpoints.empty());
}

TEST_CASE("space restore: new versions of tensors that are there, all or none") {
  const Disk disk;
  SpaceFixture fixture;
  const auto owner = fixture.attach(), stranger = fixture.attach();
  const std::vector<SharedTensor> tensors = {published(*owner, "a", 1, 5000), published(*owner, "b", 2, 4096)};
  REQUIRE(take(disk.checkpoints->checkpoint("one", *owner, tensors))->wait(patience_ns).ok());
  for (const SharedTensor& tensor : tensors) take(owner->publish(tensor, bytes_of(9, tensor.bytes())));
  CHECK(disk.checkpoints->restore("one", *owner).error().code == ErrorCode::already_exists);
  SpaceImportOptions over;
  over.into_existing = true;
  const Error denied = disk.checkpoints->restore("one", *stranger, over).error();
  CHECK(denied.code == ErrorCode::permission_denied);
  CHECK(denied.detail.find("'b'") != std::string::npos);  // of whole pages: the first one
  over.tensors = {"a"};
  take(disk.checkpoints->restore("one", *owner, over));
  CHECK(holds(*stranger, "a", 1));
  CHECK(holds(*stranger, "b", 9));
  over.tensors = {"x", "a", "y"};
  CHECK(disk.checkpoints->restore("one", *owner, over).error().detail.find("'x', 'y'") != std::string::npos);
  over.tensors = {};

  // A damaged byte in the last tensor: the first one is as it was, too.
  const std::string file = take(disk.checkpoints->find("one")).file;
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('!');
  take(owner->publish(tensors[0], bytes_of(8, 5000)));
  CHECK(disk.checkpoints->restore("one", *owner, over).error().code == ErrorCode::corrupt);
  CHECK(holds(*stranger, "a", 8));
  CHECK(holds(*stranger, "b", 9));
  SpaceFixture empty;
  const auto other = empty.attach();
  CHECK(disk.checkpoints->restore("one", *other).error().code == ErrorCode::corrupt);
  CHECK(other->list().empty());
  REQUIRE(owner->remove(tensors[0]).ok());
  published(*owner, "a", 1, 7);
  CHECK(disk.checkpoints->restore("one", *owner, over).error().detail.find("[7] in the space") !=
        std::string::npos);
}

TEST_CASE("space checkpoint: memory that goes away meanwhile is an error and not the end") {
  const Disk disk;
  SpaceFixture source(one_part(), 100 * mib);
  const auto whole = source.attach();
  const std::vector<SharedTensor> good = {published(*whole, "a", 1, 40 * mib, false),
                                          published(*whole, "b", 1, 40 * mib, false)};
  REQUIRE(take(disk.checkpoints->checkpoint("good", *whole, good))->wait(patience_ns).ok());
  {
    FileSpace lost(100 * mib);
    const std::vector<SharedTensor> tensors = {published(*lost.space, "a", 1, 40 * mib, false),
                                               published(*lost.space, "b", 1, 40 * mib, false)};
    SpaceCheckpointOptions options;
    bool once = false;
    options.progress = [&](uint64_t, uint64_t) {
      if (!std::exchange(once, true)) lost.lose();
    };
    const auto write = take(disk.checkpoints->checkpoint("lost", *lost.space, tensors, options));
    const Status done = write->wait(patience_ns);
    REQUIRE(!done.ok());
    CHECK(done.error().code == ErrorCode::lease_expired);
    CHECK(take(disk.checkpoints->list()).checkpoints.size() == 1);
  }
  FileSpace lost(100 * mib);
  SpaceImportOptions options;
  options.double_buffered = false;
  bool once = false;
  options.progress = [&](uint64_t, uint64_t) {
    if (!std::exchange(once, true)) lost.lose();
  };
  const auto back = disk.checkpoints->restore("good", *lost.space, options);
  REQUIRE(!back.ok());
  CHECK(back.error().code == ErrorCode::lease_expired);
  // All is filled, and nothing published yet.
  FileSpace lost_at_last(100 * mib);
  options.progress = [&](uint64_t done, uint64_t total) {
    if (done == total) lost_at_last.lose();
  };
  const auto unpublished = disk.checkpoints->restore("good", *lost_at_last.space, options);
  REQUIRE(!unpublished.ok());
  CHECK(unpublished.error().code == ErrorCode::lease_expired);
}
