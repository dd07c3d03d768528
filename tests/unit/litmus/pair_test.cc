// SPDX-License-Identifier: Apache-2.0
// Both sides in one process, over two mappings of one memory file.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/litmus/pair.h"
#include "core/litmus/region.h"
#include "core/os/memory_map.h"

namespace terrace::litmus {
namespace {

// A view of `fd`, unmapped at the end.
class View {
 public:
  explicit View(int fd) : at_(::mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {
    REQUIRE(at_ != MAP_FAILED);
  }
  ~View() { ::munmap(at_, region_bytes); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(at_), region_bytes}; }

 private:
  void* at_;
};

UniqueFd memory_file() {
  auto made = os::make_memory_file("litmus", region_bytes);
  REQUIRE(made.ok());
  return std::move(*made);
}

constexpr uint64_t patience_ns = 60'000'000'000;  // a machine that is busy with other things

}  // namespace

TEST_CASE("litmus pair: two mappings of this machine's memory are coherent") {
  const UniqueFd fd = memory_file();
  const View first(fd.get()), second(fd.get());
  const auto report = run_pair(first.bytes(), second.bytes(), {.patience_ns = patience_ns});
  REQUIRE_MESSAGE(report.ok(), (report.ok() ? "" : report.error().to_string()));
  CAPTURE(forbidden_outcomes(*report));
  CHECK(report->shapes.size() == all_shapes.size());
  for (const ShapeResult& shape : report->shapes) {
    CAPTURE(shape.name);
    CHECK(shape.rounds == rounds_default);
    CHECK(shape.forbidden == 0);
  }
  CHECK(report->verdict != Verdict::not_coherent);  // inconclusive where there is one CPU only
  CHECK(report->took_ns > 0);
}

TEST_CASE("litmus pair: on one CPU nothing is called coherent, however the sides met") {
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  // The kernel takes the CPU from a side in the middle of a round now and then: then both were at it.
  std::atomic<bool> ended{false};
  std::thread disturber([&] {
    while (!ended) ::usleep(100);
  });
  const UniqueFd fd = memory_file();
  const View first(fd.get()), second(fd.get());
  const auto report = run_pair(first.bytes(), second.bytes(), {.patience_ns = patience_ns});
  ended = true;
  disturber.join();
  CHECK(::sched_setaffinity(0, sizeof before, &before) == 0);
  REQUIRE_MESSAGE(report.ok(), (report.ok() ? "" : report.error().to_string()));
  CHECK(report->verdict == Verdict::inconclusive);
  CHECK(!report->note.empty());
}

TEST_CASE("litmus pair: what an earlier run left there is nothing to a later one") {
  const UniqueFd fd = memory_file();
  const View first(fd.get()), second(fd.get());
  for (int run = 0; run < 3; ++run) {
    const auto report = run_pair(first.bytes(), second.bytes(), {.rounds = 64, .patience_ns = patience_ns});
    REQUIRE(report.ok());
    CHECK(report->verdict == Verdict::inconclusive);  // too few rounds
    CHECK(forbidden_outcomes(*report) == "nothing forbidden");
  }
}

TEST_CASE("litmus pair: sides with caches of their own are found in every shape") {
  const UniqueFd fd = memory_file();
  const View first(fd.get()), second(fd.get());
  const auto report = run_pair(first.bytes(), second.bytes(), {.patience_ns = patience_ns, .cached = true});
  REQUIRE_MESSAGE(report.ok(), (report.ok() ? "" : report.error().to_string()));
  CHECK(report->verdict == Verdict::not_coherent);
  for (const ShapeResult& shape : report->shapes) {
    CAPTURE(shape.name);
    CHECK(shape.forbidden > 0);
    CHECK(shape.verdict == Verdict::not_coherent);
    CHECK(shape.example.starts_with("round 1: "));
  }
}

TEST_CASE("litmus pair: two memories are not taken for one") {
  const UniqueFd one = memory_file(), other = memory_file();
  const View first(one.get()), second(other.get());
  const auto report = run_pair(first.bytes(), second.bytes(), {.patience_ns = 50'000'000});
  REQUIRE(!report.ok());
  CHECK(report.error().code == ErrorCode::unavailable);
  CHECK(report.error().detail.find("same memory") != std::string::npos);
}

TEST_CASE("litmus pair: memory that goes away is an error, not the end of the process") {
  const UniqueFd fd(::memfd_create("litmus", MFD_CLOEXEC));  // not sealed
  REQUIRE(::ftruncate(fd.get(), region_bytes) == 0);
  const View first(fd.get()), second(fd.get());
  REQUIRE(::ftruncate(fd.get(), 0) == 0);
  const auto report = run_pair(first.bytes(), second.bytes(), {.patience_ns = patience_ns});
  REQUIRE(!report.ok());
  CHECK(report.error().code == ErrorCode::io_error);
}

TEST_CASE("litmus pair: views that are too small, and no rounds or too many, are refused") {
  const UniqueFd fd = memory_file();
  const View view(fd.get());
  CHECK(run_pair(view.bytes().first(4096), view.bytes(), {}).error().code == ErrorCode::invalid_argument);
  CHECK(run_pair(view.bytes(), view.bytes().subspan(1), {}).error().code == ErrorCode::invalid_argument);
  CHECK(run_pair(view.bytes(), view.bytes(), {.rounds = 0}).error().code == ErrorCode::invalid_argument);
  CHECK(run_pair(view.bytes(), view.bytes(), {.rounds = rounds_max + 1}).error().code ==
        ErrorCode::invalid_argument);
}

}  // namespace terrace::litmus
