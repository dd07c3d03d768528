// SPDX-License-Identifier: Apache-2.0
// Tensor spaces: the check for news, finding by name, and handing a version to another process.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>

#include "bench/tensor/parts.h"
#include "core/base/kernel_clock.h"
#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/os/memory_map.h"
#include "terrace/tensor_space.h"

namespace terrace::bench {
namespace {

// A memory file, mapped; a child that is forked maps the same.
class SharedFile {
 public:
  explicit SharedFile(size_t bytes) : fd_(must(os::make_memory_file("bench-space", bytes), "memory file")) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), 0);
    if (at == MAP_FAILED) die("cannot map " + std::to_string(bytes) + " bytes");
    memory_ = {static_cast<std::byte*>(at), bytes};
  }
  ~SharedFile() { ::munmap(memory_.data(), memory_.size()); }

  std::span<std::byte> memory() { return memory_; }
  std::unique_ptr<TensorSpace> attach(bool own) {
    AttachOptions options;
    if (own) options.ownership = must(ownership_by_locks(fd_.get()), "ownership");
    return must(TensorSpace::attach(memory_, std::move(options)), "attach");
  }

 private:
  UniqueFd fd_;
  std::span<std::byte> memory_;
};

__attribute__((noinline)) uint64_t load_once(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);  // acquire: as is_current(), pairs with a publish()
}
__attribute__((noinline)) bool check_once(TensorSpace& space, const SharedTensor& tensor, uint64_t version) {
  return space.is_current(tensor, version);
}

template <typename Body>
double best_ns(uint64_t times, Body body) {
  double best = 1e9;
  for (int round = 0; round < 9; ++round) {
    const uint64_t begin = monotonic_ns();
    for (uint64_t each = 0; each < times; ++each) body();
    best = std::min(best, static_cast<double>(monotonic_ns() - begin) / static_cast<double>(times));
  }
  return best;
}

}  // namespace

void measure_acquire_check(const Sizes& sizes, nlohmann::json& out) {
  SharedFile file(4 << 20);
  must(TensorSpace::format(file.memory(), {.parts = 2, .records_per_part = 64}), "format");
  const auto writer = file.attach(true), reader = file.attach(true);
  const SharedTensor made = must(writer->create({.name = "t", .dtype = DType::u8, .shape = {4096}}), "create");
  const std::vector<std::byte> bytes(4096);
  const uint64_t version = must(writer->publish(made, bytes), "publish");
  const SharedTensor seen = must(reader->open("t"), "open");
  alignas(64) uint64_t word = 7;
  uint64_t sum = 0;
  const uint64_t times = sizes.smoke ? 100'000 : 20'000'000;
  const double load = best_ns(times, [&] { sum += load_once(&word); });
  const double check = best_ns(times, [&] { sum += check_once(*reader, seen, version) ? 1 : 0; });
  if (sum == 0) die("the check says that a current version is not");
  std::printf("acquire check: %.2f ns, a load and a call: %.2f ns: %.2f times (aim: at most 5)\n", check, load,
              check / load);
  out["acquire_check_ns_over_load"] = check / load;
  out["acquire_check_ns"] = check;
  out["load_ns"] = load;
}

namespace {

std::string block_name(uint64_t index) {
  return "model.layers." + std::to_string(index % 80) + ".kv.block." + std::to_string(index);
}

struct OpenTimes {
  double first_us, again_us;
};

OpenTimes open_times(uint32_t tensors, int opens) {
  constexpr uint32_t holders = 4;
  const uint32_t records = std::max(64u, tensors / holders * 2);
  SharedFile file((64ull << 20) + tensors * uint64_t{1024});
  must(TensorSpace::format(file.memory(), {.parts = holders, .records_per_part = records}), "format");
  std::vector<std::unique_ptr<TensorSpace>> writers;
  for (uint32_t holder = 0; holder < holders; ++holder) writers.push_back(file.attach(true));
  for (uint32_t index = 0; index < tensors; ++index)
    must(writers[index % holders]->create({.name = block_name(index), .dtype = DType::u8, .shape = {64}}),
         "create");
  Prng prng(7);
  std::vector<double> first, again;
  for (int round = 0; round < 5; ++round) {
    const auto reader = file.attach(false);
    std::vector<std::string> names;
    for (int each = 0; each < opens; ++each) names.push_back(block_name(prng.below(tensors)));
    for (std::vector<double>* const times : {&first, &again}) {
      const uint64_t begin = monotonic_ns();
      for (const std::string& name : names) must(reader->open(name), "open");
      times->push_back(static_cast<double>(monotonic_ns() - begin) / 1000 / opens);
    }
  }
  return {median(first), median(again)};
}

}  // namespace

void measure_open_by_name(const Sizes& sizes, nlohmann::json& out) {
  const uint32_t many = sizes.smoke ? 2000 : 100'000;
  // As many opens as there are names in the small space, so that neither is answered from the index.
  const OpenTimes few = open_times(100, 100), large = open_times(many, 100);
  const OpenTimes spread = open_times(many, sizes.smoke ? 200 : 20'000);
  std::printf(
      "open by name: %.2f us among %u, %.2f us among 100: %.2f times (aim: at most 5); again: %.2f us and "
      "%.2f us; 20,000 at random: %.2f us\n",
      large.first_us, many, few.first_us, large.first_us / few.first_us, large.again_us, few.again_us,
      spread.first_us);
  out["open_by_name_us"] = large.first_us;
  out["open_by_name_us_among_100"] = few.first_us;
  out["open_by_name_over_100"] = large.first_us / few.first_us;
  out["open_by_name_us_at_random"] = spread.first_us;
  out["open_again_us"] = large.again_us;
}

namespace {

struct Relay {
  std::atomic<uint64_t> published_at{0};  // the clock before publish()
  std::atomic<uint64_t> taken{0};         // rounds that the reader finished
  std::atomic<uint64_t> ready{0};
  double took_us[4096];
};

void read_rounds(SharedFile& file, Relay& relay, int rounds) {
  const auto space = file.attach(true);
  const SharedTensor tensor = must(space->open("t"), "open");
  uint64_t version = 0;
  relay.ready = 1;
  for (int round = 0; round < rounds; ++round) {
    version = must(space->wait_for_version(tensor, version + 1, 20'000'000'000), "wait");
    const TensorPin pin = must(space->pin(tensor, 1'000'000'000), "pin");
    relay.took_us[round] = static_cast<double>(monotonic_ns() - relay.published_at) / 1000;
    version = pin.version();
    relay.taken = static_cast<uint64_t>(round) + 1;
  }
}

struct Handoff {
  double p10_us, p50_us;
};

Handoff handoff(uint64_t bytes, SpaceCoherence coherence, int rounds) {
  SharedFile file((bytes + (4 << 20)) * 2);
  must(TensorSpace::format(file.memory(),
                           {.parts = 2, .records_per_part = 16, .coherence = coherence, .checksums = false}),
       "format");
  auto* const relay =
      new (::mmap(nullptr, sizeof(Relay), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Relay();
  const auto space = file.attach(true);
  const SharedTensor tensor = must(
      space->create({.name = "t", .dtype = DType::u8, .shape = {bytes}}, {.double_buffered = false}), "create");
  const pid_t child = ::fork();
  if (child == 0) {
    read_rounds(file, *relay, rounds);
    ::_exit(0);
  }
  while (relay->ready == 0) ::usleep(100);
  for (int round = 0; round < rounds; ++round) {
    while (relay->taken < static_cast<uint64_t>(round)) __builtin_ia32_pause();
    for (const uint64_t begin = monotonic_ns(); monotonic_ns() - begin < 20'000;)
      __builtin_ia32_pause();  // it polls again
    TensorWrite writing = must(space->write(tensor, 1'000'000'000), "write");
    std::memset(writing.bytes().data(), round, std::min<uint64_t>(bytes, 4096));
    relay->published_at = monotonic_ns();
    writing.publish();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) die("the reading process failed");
  std::sort(relay->took_us, relay->took_us + rounds);
  const Handoff result{relay->took_us[rounds / 10], relay->took_us[rounds / 2]};
  ::munmap(relay, sizeof(Relay));
  return result;
}

}  // namespace

void measure_handoff(const Sizes& sizes, nlohmann::json& out) {
  const int rounds = sizes.smoke ? 20 : 2000;
  const uint64_t large_bytes = sizes.smoke ? 8 << 20 : 1ull << 30;
  const Handoff small = handoff(4096, SpaceCoherence::coherent, rounds);
  const Handoff large = handoff(large_bytes, SpaceCoherence::coherent, rounds);
  const Handoff flushed = handoff(4096, SpaceCoherence::noncoherent, rounds);
  std::printf(
      "handoff: 4 KiB in %.2f us (aim: at most 5; the fastest tenth %.2f), %llu MiB in %.2f us: %.2f times "
      "(aim: at "
      "most 1.5); 4 KiB with write-back and invalidation: %.2f us\n",
      small.p50_us, small.p10_us, static_cast<unsigned long long>(large_bytes >> 20), large.p50_us,
      large.p50_us / small.p50_us, flushed.p50_us);
  out["handoff_us_p50"] = small.p50_us;
  out["handoff_us_p10"] = small.p10_us;  // what it costs when both processes have a processor
  out["handoff_1gib_over_4kib"] = large.p50_us / small.p50_us;
  out["handoff_noncoherent_us_p50"] = flushed.p50_us;
}

}  // namespace terrace::bench
