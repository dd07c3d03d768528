// SPDX-License-Identifier: Apache-2.0
// Gets and views of four processes over those of one, beside what copies do by as many that share nothing: the processors'
// way to memory is one for all of them, and where it is full no code goes further.
#include <cstring>

#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

constexpr uint32_t readers = 4;
constexpr uint64_t medium = 64 * kib;

struct Rate {
  double per_s = 0, per_cpu_s = 0;
};

template <typename One>
Rate rate_of_calls(const Worker& me, Prng& prng, One one) {
  const uint64_t begin = monotonic_ns(), cpu_begin = read_kernel_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  uint64_t count = 0, now = begin;
  while (now - begin < me.job().round_ns) {
    one(prng.below(me.job().blocks));
    ++count;
    now = monotonic_ns();
  }
  const uint64_t cpu = read_kernel_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin;
  const auto calls = static_cast<double>(count);
  return {calls / (static_cast<double>(now - begin) / 1e9), calls / (static_cast<double>(cpu) / 1e9)};
}

}  // namespace

// In this order, each by one process and then by all.
enum Kind : int { gets, views, copies, private_copies, kinds };

int scale_role(const Worker& me) {
  const auto space = attach(me.memory, only_reads);
  const std::vector<std::string> keys = keys_of(0, me.job().blocks);
  std::vector<const std::byte*> places;
  for (const std::string& key : keys) places.push_back(must(space->view({}, key), "view").bytes().data());
  // As many bytes as the blocks have, of this process alone.
  const std::vector<std::byte> own(me.job().blocks * medium, std::byte{1});
  std::vector<std::byte> into(medium);
  Prng prng(me.index + 1);
  const auto copy = [&](const std::byte* from) {
    std::memcpy(into.data(), from, medium);
    used(into.data());
  };
  const auto rate_of = [&](int kind) {
    switch (kind) {
      case gets:
        return rate_of_calls(
            me, prng, [&](uint64_t at) { (void)must(space->get({}, {.key = keys[at], .into = into}), "get"); });
      case views:
        return rate_of_calls(
            me, prng, [&](uint64_t at) { used(must(space->view({}, keys[at]), "view").bytes().data()); });
      case copies: return rate_of_calls(me, prng, [&](uint64_t at) { copy(places[at]); });
      default: return rate_of_calls(me, prng, [&](uint64_t at) { copy(own.data() + at * medium); });
    }
  };
  for (int round = 0; round < me.job().rounds; ++round)
    for (int kind = 0; kind < kinds; ++kind)
      for (const bool alone : {true, false}) {
        me.meet();
        if (alone && me.index != 0) continue;
        const Rate rate = rate_of(kind);
        me.tally().rates[round][kind][alone ? 0 : 1] = {rate.per_s, rate.per_cpu_s};
      }
  return 0;
}

namespace {

// Of one kind: what all do over what one does, by round.
struct Scaling {
  std::vector<double> by_time, by_cpu, ones;
};

Scaling scaling_of(const Control& control, int kind, int rounds) {
  Scaling made;
  for (int round = 0; round < rounds; ++round) {
    const auto& alone = control.workers[0].rates[round][kind][0];
    double all = 0, by_cpu = 0;
    for (const Tally& tally : control.workers) {
      all += tally.rates[round][kind][1].per_s;
      by_cpu += tally.rates[round][kind][1].per_cpu_s / readers;
    }
    made.ones.push_back(alone.per_s);
    made.by_time.push_back(all / alone.per_s);
    made.by_cpu.push_back(by_cpu / alone.per_cpu_s);
  }
  return made;
}

}  // namespace

void measure_scaling(const Sizes& sizes, Figures& figures) {
  const uint64_t blocks = sizes.smoke ? 256 : 4096;
  const MemoryFile memory(space_bytes_for(blocks, medium, 2), true);
  must(KvSpace::format(memory.bytes(), {.parts = 2, .block_bytes = medium}), "format");
  put_blocks(*attach(memory, puts), 0, blocks, medium);
  Workers workers(memory, {.workers = readers,
                           .rounds = sizes.rounds,
                           .round_ns = sizes.round_ns,
                           .blocks = blocks,
                           .block_bytes = medium});
  workers.run_all("scale");
  const auto of = [&](int kind) { return scaling_of(workers.control(), kind, sizes.rounds); };
  const Scaling by_gets = of(gets), by_views = of(views), by_copies = of(copies), by_own = of(private_copies);
  std::vector<double> over_copies, over_own;
  for (size_t round = 0; round < by_gets.by_time.size(); ++round) {
    over_copies.push_back(by_gets.by_time[round] / by_copies.by_time[round]);
    over_own.push_back(by_gets.by_time[round] / by_own.by_time[round]);
  }
  figures.detail("kv_get_ops_per_s_1", median(by_gets.ones));
  // Of a call in the processor time it takes: 1 is as fast beside three others as alone, whoever else has work to do.
  figures.detail("kv_ops_per_cpu_s_scaling", median(by_gets.by_cpu));
  figures.detail("kv_views_per_s_scaling", median(by_views.by_time));
  figures.detail("kv_views_per_cpu_s_scaling", median(by_views.by_cpu));
  figures.detail("memcpy_scaling", median(by_copies.by_time));
  // Copies from memory of each process alone: the machine's own limit.
  figures.detail("private_memcpy_scaling", median(by_own.by_time));
  figures.detail("private_memcpy_per_cpu_s_scaling", median(by_own.by_cpu));
  // Of the same round: 1 is as far as plain copies by as many processes go here.
  figures.detail("kv_ops_scaling_over_memcpy_scaling", median(over_copies));
  figures.detail("kv_ops_scaling_over_private_memcpy_scaling", median(over_own));
  figures.at_least("kv_ops_per_s_scaling", median(by_gets.by_time), 1.6);
}

}  // namespace terrace::bench::kv
