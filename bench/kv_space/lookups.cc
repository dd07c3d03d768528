// SPDX-License-Identifier: Apache-2.0
// How long it takes to ask for many keys, and to read a block in place.
#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

constexpr uint32_t writers = 4;
constexpr uint64_t small = 4 * kib, medium = 64 * kib;

// Half of the 512 keys are of blocks that are there, in no order.
double exists_us(KvSpace& space, uint64_t blocks, int calls) {
  constexpr size_t at_once = 512;
  Prng prng(7);
  std::vector<double> times;
  for (int call = 0; call < calls; ++call) {
    std::vector<std::string> keys;
    for (size_t at = 0; at < at_once; ++at)
      keys.push_back(key_of(prng.below(blocks) + (at % 2 == 0 ? 0 : blocks)));
    std::vector<std::string_view> asked(keys.begin(), keys.end());
    bool found[at_once];
    const uint64_t begin = monotonic_ns();
    must(space.exists({}, asked, found), "exists");
    times.push_back(static_cast<double>(monotonic_ns() - begin) / 1000);
    for (size_t at = 0; at < at_once; ++at)
      if (found[at] != (at % 2 == 0)) give_up("exists() is wrong of " + keys[at]);
  }
  return median(times);
}

void measure_exists(const Sizes& sizes, Figures& figures) {
  const MemoryFile memory(space_bytes_for(sizes.many_blocks, small, writers));
  must(KvSpace::format(memory.bytes(), {.parts = writers, .block_bytes = small}), "format");
  Workers workers(memory, {.workers = writers, .blocks = sizes.many_blocks, .block_bytes = small});
  for (uint32_t index = 0; index < writers; ++index) workers.start(index, "fill");
  wait_until(workers.control().ready, writers);
  const auto space = attach(memory, only_reads);
  std::vector<double> rounds;
  for (int round = 0; round < sizes.rounds; ++round)
    rounds.push_back(exists_us(*space, sizes.many_blocks, sizes.smoke ? 20 : 1000));
  figures.detail("kv_exists_blocks", static_cast<double>(must(space->stat(), "stat").blocks));
  figures.at_most("kv_exists_512_us_p50", median(rounds), 100);
  workers.end_all();
}

// The same where the processor finds pages sooner: four holders of one process, as no file has large pages everywhere.
void measure_exists_in_large_pages(const Sizes& sizes, Figures& figures) {
  const MemoryFile memory = MemoryFile::in_large_pages(space_bytes_for(sizes.many_blocks, small, writers));
  must(KvSpace::format(memory.bytes(), {.parts = writers, .block_bytes = small}), "format");
  std::vector<std::unique_ptr<KvSpace>> holders;
  for (uint64_t index = 0; index < writers; ++index) {
    holders.push_back(attach(memory, puts));
    put_blocks(*holders.back(), sizes.many_blocks * index / writers, sizes.many_blocks * (index + 1) / writers,
               small);
  }
  std::vector<double> rounds;
  for (int round = 0; round < sizes.rounds; ++round)
    rounds.push_back(exists_us(*attach(memory, only_reads), sizes.many_blocks, sizes.smoke ? 20 : 1000));
  figures.detail("kv_exists_512_us_p50_large_pages", median(rounds));
}

void measure_hits(const Sizes& sizes, Figures& figures) {
  const uint64_t blocks = sizes.smoke ? 256 : 8192;
  const MemoryFile memory(space_bytes_for(blocks, medium, 2), true);
  must(KvSpace::format(memory.bytes(), {.parts = 2, .block_bytes = medium}), "format");
  put_blocks(*attach(memory, puts), 0, blocks, medium);
  const auto space = attach(memory, only_reads);
  const std::vector<std::string> keys = keys_of(0, blocks);
  std::vector<double> p99s, p50s;
  Prng prng(11);
  for (int round = 0; round < sizes.rounds; ++round) {
    Histogram histogram;
    for (int at = 0; at < (sizes.smoke ? 1000 : 100'000); ++at) {
      const std::string& key = keys[prng.below(blocks)];
      const uint64_t begin = monotonic_ns();
      {
        const KvView view = must(space->view({}, key), "view");
        used(reinterpret_cast<const void*>(static_cast<uintptr_t>(view.bytes().front())));
      }
      histogram.add(monotonic_ns() - begin);
    }
    p99s.push_back(percentile_us(histogram, 0.99));
    p50s.push_back(percentile_us(histogram, 0.5));
  }
  figures.detail("kv_hit_us_p50", median(p50s));
  figures.at_most("kv_hit_us_p99", median(p99s), 5);
}

}  // namespace

// Puts its share of the blocks, and then is there to be asked.
int fill_role(const Worker& me) {
  const auto space = attach(me.memory, puts);
  const uint64_t blocks = me.job().blocks, workers = me.job().workers;
  put_blocks(*space, blocks * me.index / workers, blocks * (me.index + 1) / workers, me.job().block_bytes);
  ++me.control.ready;
  while (me.control.stop.load() == 0) sleep_ns(10 * ns_per_ms);
  return 0;
}

void measure_lookups(const Sizes& sizes, Figures& figures) {
  measure_exists(sizes, figures);
  measure_exists_in_large_pages(sizes, figures);
  measure_hits(sizes, figures);
}

}  // namespace terrace::bench::kv
