// SPDX-License-Identifier: Apache-2.0
// Gets and views of 64 KiB from local copies, beside those from the space by another holder of the same process, in turn. The space's
// memory is DDR here, as the copies' is: what is measured is what the way through a copy costs and saves, not what CXL
// memory adds to the way without. In a noncoherent space that is the dropping of lines and the checksum.
#include "bench/kv_space/parts.h"
#include "terrace/kv_local.h"

namespace terrace::bench::kv {
namespace {

constexpr uint64_t local_block = 64 * kib;

struct LocalMedians {
  double get = 0, get_local = 0, view = 0, view_local = 0, get_without_copy = 0;
};

std::unique_ptr<KvSpace> attach_local(const MemoryFile& file, std::shared_ptr<KvLocal> local) {
  return must(KvSpace::attach(file.bytes(), {.ownership = must(ownership_by_locks(file.fd()), "locks"),
                                             .puts = only_reads,
                                             .local = std::move(local)}),
              "attach");
}

template <typename Call>
double local_p50_us(const std::vector<std::string>& keys, int calls, Prng& prng, Call call) {
  Histogram histogram;
  for (int at = 0; at < calls; ++at) {
    const std::string& key = keys[prng.below(keys.size())];
    const uint64_t begin = monotonic_ns();
    call(key);
    histogram.add(monotonic_ns() - begin);
  }
  return percentile_us(histogram, 0.5);
}

LocalMedians measure_local_in(const Sizes& sizes, SpaceCoherence coherence) {
  const uint64_t hot = sizes.smoke ? 64 : 2048;
  const int calls = sizes.smoke ? 500 : 20'000;
  const MemoryFile memory(space_bytes_for(2 * hot, local_block, 8), true);
  must(KvSpace::format(memory.bytes(), {.block_bytes = local_block, .coherence = coherence}), "format");
  put_blocks(*attach(memory, puts), 0, 2 * hot, local_block);
  const std::vector<std::string> keys = keys_of(0, hot), others = keys_of(hot, 2 * hot);
  const auto plain = attach_local(memory, nullptr);
  const auto with_copies =
      attach_local(memory, must(KvLocal::open({.bytes = hot * (local_block + 256)}), "local"));
  // No room at all for copies: what it costs where none answers.
  const auto without_room =
      attach_local(memory, must(KvLocal::open({.bytes = kv_local_bytes_min, .max_block_bytes = 1}), "local"));
  std::vector<std::byte> into(local_block);
  const auto get_of = [&](KvSpace& space) {
    return [&](const std::string& key) { (void)must(space.get({}, {.key = key, .into = into}), "get"); };
  };
  const auto view_of = [&](KvSpace& space) {
    return [&](const std::string& key) { used(must(space.view({}, key), "view").bytes().data()); };
  };
  for (int time = 0; time < 3; ++time)
    for (const std::string& key : keys) get_of (*with_copies)(key);
  std::vector<double> gets, locals, views, local_views, without;
  Prng prng(17);
  for (int round = 0; round < sizes.rounds; ++round) {
    gets.push_back(local_p50_us(keys, calls, prng, get_of(*plain)));
    locals.push_back(local_p50_us(keys, calls, prng, get_of(*with_copies)));
    without.push_back(local_p50_us(others, calls, prng, get_of(*without_room)));
    views.push_back(local_p50_us(keys, calls, prng, view_of(*plain)));
    local_views.push_back(local_p50_us(keys, calls, prng, view_of(*with_copies)));
  }
  const KvCounters counted = with_copies->counters();
  if (counted.local_copied != hot || counted.local_evicted != 0) give_up("not every block has a copy");
  return {median(gets), median(locals), median(views), median(local_views), median(without)};
}

}  // namespace

void measure_local(const Sizes& sizes, Figures& figures) {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    const LocalMedians of = measure_local_in(sizes, coherence);
    const std::string end = coherence == SpaceCoherence::coherent ? "" : "_noncoherent";
    figures.detail("kv_local_hit_us_p50" + end, of.get_local);
    figures.detail("kv_local_get_over_get" + end, of.get_local / of.get);
    figures.detail("kv_local_view_us_p50" + end, of.view_local);
    figures.detail("kv_local_view_over_view" + end, of.view_local / of.view);
    figures.detail("kv_local_without_copy_over_get" + end, of.get_without_copy / of.get);
  }
  figures.say("kv_local_slow_memory_emulated", false);
}

}  // namespace terrace::bench::kv
