// SPDX-License-Identifier: Apache-2.0
// What it costs to look into a space of several members: the time with four over that with one, of as many blocks in all.
#include <map>

#include "bench/kv_space/parts.h"
#include "terrace/kv_members.h"

namespace terrace::bench::kv {
namespace {

constexpr uint64_t member_block_bytes = 4 * kib;

// Memory files by the names "m0", "m1", ..., the first of which is formatted.
class MemberFiles {
 public:
  MemberFiles(uint64_t blocks, size_t members) {
    for (size_t index = 0; index < members; ++index)
      files_.emplace(name(index), MemoryFile(space_bytes_for(blocks / members, member_block_bytes, 2)));
    must(KvSpace::format(files_.at(name(0)).bytes(), {.parts = 2, .block_bytes = member_block_bytes}),
         "format");
    const auto space = join();
    for (size_t index = 1; index < members; ++index) must(space->grow(name(index)), "grow");
    put_blocks(*space, 0, blocks, member_block_bytes);
  }

  const MemoryFile& first() const { return files_.at(name(0)); }
  std::unique_ptr<JoinedKvSpace> join() {
    const auto open = [this](const std::string& where) -> Result<KvMemberMemory> {
      const MemoryFile& file = files_.at(where);
      return KvMemberMemory{.bytes = file.bytes(), .ownership = must(ownership_by_locks(file.fd()), "locks")};
    };
    return must(JoinedKvSpace::attach(must(open(name(0)), "open"), name(0), {.open = open}), "join");
  }

 private:
  static std::string name(size_t index) { return "m" + std::to_string(index); }
  std::map<std::string, MemoryFile> files_;
};

struct MemberTimes {
  std::vector<double> exists_us, hit_us, half_us;
};

// Of 512 keys, all of which are there, and half of which are; and of a view.
void measure_members_of(KvSpace& space, uint64_t blocks, int calls, uint64_t seed, MemberTimes& times) {
  constexpr size_t at_once = 512;
  Prng prng(seed);
  std::vector<double> all, half, hits;
  for (int call = 0; call < calls; ++call) {
    for (const bool some_are_missing : {false, true}) {
      std::vector<std::string> keys;
      for (size_t at = 0; at < at_once; ++at)
        keys.push_back(key_of(prng.below(blocks) + (some_are_missing && at % 2 != 0 ? blocks : 0)));
      const std::vector<std::string_view> asked(keys.begin(), keys.end());
      bool found[at_once];
      const uint64_t begin = monotonic_ns();
      must(space.exists({}, asked, found), "exists");
      (some_are_missing ? half : all).push_back(static_cast<double>(monotonic_ns() - begin) / 1000);
      for (size_t at = 0; at < at_once; ++at)
        if (found[at] == (some_are_missing && at % 2 != 0)) give_up("exists() is wrong of " + keys[at]);
    }
    const std::string key = key_of(prng.below(blocks));
    const uint64_t begin = monotonic_ns();
    for (int again = 0; again < 8; ++again) {
      const KvView view = must(space.view({}, key), "view");
      used(view.bytes().data());
    }
    hits.push_back(static_cast<double>(monotonic_ns() - begin) / 8000);
  }
  times.exists_us.push_back(median(all));
  times.half_us.push_back(median(half));
  times.hit_us.push_back(median(hits));
}

}  // namespace

void measure_members(const Sizes& sizes, Figures& figures) {
  const uint64_t blocks = sizes.many_blocks / 5;
  MemberFiles one(blocks, 1), four(blocks, 4);
  const auto alone = attach(one.first(), puts);
  const auto joined_one = one.join(), joined_four = four.join();
  MemberTimes of_alone, of_one, of_four;
  const int calls = sizes.smoke ? 20 : 400;
  for (int round = 0; round < sizes.rounds; ++round) {  // in turns: what else the machine does hits all of them
    const auto seed = static_cast<uint64_t>(round) + 1;
    measure_members_of(*alone, blocks, calls, seed, of_alone);
    measure_members_of(*joined_one, blocks, calls, seed, of_one);
    measure_members_of(*joined_four, blocks, calls, seed, of_four);
  }
  const auto over = [](const std::vector<double>& times, const std::vector<double>& base) {
    return median(times) / median(base);
  };
  figures.detail("kv_members_1_exists_us", median(of_one.exists_us));
  figures.detail("kv_members_1_hit_us", median(of_one.hit_us));
  figures.at_most("kv_members_1_exists_over_alone", over(of_one.exists_us, of_alone.exists_us), 1.05);
  figures.at_most("kv_members_1_hit_over_alone", over(of_one.hit_us, of_alone.hit_us), 1.1);
  figures.at_most("kv_members_4_exists_over_1", over(of_four.exists_us, of_one.exists_us), 2);
  figures.at_most("kv_members_4_exists_half_over_1", over(of_four.half_us, of_one.half_us), 3);
  figures.at_most("kv_members_4_hit_over_1", over(of_four.hit_us, of_one.hit_us), 1.5);
}

}  // namespace terrace::bench::kv
