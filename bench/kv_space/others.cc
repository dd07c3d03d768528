// SPDX-License-Identifier: Apache-2.0
// Gets and sets of blocks of 64 KiB by one client: a KV space, and what else keeps blocks in memory.
#include <algorithm>
#include <cstring>
#include <map>

#include "bench/kv_space/parts.h"
#include "bench/kv_space/stores.h"

namespace terrace::bench::kv {
namespace {

// A block never changes there, so a set of what is there is an erase and a put.
class Space final : public Store {
 public:
  explicit Space(const MemoryFile& memory) : space_(attach(memory, puts)) {}
  void get(const std::string& key, std::span<std::byte> into) override {
    (void)must(space_->get({}, {.key = key, .into = into}), "get");
  }
  void set(const std::string& key, std::span<const std::byte> bytes) override {
    const Status erased = space_->erase({}, key);
    if (!erased.ok() && erased.error().code != ErrorCode::not_found) must(erased, "erase");
    must(space_->put({}, {.key = key, .bytes = bytes}), "put");
  }
  KvSpace& space() { return *space_; }

 private:
  std::unique_ptr<KvSpace> space_;
};

struct Times {
  std::vector<double> gets, sets;  // p50 of each round, in us
};

template <typename One>
double p50_us(int calls, One one) {
  Histogram histogram;
  for (int call = 0; call < calls; ++call) {
    const uint64_t begin = monotonic_ns();
    one();
    histogram.add(monotonic_ns() - begin);
  }
  return percentile_us(histogram, 0.5);
}

void one_round(Store& store, const std::vector<std::string>& keys, int calls, Times* times) {
  std::vector<std::byte> bytes(stored_bytes);
  Prng prng(9);
  times->gets.push_back(p50_us(calls, [&] {
    store.get(keys[prng.below(keys.size())], bytes);
    used(bytes.data());
  }));
  times->sets.push_back(p50_us(calls, [&] { store.set(keys[prng.below(keys.size())], bytes); }));
}

// Blocks that are new, when there is room for none: each evicts another.
double put_us(KvSpace& space, uint64_t room_for, int calls) {
  const std::vector<std::byte> bytes(stored_bytes);
  constexpr uint64_t unused = 1'000'000;
  put_blocks(space, unused, unused + room_for, stored_bytes);
  const std::vector<std::string> keys =
      keys_of(unused + room_for, unused + room_for + static_cast<uint64_t>(calls));
  const uint64_t evicted = space.counters().evicted;
  size_t next = 0;
  const double us = p50_us(calls, [&] { must(space.put({}, {.key = keys[next++], .bytes = bytes}), "put"); });
  if (space.counters().evicted == evicted) give_up("puts evicted nothing");
  return us;
}

}  // namespace

void measure_others(const Sizes& sizes, Figures& figures) {
  const uint64_t count = sizes.smoke ? 128 : 2048;
  const int calls = sizes.smoke ? 200 : 10'000;
  const std::vector<std::string> keys = keys_of(0, count);
  const MemoryFile memory(space_bytes_for(count, stored_bytes, 2), true);
  must(KvSpace::format(memory.bytes(), {.parts = 2, .block_bytes = stored_bytes}), "format");
  const Folder folder;
  std::map<std::string, std::unique_ptr<Store>> stores;
  auto own = std::make_unique<Space>(memory);
  KvSpace& space = own->space();
  stores["kv"] = std::move(own);
  stores["files"] = files_store(folder.path());
  stores["redis"] = redis_store(folder.path());
  stores["memcached"] = memcached_store(folder.path());
  std::erase_if(stores, [](const auto& store) { return store.second == nullptr; });
  std::map<std::string, Times> times;
  const std::vector<std::byte> bytes(stored_bytes);
  for (const auto& [name, store] : stores)
    for (const std::string& key : keys) store->set(key, bytes);
  for (int round = 0; round < sizes.rounds; ++round)
    for (const auto& [name, store] : stores) one_round(*store, keys, calls, &times[name]);
  const double put = put_us(space, memory.bytes().size() / stored_bytes, calls);
  bool ahead = true;
  const double get = median(times["kv"].gets), set = median(times["kv"].sets);
  for (const auto& [name, of] : times) {
    figures.detail(name + "_get_us_p50", median(of.gets));
    figures.detail(name + "_set_us_p50", median(of.sets));
    if (name != "kv") ahead = ahead && get < median(of.gets) && std::max(set, put) < median(of.sets);
  }
  figures.detail("kv_put_us_p50", put);
  figures.say("kv_ahead_of_each", ahead);
}

}  // namespace terrace::bench::kv
