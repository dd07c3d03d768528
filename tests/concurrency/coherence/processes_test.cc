// SPDX-License-Identifier: Apache-2.0
// Writers and readers as real processes on one memory file; one of them is killed every few milliseconds and
// another takes its place. Each read is held against what was published before it began.
//
// A ledger beside the space says, for each tensor, the last number whose publication returned; a tensor's bytes
// are its number, over and over. The ledger is ordinary shared memory with atomics: the test's, not the
// protocol's.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "terrace/tensor_space.h"

using namespace terrace;

namespace {

constexpr size_t space_bytes = 8 << 20;
constexpr uint32_t tensors = 6;
constexpr uint32_t processes = 4;

struct Ledger {
  std::atomic<uint64_t> published[tensors];
  std::atomic<uint64_t> reads, pins, publications, attached, take_overs;
  std::atomic<int> wrong;
  char what[256];

  void fail(const std::string& text) {
    if (wrong.exchange(1) == 0) std::snprintf(what, sizeof what, "%s", text.c_str());
  }
};

uint64_t words_of(uint32_t index) {
  return 8 + 500 * index;  // 64 bytes to 20 KB
}
std::string name_of(uint32_t index) {
  return "tensor-" + std::to_string(index);
}

// The number that all words have; fails when they differ.
uint64_t number_in(std::span<const std::byte> bytes, Ledger& ledger, const char* what) {
  uint64_t first = 0, word = 0;
  std::memcpy(&first, bytes.data(), 8);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    std::memcpy(&word, bytes.data() + at, 8);
    if (word == first) continue;
    ledger.fail(std::string(what) + ": torn, " + std::to_string(first) + " and " + std::to_string(word));
    break;
  }
  return first;
}

class Holder {
 public:
  Holder(TensorSpace& space, Ledger& ledger, uint64_t seed) : space_(space), ledger_(ledger), prng_(seed) {}

  [[noreturn]] void work() {
    for (;;) {
      const auto index = static_cast<uint32_t>(prng_.below(tensors));
      const bool was_published = ledger_.published[index] != 0;
      Result<SharedTensor> tensor = space_.open(name_of(index));
      if (!tensor.ok() && tensor.error().code == ErrorCode::not_found) {
        if (was_published) ledger_.fail(name_of(index) + " was published and is not found");
        TensorSpec spec{.name = name_of(index), .dtype = DType::u64, .shape = {words_of(index)}};
        tensor = space_.create(spec, {.double_buffered = true});
      }
      if (!tensor.ok()) continue;
      if (tensor->part() == space_.part() && prng_.chance(1, 2))
        write(*tensor, index);
      else if (prng_.chance(1, 2))
        read(*tensor, index);
      else
        pin(*tensor, index);
    }
  }

 private:
  void write(const SharedTensor& tensor, uint32_t index) {
    std::vector<uint64_t> words(words_of(index));
    const Result<uint64_t> now = space_.read(tensor, std::as_writable_bytes(std::span(words)));
    const uint64_t last = now.ok() ? words[0] : 0;
    if (last < ledger_.published[index]) ledger_.fail("its owner sees an old version");
    Result<TensorWrite> writing = space_.write(tensor, 20'000'000);
    if (!writing.ok()) return;
    std::fill(words.begin(), words.end(), last + 1);
    std::memcpy(writing->bytes().data(), words.data(), words.size() * 8);
    writing->publish();
    ledger_.published[index] = last + 1;
    ++ledger_.publications;
  }

  void read(const SharedTensor& tensor, uint32_t index) {
    std::vector<std::byte> copy(tensor.bytes());
    const uint64_t floor = ledger_.published[index];
    const Result<uint64_t> version = space_.read(tensor, copy, 0, 100'000'000);
    ++ledger_.reads;
    if (!version.ok()) {
      if (floor != 0) ledger_.fail("read: " + version.error().to_string());
      return;
    }
    const uint64_t number = number_in(copy, ledger_, "read");
    if (number < floor) ledger_.fail("read: stale, " + std::to_string(number) + " < " + std::to_string(floor));
  }

  void pin(const SharedTensor& tensor, uint32_t index) {
    const uint64_t floor = ledger_.published[index];
    const Result<TensorPin> pin = space_.pin(tensor, 100'000'000);
    ++ledger_.pins;
    if (!pin.ok()) {
      if (floor != 0) ledger_.fail("pin: " + pin.error().to_string());
      return;
    }
    const uint64_t number = number_in(pin->bytes(), ledger_, "pin");
    if (number < floor) ledger_.fail("pin: stale, " + std::to_string(number) + " < " + std::to_string(floor));
    for (int again = 0; again < 3; ++again)
      if (number_in(pin->bytes(), ledger_, "pin, later") != number) ledger_.fail("pin: its bytes changed");
  }

  TensorSpace& space_;
  Ledger& ledger_;
  Prng prng_;
};

std::span<std::byte> map(int fd) {
  void* const at = ::mmap(nullptr, space_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) std::abort();
  return {static_cast<std::byte*>(at), space_bytes};
}

pid_t start(int fd, Ledger& ledger, uint64_t seed) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const auto ownership = ownership_by_locks(fd);
  if (!ownership.ok()) ::_exit(3);
  const auto space = TensorSpace::attach(map(fd), {.ownership = *ownership});
  if (!space.ok()) {
    ledger.fail("attach: " + space.error().to_string());
    ::_exit(3);
  }
  ++ledger.attached;
  Holder((**space), ledger, seed).work();
}

// What the last ones left is whole.
void check_what_is_left(int fd, std::span<std::byte> memory, Ledger& ledger) {
  const auto space = TensorSpace::attach(memory, {.ownership = *ownership_by_locks(fd)});
  REQUIRE(space.ok());
  for (uint32_t index = 0; index < tensors; ++index) {
    if (ledger.published[index] == 0) continue;
    std::vector<std::byte> copy(words_of(index) * 8);
    const auto tensor = (*space)->open(name_of(index));
    REQUIRE(tensor.ok());
    CHECK((*space)->read(*tensor, copy).ok());
    CHECK(number_in(copy, ledger, "at the end") >= ledger.published[index]);
  }
  CHECK(ledger.wrong == 0);
}

void run(SpaceCoherence coherence, double seconds) {
  const UniqueFd file(::memfd_create("space", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), space_bytes) == 0);
  auto* const ledger = static_cast<Ledger*>(
      ::mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const std::span<std::byte> memory = map(file.get());
  REQUIRE(
      TensorSpace::format(
          memory, {.parts = processes + 1, .records_per_part = 32, .pins_per_part = 8, .coherence = coherence})
          .ok());
  Prng prng(static_cast<uint64_t>(coherence) + 1);
  std::array<pid_t, processes> children{};
  for (pid_t& child : children) child = start(file.get(), *ledger, prng.next());
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int kills = 0;
  while (std::chrono::steady_clock::now() < end && ledger->wrong == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(prng.between(2'000, 20'000)));
    pid_t& victim = children[prng.below(processes)];
    ::kill(victim, SIGKILL);
    int status = 0;
    ::waitpid(victim, &status, 0);
    CHECK(WIFSIGNALED(status));
    ++kills;
    victim = start(file.get(), *ledger, prng.next());
  }
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  MESSAGE(kills, " kills, ", ledger->attached.load(), " holders, ", ledger->publications.load(),
          " publications, ", ledger->reads.load(), " reads, ", ledger->pins.load(), " pins");
  CHECK_MESSAGE(ledger->wrong == 0, std::string(ledger->what));
  CHECK(ledger->publications > 20);
  CHECK(ledger->reads > 20);

  check_what_is_left(file.get(), memory, *ledger);
  ::munmap(memory.data(), memory.size());
  ::munmap(ledger, sizeof *ledger);
}

double seconds() {
  const char* const text = std::getenv("TERRACE_COHERENCE_SECONDS");
  return text == nullptr ? 3 : std::strtod(text, nullptr);
}

}  // namespace

TEST_CASE("Processes killed at random: coherent memory") {
  run(SpaceCoherence::coherent, seconds());
}

TEST_CASE("Processes killed at random: with write-back, invalidation and checksums") {
  run(SpaceCoherence::noncoherent, seconds());
}
