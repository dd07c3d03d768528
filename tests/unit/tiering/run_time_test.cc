// SPDX-License-Identifier: Apache-2.0
// Time that the program ran: the clock itself, and what counts in it.
#include "tiering/hotness/run_time.h"

#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"
#include "tiering/engine/engine.h"
#include "tiering/hotness/sampler.h"
#include "tiering/migration/engine_threads.h"

using namespace terrace;
using namespace terrace::test;
using tiering::Residency;
using tiering::RunTime;

namespace {

// The seam: CPU time as the test says.
struct Cpu {
  std::atomic<uint64_t> ns{1};
  static uint64_t read(void* self) { return static_cast<Cpu*>(self)->ns.load(); }
};

void spin(std::chrono::microseconds time) {
  const uint64_t end_ns = tiering::monotonic_ns() + static_cast<uint64_t>(time.count()) * 1'000;
  for (volatile uint64_t i = 0; tiering::monotonic_ns() < end_ns;) i = i + 1;
}

// Of the kernel's clocks, from before a thread runs `work` until after.
template <typename Work>
uint64_t ran_while(Work work) {
  RunTime time;
  time.open();
  std::atomic<bool> begin{false}, done{false}, end{false};
  std::thread thread([&] {
    while (!begin) ::usleep(100);
    work();
    done = true;
    while (!end) ::usleep(100);
  });
  time.look_for_threads(tiering::monotonic_ns());
  const RunTime::Reading from = time.read();
  begin = true;
  while (!done) ::usleep(1000);
  const RunTime::Reading to = time.read();
  end = true;
  thread.join();
  return RunTime::between(from, to);
}

}  // namespace

TEST_CASE("RunTime: counts the CPU time of the program's threads, and neither sleep nor migration's own") {
  // Beside other work a thread may run for a part of the time only, never for nothing.
  CHECK(ran_while([] { spin(std::chrono::milliseconds(100)); }) > 10'000'000);
  CHECK(ran_while([] { ::usleep(200'000); }) < 60'000'000);
  const uint64_t ours = ran_while([] {
    const tiering::EngineThread engine_thread;
    spin(std::chrono::milliseconds(200));
  });
  CHECK(ours < 60'000'000);
}

TEST_CASE("RunTime: the clock of policies stands while the program does, and is never faster than time") {
  Cpu cpu;
  RunTime time;
  time.open(Cpu::read, &cpu);
  const uint64_t begin_ns = time.now_ns();
  ::usleep(5000);
  CHECK(time.now_ns() == begin_ns);
  cpu.ns += 2'000'000;
  ::usleep(5000);
  CHECK(time.now_ns() == begin_ns + 2'000'000);
  CHECK(time.at_ns(tiering::monotonic_ns() - 1'000'000) <= begin_ns + 2'000'000);
  cpu.ns += 80'000'000'000;  // as if many threads had run
  CHECK(time.now_ns() <= tiering::monotonic_ns());
  const RunTime::Reading now{.wall_ns = 2000, .cpu_ns = 9000};
  CHECK(RunTime::between({.wall_ns = 1000, .cpu_ns = 1000}, now) == 1000);
  CHECK(RunTime::between({.wall_ns = 1000, .cpu_ns = 8500}, now) == 500);
}

TEST_CASE("Sampler: a sweep waits until the program has run, and its exposure is the time that it ran") {
  for (const uint64_t wait_ns : {20'000'000u, 200'000u}) {
    TwoFiles files(8, 64 * kib);
    REQUIRE(files.memory.map(0, 8, Residency::ddr) == 0);
    std::memset(files.base(), 1, files.memory.bytes());
    Cpu cpu;
    RunTime time;
    time.open(Cpu::read, &cpu);
    tiering::Sampler sampler;
    const int failed = sampler.open(&files.memory, &time);
    if (failed != 0) TERRACE_SKIP(pagemap_scan, "no PAGEMAP_SCAN, errno " << failed);
    if (failed != 0) return;
    sampler.set_wait_ns(wait_ns);
    tiering::PolicyMemory policy{};
    sampler.begin(tiering::monotonic_ns());
    ::usleep(40'000);
    for (int look = 0; look < 2; ++look) {
      CHECK(!sampler.finish(policy, tiering::monotonic_ns(), 0.3f).finished);
      CHECK(sampler.begun());
    }
    files.at(2)[0] = 1;
    cpu.ns += wait_ns;
    const tiering::SweepResult result = sampler.finish(policy, tiering::monotonic_ns(), 0.3f);
    CHECK(result.finished);
    CHECK(result.seen == 8);
    CHECK(result.wait_ns > 30'000'000);
    for (uint32_t granule = 0; granule < 8; ++granule) {
      const tiering::RateEstimate& rate = sampler.rates().estimates()[granule];
      CHECK(rate.exposed_s > 0.4f * 1e-9f * static_cast<float>(wait_ns));
      CHECK(rate.exposed_s < 1.2f * 1e-9f * static_cast<float>(wait_ns));
    }
  }
}

TEST_CASE("Sampler: a program that does nothing is looked at less and less often, and for a moment each time") {
  for (const uint64_t wait_ns : {20'000'000u, 1'200'000u, 200'000u, 20'000u}) {
    TwoFiles files(8, 64 * kib);
    REQUIRE(files.memory.map(0, 8, Residency::ddr) == 0);
    const tiering::EngineThread engine_thread;  // this one: the program has no other that runs
    RunTime time;
    time.open();
    tiering::Sampler sampler;
    const int failed = sampler.open(&files.memory, &time);
    if (failed != 0) TERRACE_SKIP(pagemap_scan, "no PAGEMAP_SCAN, errno " << failed);
    if (failed != 0) return;
    time.look_for_threads(tiering::monotonic_ns());
    sampler.set_wait_ns(wait_ns);
    tiering::PolicyMemory policy{};
    sampler.begin(tiering::monotonic_ns());
    uint64_t cpu_ns = 0;
    for (int look = 0; look < 12; ++look) {
      const uint64_t begin_ns = tiering::thread_cpu_ns(::gettid());
      REQUIRE(!sampler.finish(policy, tiering::monotonic_ns(), 0.3f).finished);
      cpu_ns += tiering::thread_cpu_ns(::gettid()) - begin_ns;
    }
    CHECK(sampler.due_ns() == 250'000'000);
    CHECK(cpu_ns < 12 * 1'000'000);
  }
}

// As a server's at a low load: another thread each time, a tenth of a millisecond now and then.
TEST_CASE("Sampler: a sweep ends though others run each time, and none for long") {
  TwoFiles files(8, 64 * kib);
  REQUIRE(files.memory.map(0, 8, Residency::ddr) == 0);
  const tiering::EngineThread engine_thread;
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 4; ++worker)
    workers.emplace_back([&stop, worker] {
      ::usleep(static_cast<useconds_t>(worker) * 200'000);
      while (!stop) {
        spin(std::chrono::microseconds(100));
        ::usleep(800'000);
      }
    });
  RunTime time;
  time.open();
  tiering::Sampler sampler;
  const int failed = sampler.open(&files.memory, &time);
  bool finished = failed != 0;
  if (failed == 0) {
    ::usleep(1'000'000);  // what it takes to begin threads
    time.look_for_threads(tiering::monotonic_ns());
    sampler.set_wait_ns(1'000'000);
    tiering::PolicyMemory policy{};
    sampler.begin(tiering::monotonic_ns());
    for (const uint64_t end_ns = tiering::monotonic_ns() + 20'000'000'000;
         !finished && tiering::monotonic_ns() < end_ns;) {
      ::usleep(static_cast<useconds_t>(sampler.due_ns() / 1000));
      time.look_for_threads(tiering::monotonic_ns());
      finished = sampler.finish(policy, tiering::monotonic_ns(), 0.3f).finished;
    }
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  if (failed != 0) TERRACE_SKIP(pagemap_scan, "no PAGEMAP_SCAN, errno " << failed);
  CHECK(finished);
}

TEST_CASE("Engine: while the program does not run nothing is demoted, whatever is touched meanwhile") {
  constexpr uint32_t granules = 16, ddr = 4;
  TwoFiles files(granules, 64 * kib);
  REQUIRE(files.memory.map(0, ddr, Residency::ddr) == 0);
  REQUIRE(files.memory.map(ddr, granules - ddr, Residency::cxl) == 0);
  for (uint32_t granule = 0; granule < granules; ++granule) files.fill(granule, granule);
  Cpu cpu;
  tiering::EngineOptions options;
  options.round_ns = 20'000'000;
  options.sweep_gap_ns_min = 5'000'000;
  options.publish = false;
  options.read_cpu = Cpu::read;
  options.read_cpu_owner = &cpu;
  tiering::Engine engine;
  if (engine.open(options) != 0) {
    TERRACE_SKIP(userfaultfd, "no userfaultfd for this process");
    return;
  }
  tiering::RangeOptions range;
  range.name = "test";
  range.ddr_granules_max = ddr;
  uint32_t index = 0;
  REQUIRE(engine.add_range(&files.memory, range, &index) == 0);
  std::atomic<uint32_t> from{0};
  std::atomic<bool> runs{true}, stop{false};
  std::thread user([&] {
    for (uint64_t before_ns = tiering::monotonic_ns(); !stop;) {
      for (uint32_t granule = from; granule < from + ddr; ++granule)
        for (uint64_t at = 0; at < 64 * kib; at += 4096)
          *reinterpret_cast<volatile char*>(files.at(granule) + at);
      const uint64_t now_ns = tiering::monotonic_ns();
      if (runs) cpu.ns += now_ns - before_ns;
      before_ns = now_ns;
    }
  });
  auto rounds_for = [&](uint64_t ns) {
    for (const uint64_t end_ns = tiering::monotonic_ns() + ns; tiering::monotonic_ns() < end_ns; ::usleep(1000))
      engine.round();
  };
  rounds_for(2'000'000'000);
  CHECK(engine.statistics(index).sweeps > 0);
  const uint64_t before = engine.statistics(index).demotions;
  runs = false;
  ::usleep(50'000);
  from = 8;
  rounds_for(3'000'000'000);
  CHECK(engine.statistics(index).demotions == before);
  // And when it runs with these, they rise.
  runs = true;
  CHECK(eventually(
      [&] {
        engine.round();
        return engine.statistics(index).demotions > before;
      },
      std::chrono::seconds(60)));
  stop = true;
  user.join();
  engine.close();
  for (uint32_t granule = 0; granule < granules; ++granule) CHECK(files.holds(granule, granule));
}
