// SPDX-License-Identifier: Apache-2.0
// get() and put() of large blocks, each held against memcpy of as many bytes in the same round.
#include <algorithm>
#include <cstring>

#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

constexpr uint64_t large = 2 * mib;

// Calls `one` with 0, 1, ... until the time is over; returns GiB/s.
template <typename One>
double rate_for(uint64_t round_ns, One one) {
  const uint64_t begin = monotonic_ns();
  uint64_t count = 0, now = begin;
  while (now - begin < round_ns) {
    one(count++);
    now = monotonic_ns();
  }
  return static_cast<double>(count * large) / gib / (static_cast<double>(now - begin) / 1e9);
}

template <typename One>
double rate_of(uint64_t count, One one) {
  const uint64_t begin = monotonic_ns();
  for (uint64_t at = 0; at < count; ++at) one(at);
  return static_cast<double>(count * large) / gib / (static_cast<double>(monotonic_ns() - begin) / 1e9);
}

double measure_gets(const MemoryFile& memory, const Sizes& sizes, uint64_t blocks, uint32_t readers,
                    Figures& figures) {
  Workers workers(memory, {.workers = readers,
                           .rounds = sizes.rounds,
                           .round_ns = sizes.round_ns,
                           .blocks = blocks,
                           .block_bytes = large});
  workers.run_all("copy");
  std::vector<double> ratios, gets, copies;
  for (int round = 0; round < sizes.rounds; ++round) {
    double get = 0, copy = 0;
    for (uint32_t index = 0; index < readers; ++index) {
      get += workers.control().workers[index].first[round];
      copy += workers.control().workers[index].second[round];
    }
    ratios.push_back(get / copy);
    gets.push_back(get);
    copies.push_back(copy);
  }
  const std::string end = "_" + std::to_string(readers);
  figures.detail("kv_get_gib_per_s" + end, median(gets));
  figures.detail("memcpy_from_space_gib_per_s" + end, median(copies));
  figures.detail("kv_get_gib_per_s_over_memcpy" + end, median(ratios));
  return median(ratios);
}

// One round: `count` puts, and as many copies into other memory of the same kind. Both end in lines
// that are in no cache.
double put_round(KvSpace& space, const MemoryFile& beside, uint64_t first, uint64_t count, double* gib_per_s) {
  const std::vector<std::byte> bytes(large, std::byte{5});
  const std::vector<std::string> keys = keys_of(first, first + count);
  *gib_per_s =
      rate_of(count, [&](uint64_t at) { must(space.put({}, {.key = keys[at], .bytes = bytes}), "put"); });
  const uint64_t places = beside.bytes().size() / large;
  const double copied = rate_of(count, [&](uint64_t at) {
    std::byte* const to = beside.bytes().data() + at % places * large;
    std::memcpy(to, bytes.data(), large);
    used(to);
  });
  return *gib_per_s / copied;
}

void measure_puts(const Sizes& sizes, Figures& figures) {
  const uint64_t count = sizes.smoke ? 16 : 192;
  const MemoryFile memory(round_up((count + 8) * large * 9 / 8 + 64 * mib, 2 * mib), true);
  const MemoryFile beside(count * large, true);
  const KvFormatOptions format = {.parts = 2, .block_bytes = large};
  std::vector<double> fresh, steady, fresh_rates, steady_rates;
  for (int round = 0; round < sizes.rounds; ++round) {
    must(KvSpace::format(memory.bytes(), format), "format");
    const auto space = attach(memory, puts);
    put_blocks(*space, 0, 1, large);
    double rate = 0;
    fresh.push_back(put_round(*space, beside, 1'000, count, &rate));
    fresh_rates.push_back(rate);
    if (space->counters().evicted != 0) give_up("there was no room for fresh puts");
    put_blocks(*space, 10'000, 10'000 + memory.bytes().size() / large, large);  // until it is full
    const uint64_t evicted = space->counters().evicted;
    steady.push_back(put_round(*space, beside, 20'000, count, &rate));
    steady_rates.push_back(rate);
    if (space->counters().evicted == evicted) give_up("steady puts evicted nothing");
  }
  figures.detail("kv_put_gib_per_s", median(steady_rates));
  figures.detail("kv_put_gib_per_s_fresh", median(fresh_rates));
  figures.at_least("kv_put_gib_per_s_over_memcpy", median(steady), 0.85);
  figures.at_least("kv_put_gib_per_s_over_memcpy_fresh", median(fresh), 0.85);
}

}  // namespace

// Views say where the bytes are, which memcpy copies in its turn.
int copy_role(const Worker& me) {
  const auto space = attach(me.memory, only_reads);
  const std::vector<std::string> keys = keys_of(0, me.job().blocks);
  std::vector<KvView> views;
  for (const std::string& key : keys) views.push_back(must(space->view({}, key), "view"));
  std::vector<std::byte> into(large);
  for (const KvView& view : views) std::memcpy(into.data(), view.bytes().data(), large);
  const uint64_t shift = me.index * keys.size() / 2;  // so that two readers do not share what they bring
  for (int round = 0; round < me.job().rounds; ++round) {
    me.meet();
    me.tally().first[round] = rate_for(me.job().round_ns, [&](uint64_t at) {
      (void)must(space->get({}, {.key = keys[(at + shift) % keys.size()], .into = into}), "get");
    });
    me.meet();
    me.tally().second[round] = rate_for(me.job().round_ns, [&](uint64_t at) {
      std::memcpy(into.data(), views[(at + shift) % keys.size()].bytes().data(), large);
      used(into.data());
    });
  }
  return 0;
}

void measure_copies(const Sizes& sizes, Figures& figures) {
  {
    const uint64_t blocks = sizes.smoke ? 16 : 192;
    const MemoryFile memory(space_bytes_for(blocks, large, 2), true);
    must(KvSpace::format(memory.bytes(), {.parts = 2, .block_bytes = large}), "format");
    put_blocks(*attach(memory, puts), 0, blocks, large);
    const double one = measure_gets(memory, sizes, blocks, 1, figures);
    const double two = measure_gets(memory, sizes, blocks, 2, figures);
    figures.at_least("kv_get_gib_per_s_over_memcpy", std::min(one, two), 0.9);
  }
  measure_puts(sizes, figures);
}

}  // namespace terrace::bench::kv
