// SPDX-License-Identifier: Apache-2.0
// A spill folder beside plain O_DIRECT reads and writes of the same sizes on the same disk, in turn within one run. A disk that
// others use at the same time, as in a virtual machine, gives ratios that vary: they are medians of five.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "bench/kv_space/parts.h"
#include "bench/kv_space/spill_place.h"
#include "terrace/kv_spill.h"

namespace terrace::bench::kv {
namespace {

constexpr uint64_t large = 1 << 20, small_block = 64 << 10, ahead = 32;

double seconds_of(auto body) {
  const uint64_t begin_ns = monotonic_ns();
  body();
  return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
}

// Whatever the file system: without O_DIRECT both sides go through the page cache.
UniqueFd open_plain(const std::string& name) {
  UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600));
  if (!fd.valid()) fd.reset(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) give_up("cannot make " + name);
  return fd;
}

void put_patiently(KvSpill& spill, const KvNamespace& names, const std::string& key,
                   std::span<const std::byte> bytes) {
  for (int attempt = 0; attempt < 100'000; ++attempt) {
    if (spill.put(names, {.key = key, .bytes = bytes}).ok()) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  give_up("a block could not be put into the spill");
}

}  // namespace

void measure_spill(const Sizes& sizes, Figures& figures) {
  const SpillPlace place;
  const uint64_t blocks = sizes.smoke ? 32 : 512, total = blocks * large;
  const auto spill =
      must(KvSpill::open(place.name(), {.bytes = 12 * total + (256 << 20), .block_bytes = small_block}),
           "opening a spill folder");
  const KvNamespace names;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, large));
  if (memory == nullptr) give_up("no memory");
  for (uint64_t at = 0; at < large; ++at) memory[at] = static_cast<std::byte>(at * 2654435761u >> 13);
  const std::span<std::byte> block(memory, large);
  const UniqueFd plain = open_plain(place.plain());
  const double gib = static_cast<double>(total) / (1ull << 30);
  std::vector<double> writes, reads, plain_writes, plain_reads;
  for (uint64_t round = 0; round < 5; ++round) {
    (void)!::ftruncate(plain.get(), 0);
    plain_writes.push_back(gib / seconds_of([&] {
                             for (uint64_t at = 0; at < total; at += large)
                               if (::pwrite(plain.get(), memory, large, static_cast<off_t>(at)) != large)
                                 give_up("a plain write failed");
                           }));
    const auto keys = keys_of(round * blocks, (round + 1) * blocks);
    writes.push_back(gib / seconds_of([&] {
                       for (const std::string& key : keys) put_patiently(*spill, names, key, block);
                       must(spill->drain(), "writing the spill");
                     }));
    plain_reads.push_back(gib / seconds_of([&] {
                            for (uint64_t at = 0; at < total; at += large)
                              if (::pread(plain.get(), memory, large, static_cast<off_t>(at)) != large)
                                give_up("a plain read failed");
                          }));
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    reads.push_back(gib / seconds_of([&] {
                      for (size_t at = 0; at < views.size(); ++at) {
                        if (at % ahead == 0)
                          (void)spill->prefetch(
                              names, std::span(views).subspan(at, std::min(2 * ahead, views.size() - at)));
                        if (must(spill->get(names, {.key = views[at], .into = block}), "reading the spill") !=
                            large)
                          give_up("a block of another length");
                      }
                    }));
  }
  figures.detail("kv_spill_write_gib_per_s", median(writes));
  figures.detail("kv_spill_read_ahead_gib_per_s", median(reads));
  figures.at_least("kv_spill_write_over_plain", median(writes) / median(plain_writes), 0.9);
  figures.at_least("kv_spill_read_ahead_over_plain", median(reads) / median(plain_reads), 0.9);

  // Single blocks of 64 KiB, in an order that no disk guesses.
  const uint64_t many = sizes.smoke ? 200 : 2000;
  for (const std::string& key : keys_of(1 << 30, (1 << 30) + many))
    put_patiently(*spill, names, key, block.first(small_block));
  must(spill->drain(), "writing the spill");
  std::vector<double> hits_us, plain_us;
  for (uint64_t step = 0; step < many; ++step) {
    const uint64_t at = step * 7919 % many;
    const std::string key = keys_of((1 << 30) + at, (1 << 30) + at + 1)[0];
    hits_us.push_back(1e6 * seconds_of([&] {
                        (void)must(spill->get(names, {.key = key, .into = block}), "reading the spill");
                      }));
    const off_t from = static_cast<off_t>(at * (small_block + 4096) % (total - large) / 4096 * 4096);
    plain_us.push_back(1e6 * seconds_of([&] {
                         if (::pread(plain.get(), memory, small_block + 4096, from) <= 0)
                           give_up("a plain read failed");
                       }));
  }
  figures.detail("kv_spill_hit_64k_us", median(hits_us));
  figures.at_most("kv_spill_hit_over_plain_read", median(hits_us) / median(plain_us), 1.3);
  const auto keys = keys_of(1 << 30, (1 << 30) + many);
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const auto found = std::make_unique<bool[]>(views.size());
  std::vector<double> exists_ns;
  for (int round = 0; round < 5; ++round)
    exists_ns.push_back(1e9 / static_cast<double>(many) * seconds_of([&] {
                          must(spill->exists(names, views, {found.get(), views.size()}), "asking the spill");
                        }));
  figures.detail("kv_spill_exists_ns", median(exists_ns));
  const KvSpillStat stat = must(spill->stat(), "stat of the spill");
  figures.say("kv_spill_direct", stat.direct);
  figures.say("kv_spill_io_uring", stat.io_uring);
  std::free(memory);
}

}  // namespace terrace::bench::kv
