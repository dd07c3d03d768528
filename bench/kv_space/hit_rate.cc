// SPDX-License-Identifier: Apache-2.0
// Which part of a trace's blocks a space finds that has room for some of them, alone and with a spill folder for the rest.
// One process serves the requests, faster than they came: the cached prefix of each is read and looked at, the rest is put.
// So the spill is waited for now and then: a drive that keeps up with the trace's own time drops nothing.
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "bench/kv_replay/trace.h"
#include "bench/kv_space/parts.h"
#include "bench/kv_space/spill_place.h"
#include "terrace/kv_spill.h"

namespace terrace::bench::kv {
namespace {

constexpr uint64_t each = 4 * kib;
constexpr uint64_t drain_every = 32;  // requests: their blocks are a small part of what may wait

struct Served {
  uint64_t uses = 0, hits = 0;
  KvCounters counters = {};
  double rate() const { return static_cast<double>(hits) / static_cast<double>(uses); }
};

// $TERRACE_TRACE, else the one beside the source tree, else one that is made.
Trace trace_for(const Sizes& sizes) {
  const char* const named = std::getenv("TERRACE_TRACE");
  const std::string found =
      named != nullptr ? named : TERRACE_SOURCE_FOLDER "/../shared/data/mooncake_conversation_trace.jsonl";
  if (sizes.smoke || !std::filesystem::exists(found)) return make_trace(sizes.smoke ? 300 : 12'000, 1);
  return must(read_trace(found, 0), "trace");
}

// The first words of a block say which one it is.
void look_at(std::span<const std::byte> block, uint32_t number) {
  uint64_t word = 0;
  std::memcpy(&word, block.data(), sizeof word);
  if (word != number) give_up("a block is another one");
}

Served serve(const Trace& trace, uint64_t blocks, const std::string& spill_folder) {
  const MemoryFile memory(space_bytes_for(blocks, each, 1));
  must(KvSpace::format(memory.bytes(), {.parts = 1, .seats = 1, .block_bytes = each, .max_block_bytes = each}),
       "format");
  KvAttachOptions options;
  options.ownership = must(ownership_by_locks(memory.fd()), "ownership");
  if (!spill_folder.empty())
    options.spill = must(KvSpill::open(spill_folder, {.bytes = 4 * each * trace.distinct_blocks + (256 << 20),
                                                      .block_bytes = each}),
                         "opening a spill folder");
  const auto space = must(KvSpace::attach(memory.bytes(), options), "attach");
  std::vector<std::byte> block(each);
  std::vector<std::string> keys;
  Served served;
  uint64_t requests = 0;
  for (const TraceRequest& request : trace.requests) {
    const auto numbers = std::span(trace.blocks).subspan(request.first, request.count);
    keys.clear();
    for (const uint32_t number : numbers) keys.push_back(key_of(number));
    const std::vector<std::string_view> asked(keys.begin(), keys.end());
    uint64_t cached = must(space->prefix({}, asked), "prefix");
    for (uint64_t at = 0; at < cached; ++at) {
      const Result<uint64_t> got = space->get({}, {.key = keys[at], .into = block});
      if (got.ok())
        look_at(block, numbers[at]);
      else
        cached = at;  // evicted since
    }
    for (uint64_t at = cached; at < numbers.size(); ++at) {
      const uint64_t word = numbers[at];
      std::memcpy(block.data(), &word, sizeof word);
      KvPutOptions how;
      if (at > 0) how.parent = keys[at - 1];
      (void)space->put({}, {.key = keys[at], .bytes = block, .options = how});
    }
    if (options.spill != nullptr && ++requests % drain_every == 0)
      must(options.spill->drain(), "writing the spill");
    served.uses += numbers.size();
    served.hits += cached;
  }
  served.counters = space->counters();
  return served;
}

double bound_of(const Trace& trace) {
  std::vector<bool> seen(trace.block_count);
  uint64_t uses = 0, found = 0;
  for (const TraceRequest& request : trace.requests) {
    const auto numbers = std::span(trace.blocks).subspan(request.first, request.count);
    for (size_t at = 0; at < numbers.size() && seen[numbers[at]]; ++at) ++found;
    for (const uint32_t number : numbers) seen[number] = true;
    uses += numbers.size();
  }
  return static_cast<double>(found) / static_cast<double>(uses);
}

}  // namespace

void measure_hit_rate(const Sizes& sizes, Figures& figures) {
  const Trace trace = trace_for(sizes);
  std::printf("  trace: %s\n", trace.name.c_str());
  figures.detail("kv_hit_rate_bound", bound_of(trace));
  for (const uint64_t percent : {1, 5, 10}) {
    const std::string key = "_" + std::to_string(percent) + "pct";
    const uint64_t blocks = std::max<uint64_t>(trace.distinct_blocks * percent / 100, 64);
    const SpillPlace place;
    const Served alone = serve(trace, blocks, ""), spilled = serve(trace, blocks, place.name());
    figures.detail("kv_hit_rate" + key, alone.rate());
    figures.detail("kv_hit_rate_with_spill" + key, spilled.rate());
    figures.detail("kv_hit_rate_with_spill_hits" + key, static_cast<double>(spilled.counters.spill_hits));
    figures.detail("kv_hit_rate_with_spill_dropped" + key, static_cast<double>(spilled.counters.spill_dropped));
  }
}

}  // namespace terrace::bench::kv
