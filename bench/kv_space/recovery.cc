// SPDX-License-Identifier: Apache-2.0
// kill -9 of a writer with many blocks: when its successor has put something, and what a reader notices meanwhile.
#include <sys/mman.h>

#include <algorithm>

#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

constexpr uint64_t small = 4 * kib;
constexpr uint32_t writer = 0, reader = 1;
constexpr uint32_t warming_up = 2;  // of Control::during: the reader counts nothing yet
constexpr uint64_t quiet_ns = 300 * ns_per_ms;

struct Times {
  std::vector<double> recovery, cpu, exit;
};

// The process that was `writer` is killed, and the next one is in its place afterwards.
void replace(Workers& workers, uint32_t* holder, Times* times) {
  Control& control = workers.control();
  const uint32_t next = *holder == writer ? 2 : writer;
  const uint32_t ready = control.ready;
  control.go = 0;
  workers.start(next, "succeed");
  wait_until(control.ready, ready + 1);
  sleep_ns(quiet_ns);
  const uint64_t begin = monotonic_ns();
  workers.kill(*holder);
  times->exit.push_back(static_cast<double>(monotonic_ns() - begin) / 1e6);
  control.go = 1;
  wait_until(control.ready, ready + 2, ns_per_ms);
  times->recovery.push_back(control.workers[next].ns / 1e6);
  times->cpu.push_back(control.workers[next].cpu_ns / 1e6);
  *holder = next;
}

}  // namespace

// Random gets, until it is told to stop.
int read_role(const Worker& me) {
  // Its own page faults are not what is asked for.
  (void)::madvise(me.memory.bytes().data(), me.memory.bytes().size(), MADV_POPULATE_READ);
  const auto space = attach(me.memory, only_reads);
  std::vector<std::byte> into(small);
  Prng prng(5);
  ++me.control.ready;
  while (me.control.stop.load() == 0) {
    const std::string key = key_of(prng.below(me.job().blocks));
    const uint32_t phase = me.control.during;
    const uint64_t begin = monotonic_ns();
    const Result<uint64_t> got = space->get({}, {.key = key, .into = into});
    const uint64_t took_ns = monotonic_ns() - begin;
    if (phase != warming_up) (phase != 0 ? me.tally().during : me.tally().before).add(took_ns);
    if (!got.ok()) ++me.tally().lost;
  }
  return 0;
}

int succeed_role(const Worker& me) {
  const std::vector<std::byte> bytes(small, std::byte{3});
  const std::string key = key_of(me.job().blocks + me.control.ready);
  ++me.control.ready;
  while (me.control.go.load() == 0)
    sleep_ns(ns_per_ms);  // seldom awake: the reader has the processor meanwhile
  me.control.during = 1;
  const uint64_t begin = monotonic_ns(), cpu_begin = read_kernel_clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const auto space = attach(me.memory, puts);
  must(space->put({}, {.key = key, .bytes = bytes}), "put");
  me.tally().cpu_ns = static_cast<double>(read_kernel_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_begin);
  me.tally().ns = static_cast<double>(monotonic_ns() - begin);
  me.control.during = 0;
  ++me.control.ready;
  while (me.control.stop.load() == 0) sleep_ns(10 * ns_per_ms);
  return 0;
}

void measure_recovery(const Sizes& sizes, Figures& figures) {
  const MemoryFile memory(space_bytes_for(sizes.many_blocks, small, 2));
  must(KvSpace::format(memory.bytes(), {.parts = 2, .block_bytes = small}), "format");
  Workers workers(memory, {.workers = 1, .blocks = sizes.many_blocks, .block_bytes = small});
  workers.start(writer, "fill");
  wait_until(workers.control().ready, 1);
  workers.control().during = warming_up;
  workers.start(reader, "read");
  wait_until(workers.control().ready, 2);
  sleep_ns(sizes.smoke ? 0 : 2 * ns_per_s);  // until the reader has met most pages
  workers.control().during = 0;
  uint32_t holder = writer;
  Times times;
  for (int round = 0; round < sizes.rounds; ++round) replace(workers, &holder, &times);
  uint64_t most = 0;
  for (const KvPartInfo& part : must(attach(memory, only_reads)->stat(), "stat").parts)
    most = std::max(most, part.blocks);
  if (most < sizes.many_blocks) give_up("a successor did not take all blocks over");
  const Tally& read = workers.control().workers[reader];
  const double before_us = percentile_us(read.before, 0.99), during_us = percentile_us(read.during, 0.99);
  figures.detail("kv_recovery_exit_ms", median(times.exit));
  figures.detail("kv_recovery_cpu_ms", median(times.cpu));
  figures.detail("kv_recovery_lost", static_cast<double>(read.lost.load()));
  figures.detail("kv_recovery_others_us_p99_before", before_us);
  figures.detail("kv_recovery_others_us_p99", during_us);
  figures.at_most("kv_recovery_ms", median(times.recovery), 50);
  figures.at_most("kv_recovery_others_p99_ratio", before_us > 0 ? during_us / before_us : 0, 2);
  workers.end_all();
}

}  // namespace terrace::bench::kv
