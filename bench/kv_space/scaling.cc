// SPDX-License-Identifier: Apache-2.0
// Gets of four processes over those of one, beside what copies alone do by as many.
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

// Round 4n: gets of one; 4n + 1: of all; then copies, the same.
int scale_role(const Worker& me) {
  const auto space = attach(me.memory, only_reads);
  const std::vector<std::string> keys = keys_of(0, me.job().blocks);
  std::vector<const std::byte*> places;
  for (const std::string& key : keys) places.push_back(must(space->view({}, key), "view").bytes().data());
  std::vector<std::byte> into(medium);
  Prng prng(me.index + 1);
  for (int step = 0; step < 4 * me.job().rounds; ++step) {
    me.meet();
    const bool alone = step % 2 == 0, copies = step % 4 >= 2;
    if (alone && me.index != 0) continue;
    const Rate rate = copies ? rate_of_calls(me, prng,
                                             [&](uint64_t at) {
                                               std::memcpy(into.data(), places[at], medium);
                                               used(into.data());
                                             })
                             : rate_of_calls(me, prng, [&](uint64_t at) {
                                 (void)must(space->get({}, {.key = keys[at], .into = into}), "get");
                               });
    // Kept by what it is of: one's rate in the lower half of the rounds, all's in the upper.
    const int place = step / 4 + (alone ? 0 : rounds_max / 2);
    (copies ? me.tally().second : me.tally().first)[place] = rate.per_s;
    if (!copies) me.tally().by_cpu[place] = rate.per_cpu_s;
  }
  return 0;
}

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
  std::vector<double> ones, gets, copies, by_cpu, over_copies;
  for (int round = 0; round < sizes.rounds; ++round) {
    double all_gets = 0, all_copies = 0, all_by_cpu = 0;
    for (const Tally& tally : workers.control().workers) {
      all_gets += tally.first[round + rounds_max / 2];
      all_by_cpu += tally.by_cpu[round + rounds_max / 2] / readers;
      all_copies += tally.second[round + rounds_max / 2];
    }
    const Tally& alone = workers.control().workers[0];
    ones.push_back(alone.first[round]);
    gets.push_back(all_gets / alone.first[round]);
    by_cpu.push_back(all_by_cpu / alone.by_cpu[round]);
    copies.push_back(all_copies / alone.second[round]);
    over_copies.push_back(gets.back() / copies.back());
  }
  figures.detail("kv_get_ops_per_s_1", median(ones));
  // Of a call in the processor time it takes: 1 is as fast beside three others as alone, whoever else has work to do.
  figures.detail("kv_ops_per_cpu_s_scaling", median(by_cpu));
  figures.detail("memcpy_scaling", median(copies));
  // Of the same round: 1 is as far as plain copies by as many processes go here.
  figures.detail("kv_ops_scaling_over_memcpy_scaling", median(over_copies));
  figures.at_least("kv_ops_per_s_scaling", median(gets), 1.6);
}

}  // namespace terrace::bench::kv
