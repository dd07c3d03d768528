// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/generators.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "core/base/prng.h"

namespace terrace::tiering {
namespace {

constexpr uint64_t hour_ns = 3'600'000'000'000;

struct Size {
  uint64_t objects;
  uint64_t uses;
  uint64_t step_ns() const { return hour_ns / uses; }
};

double random_unit(Prng& prng) {
  return (static_cast<double>(prng.below(uint64_t{1} << 53)) + 0.5) / static_cast<double>(uint64_t{1} << 53);
}

// Ranks by Zipf's law, most used first.
class Zipf {
 public:
  Zipf(uint64_t ranks, double exponent) : sums_(ranks) {
    double sum = 0;
    for (uint64_t rank = 0; rank < ranks; ++rank)
      sums_[rank] = sum += std::pow(static_cast<double>(rank + 1), -exponent);
  }
  uint64_t draw(Prng& prng) const {
    const auto at = std::lower_bound(sums_.begin(), sums_.end(), random_unit(prng) * sums_.back());
    return static_cast<uint64_t>(at - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

// One use after the other, evenly in time: `next(position)` says of what.
template <typename Next>
Trace evenly(std::string_view name, const Size& size, Next next) {
  TraceBuilder builder{std::string(name)};
  for (uint64_t at = 0; at < size.uses; ++at) {
    builder.begin_request(at * size.step_ns());
    builder.use(next(at));
  }
  return builder.finish();
}

Trace uniform(const Size& size, Prng& prng) {
  return evenly("uniform", size, [&](uint64_t) { return prng.below(size.objects); });
}

Trace zipf(const Size& size, Prng& prng) {
  const Zipf law(size.objects, 0.9);
  return evenly("zipf", size, [&](uint64_t) { return law.draw(prng); });
}

// Half of the uses go round a loop of a twelfth of the objects, the other half are a scan that never comes back
// soon.
Trace scan_loop(const Size& size, Prng&) {
  const uint64_t loop = std::max<uint64_t>(size.objects / 12, 1);
  const uint64_t scanned = size.objects - loop;
  return evenly("scan-loop", size,
                [=](uint64_t at) { return at % 2 == 0 ? (at / 2) % loop : loop + (at / 2) % scanned; });
}

// Six phases, alternately of zipf with its own ranks and of a loop somewhat larger than a tenth of the objects.
Trace phases(const Size& size, Prng& prng) {
  const Zipf law(size.objects, 1.0);
  const uint64_t length = std::max<uint64_t>(size.uses / 6, 1), loop = std::max<uint64_t>(size.objects / 8, 1);
  return evenly("phases", size, [&](uint64_t at) {
    const uint64_t phase = at / length;
    if (phase % 2 == 1) return (phase * 7919 + at % loop) % size.objects;
    return (law.draw(prng) * 31 + phase * 104'729) % size.objects;
  });
}

// A twentieth of the objects get nine in ten uses; this window moves on by a tenth of itself every half minute.
Trace shift(const Size& size, Prng& prng) {
  const uint64_t window = std::max<uint64_t>(size.objects / 20, 1);
  const uint64_t every = std::max<uint64_t>(30'000'000'000 / size.step_ns(), 1);
  return evenly("shift", size, [&](uint64_t at) {
    const uint64_t begin = at / every * std::max<uint64_t>(window / 10, 1);
    return prng.chance(9, 10) ? (begin + prng.below(window)) % size.objects : prng.below(size.objects);
  });
}

// Conversations: each turn uses all blocks of its conversation, in order behind those of one of a few system
// prompts, and adds some. Half of all turns are followed by another, after a time of thinking.
Trace conversation(const Size& size, Prng& prng) {
  struct Turn {
    uint64_t time_ns;
    uint64_t conversation;
    bool operator>(const Turn& other) const { return time_ns > other.time_ns; }
  };
  struct Talk {
    uint64_t prompt;
    std::vector<uint64_t> blocks;
  };
  const auto exponential = [&](double mean) { return -std::log(random_unit(prng)) * mean; };
  const uint64_t conversations = std::max<uint64_t>(size.objects / 26, 1);
  std::vector<Talk> talks(conversations);
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  uint64_t next_block = 1000;
  for (uint64_t number = 0; number < conversations; ++number) {
    talks[number].prompt = std::min<uint64_t>(static_cast<uint64_t>(exponential(1.0)), 3);
    turns.push({prng.below(hour_ns), number});
  }
  TraceBuilder builder("conversation");
  while (!turns.empty()) {
    const Turn turn = turns.top();
    turns.pop();
    Talk& talk = talks[turn.conversation];
    builder.begin_request(turn.time_ns);
    for (uint64_t block = 0; block <= talk.prompt; ++block) builder.use(talk.prompt * 10 + block);
    for (const uint64_t block : talk.blocks) builder.use(block);
    const auto added = 1 + static_cast<uint64_t>(exponential(talk.blocks.empty() ? 18 : 5));
    for (uint64_t block = 0; block < std::min<uint64_t>(added, 250); ++block) {
      talk.blocks.push_back(next_block++);
      builder.use(talk.blocks.back());
    }
    const auto thinking_ns =
        static_cast<uint64_t>((5 + exponential(20) + exponential(1) * exponential(90)) * 1e9);
    if (prng.chance(1, 2) && turn.time_ns + thinking_ns < hour_ns)
      turns.push({turn.time_ns + thinking_ns, turn.conversation});
  }
  return builder.finish();
}

struct Generator {
  GeneratorEntry entry;
  Trace (*make)(const Size&, Prng&);
};

constexpr Generator table[] = {
    {{"uniform", "every object alike: nothing to gain"}, uniform},
    {{"zipf", "few objects get most uses, always the same"}, zipf},
    {{"scan-loop", "a loop that would fit, among a scan that does not"}, scan_loop},
    {{"phases", "what is used much changes six times, and how"}, phases},
    {{"shift", "a working set that moves on slowly"}, shift},
    {{"conversation", "turns of conversations that read all that was said"}, conversation},
};

}  // namespace

std::vector<GeneratorEntry> generators() {
  std::vector<GeneratorEntry> entries;
  for (const Generator& generator : table) entries.push_back(generator.entry);
  return entries;
}

Result<Trace> generate_trace(std::string_view name, double scale, uint64_t seed) {
  const auto wrong = [](std::string detail) {
    return Error{.code = ErrorCode::invalid_argument, .where = "generate_trace", .detail = std::move(detail)};
  };
  if (!(scale > 0 && scale <= 100)) return wrong("the scale of a made-up trace lies between 0 and 100");
  const Size size{.objects = std::max<uint64_t>(static_cast<uint64_t>(20'000 * scale), 10),
                  .uses = std::max<uint64_t>(static_cast<uint64_t>(200'000 * scale), 100)};
  Prng prng(seed);
  for (const Generator& generator : table)
    if (generator.entry.name == name) return generator.make(size, prng);
  return wrong("no made-up trace '" + std::string(name) + "'");
}

}  // namespace terrace::tiering
