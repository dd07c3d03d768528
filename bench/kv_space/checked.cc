// SPDX-License-Identifier: Apache-2.0
// Four processes get, view, put and erase blocks in a space that is too small for them, while a random one is killed
// every 100 ms. What a block has to hold follows from its key, so each answer can be checked in full.
#include <cstring>

#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

constexpr uint32_t workers_count = 4;
constexpr uint64_t longest = 64 * kib;
constexpr uint64_t keys_count = 8000;
constexpr uint64_t space_bytes = 96 * mib;  // for about a third of the blocks
constexpr uint64_t erase_wait_ns = 2 * ns_per_ms;

uint64_t first_word(uint64_t number) {
  return Prng(number).next();
}
// Not always whole lines.
uint64_t length_of(uint64_t number) {
  return 512 + first_word(number) % (longest - 512) / 8 * 8;
}
void make_block(uint64_t number, std::span<std::byte> to) {
  uint64_t word = first_word(number);
  for (size_t at = 0; at + 8 <= to.size(); at += 8, word += 0x9e3779b97f4a7c15ull)
    std::memcpy(to.data() + at, &word, 8);
}
// Empty: it is whole.
std::string fault_of(uint64_t number, std::span<const std::byte> bytes) {
  if (bytes.size() != length_of(number))
    return std::to_string(bytes.size()) + " bytes, not " + std::to_string(length_of(number));
  uint64_t word = first_word(number);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8, word += 0x9e3779b97f4a7c15ull)
    if (std::memcmp(bytes.data() + at, &word, 8) != 0)
      return "wrong from byte " + std::to_string(at) + " of " + std::to_string(bytes.size());
  return {};
}

class Checker {
 public:
  Checker(const Worker& me, KvSpace& space)
      : me_(me), space_(space), prng_(monotonic_ns() + me.index), bytes_(longest) {}

  void step() {
    const uint64_t number = prng_.below(keys_count), kind = prng_.below(100);
    if (kind < 45) {
      if (!get(number)) put(number);
    } else if (kind < 65) {
      view(number);
    } else if (kind < 90) {
      put(number);
    } else {
      erase(number);
    }
    ++me_.tally().calls;
  }

 private:
  bool get(uint64_t number) {
    const Result<uint64_t> got = space_.get({}, {.key = key_of(number), .into = bytes_});
    if (got.ok())
      judge(number, std::span(bytes_).first(*got), "copied");
    else
      judge(number, got.error(), "get");
    return got.ok();
  }
  // Looked at again after a call that may evict.
  void view(uint64_t number) {
    const Result<KvView> view = space_.view({}, key_of(number));
    if (!view.ok()) return judge(number, view.error(), "view");
    judge(number, view->bytes(), "in place");
    put(prng_.below(keys_count));
    judge(number, view->bytes(), "in place, later");
  }
  void put(uint64_t number) {
    const std::span<std::byte> bytes = std::span(bytes_).first(length_of(number));
    make_block(number, bytes);
    if (me_.job().plant && prng_.chance(1, 500)) bytes.back() ^= std::byte{1};
    if (prng_.chance(1, 2)) {
      const Status put =
          space_.put({}, {.key = key_of(number), .bytes = bytes, .options = {.wait_ns = ns_per_ms}});
      if (!put.ok()) judge(number, put.error(), "put");
      return;
    }
    Result<KvWrite> write = space_.begin_put({}, key_of(number), bytes.size(), {.wait_ns = ns_per_ms});
    if (!write.ok()) return judge(number, write.error(), "begin_put");
    std::memcpy(write->bytes().data(), bytes.data(), bytes.size());
    if (prng_.chance(1, 10)) return;  // thought better of it
    const Status published = write->publish();
    if (!published.ok()) judge(number, published.error(), "publish");
  }
  void erase(uint64_t number) {
    const Status erased = space_.erase({}, key_of(number), erase_wait_ns);
    if (!erased.ok()) judge(number, erased.error(), "erase");
  }

  void judge(uint64_t number, std::span<const std::byte> bytes, const char* how) {
    ++me_.tally().checked;
    const std::string fault = fault_of(number, bytes);
    if (!fault.empty()) wrong(number, how, fault);
  }
  void judge(uint64_t number, const Error& error, const char* how) {
    using enum ErrorCode;
    const ErrorCode code = error.code;
    if (code == capacity_exhausted || code == busy) ++me_.tally().refused;
    if (code == not_found || code == already_exists || code == capacity_exhausted || code == busy) return;
    wrong(number, how, error.to_string());
  }
  void wrong(uint64_t number, const char* how, const std::string& what) {
    Tally& tally = me_.tally();
    if (tally.wrong++ == 0)
      std::snprintf(tally.why, sizeof tally.why, "%s, %s: %s", key_of(number).c_str(), how, what.c_str());
  }

  const Worker& me_;
  KvSpace& space_;
  Prng prng_;
  std::vector<std::byte> bytes_;
};

// Kills and replaces until the time is over. Returns how many were killed; `why`: one ended by itself, or stood still.
uint64_t kill_for(Workers& workers, uint64_t seconds, std::string* why) {
  constexpr uint64_t between_kills_ns = 100 * ns_per_ms, stuck_ns = 20 * ns_per_s;
  Prng prng(3);
  uint64_t kills = 0;
  std::array<std::pair<uint64_t, uint64_t>, workers_count> moved{};  // calls, and when that changed
  const uint64_t begin = monotonic_ns();
  for (auto& [calls, at_ns] : moved) at_ns = begin;
  while (monotonic_ns() - begin < seconds * ns_per_s) {
    sleep_ns(between_kills_ns);
    for (uint32_t index = 0; index < workers_count; ++index) {
      const uint64_t calls = workers.control().workers[index].calls, now = monotonic_ns();
      if (calls != moved[index].first) moved[index] = {calls, now};
      const std::string ended = workers.ended(index);
      if (!ended.empty()) *why = "a worker ended by itself, " + ended;
      if (now - moved[index].second > stuck_ns) *why = "a worker stood still";
      if (!why->empty()) return kills;
    }
    const auto victim = static_cast<uint32_t>(prng.below(workers_count));
    workers.kill(victim);
    ++kills;
    sleep_ns(prng.below(30) * ns_per_ms);  // meanwhile others may take what it left
    workers.start(victim, "check");
    moved[victim].second = monotonic_ns();
  }
  return kills;
}

// Returns how many of what is left are wrong.
uint64_t check_what_is_left(const MemoryFile& memory, uint64_t* checked, std::string* why) {
  const auto space = attach(memory, only_reads);
  std::vector<std::byte> bytes(longest);
  uint64_t wrong = 0;
  for (uint64_t number = 0; number < keys_count; ++number) {
    const Result<uint64_t> got = space->get({}, {.key = key_of(number), .into = bytes});
    if (!got.ok() && got.error().code == ErrorCode::not_found) continue;
    ++*checked;
    const std::string fault =
        got.ok() ? fault_of(number, std::span(bytes).first(*got)) : got.error().to_string();
    if (fault.empty()) continue;
    ++wrong;
    if (why->empty()) *why = key_of(number) + ", at the end: " + fault;
  }
  return wrong;
}

}  // namespace

int check_role(const Worker& me) {
  const auto space = attach(me.memory, puts);
  Checker checker(me, *space);
  while (me.control.stop.load() == 0) checker.step();
  return 0;
}

bool check_blocks(const Sizes& sizes, Figures& figures) {
  const MemoryFile memory(space_bytes);
  must(KvSpace::format(memory.bytes(), {.parts = 6, .block_bytes = 16 * kib, .max_block_bytes = mib}),
       "format");
  Workers workers(memory, {.workers = workers_count, .plant = sizes.plant});
  for (uint32_t index = 0; index < workers_count; ++index) workers.start(index, "check");
  std::string why;
  const uint64_t kills = kill_for(workers, sizes.seconds, &why);
  uint64_t wrong = 0, checked = 0, calls = 0, refused = 0;
  if (why.empty())
    workers.end_all();
  else
    ++wrong;
  for (const Tally& tally : workers.control().workers) {
    checked += tally.checked;
    wrong += tally.wrong;
    calls += tally.calls;
    refused += tally.refused;
    if (why.empty()) why = tally.why;
  }
  wrong += check_what_is_left(memory, &checked, &why);
  figures.detail("kv_calls", static_cast<double>(calls));
  figures.detail("kv_calls_refused", static_cast<double>(refused));
  figures.detail("kv_checked_reads", static_cast<double>(checked));
  figures.detail("kv_kills", static_cast<double>(kills));
  figures.at_most("kv_wrong_blocks", static_cast<double>(wrong), 0);
  if (!why.empty()) std::fprintf(stderr, "bench_kv_space: %s\n", why.c_str());
  return wrong == 0;
}

}  // namespace terrace::bench::kv
