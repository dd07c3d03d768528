// SPDX-License-Identifier: Apache-2.0
// The caches of rivals.h, each against a model written from its paper with nothing but vectors that are searched from
// one end to the other, on random traces; and against a sequence worked by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/base/prng.h"
#include "tests/unit/tiering_sim/traces.h"

namespace terrace::tiering {
namespace {

// First is oldest.
struct Row : std::vector<uint32_t> {
  bool has(uint32_t object) const { return std::find(begin(), end(), object) != end(); }
  bool drop(uint32_t object) {
    const bool was = has(object);
    erase(std::remove(begin(), end(), object), end());
    return was;
  }
  uint32_t take() {
    const uint32_t object = front();
    erase(begin());
    return object;
  }
};

// One use; true for a hit.
using Model = std::function<bool(uint32_t object)>;

// Jiang and Zhang, section 3: blocks of low and of high inter-reference recency, the stack S, the list Q.
Model naive_lirs(uint64_t room) {
  struct State {
    Row stack, queue;
    std::set<uint32_t> low;
  };
  const uint64_t low_max = room - std::max<uint64_t>(room / 100, 1);
  return [=, state = State{}](uint32_t object) mutable {
    auto& [stack, queue, low] = state;
    const bool hit = low.count(object) != 0 || queue.has(object);
    if (!hit && low.size() + queue.size() == room) queue.take();
    const bool in_stack = stack.drop(object);
    stack.push_back(object);
    if (low.count(object) == 0) {
      if (low.size() < low_max) {
        queue.drop(object);
        low.insert(object);
      } else if (in_stack) {
        queue.drop(object);
        low.insert(object);
        const uint32_t bottom =
            *std::find_if(stack.begin(), stack.end(), [&](uint32_t o) { return low.count(o) != 0; });
        low.erase(bottom);
        queue.push_back(bottom);
      } else {
        queue.drop(object);
        queue.push_back(object);
      }
    }
    while (!stack.empty() && low.count(stack.front()) == 0) stack.take();
    return hit;
  };
}

// Einziger, Friedman and Manes, section 4: a window before a segmented LRU, and who was used more stays.
Model naive_tiny_lfu(uint64_t room) {
  struct State {
    Row window, probation, safe;
    std::map<uint32_t, int> counts;
    uint64_t counted = 0;
  };
  const uint64_t window_max = std::max<uint64_t>(room / 100, 1), main_max = room - window_max;
  return [=, state = State{}](uint32_t object) mutable {
    auto& [window, probation, safe, counts, counted] = state;
    counts[object] = std::min(counts[object] + 1, 15);
    if (++counted == 10 * room) {
      for (auto& [other, count] : counts) count /= 2;
      counted /= 2;
    }
    if (window.drop(object)) {
      window.push_back(object);
      return true;
    }
    if (probation.drop(object) || safe.drop(object)) {
      safe.push_back(object);
      if (safe.size() > main_max * 4 / 5) probation.push_back(safe.take());
      return true;
    }
    window.push_back(object);
    if (window.size() <= window_max) return false;
    const uint32_t candidate = window.take();
    if (probation.size() + safe.size() < main_max) {
      probation.push_back(candidate);
    } else if (main_max > 0) {
      Row& from = probation.empty() ? safe : probation;
      if (counts[candidate] > counts[from.front()]) {
        from.take();
        probation.push_back(candidate);
      }
    }
    return false;
  };
}

// Zhang et al., algorithm 1, with the hand as a position.
Model naive_sieve(uint64_t room) {
  struct State {
    std::vector<std::pair<uint32_t, bool>> queue;
    size_t hand = 0;
  };
  return [=, state = State{}](uint32_t object) mutable {
    auto& [queue, hand] = state;
    for (auto& [there, marked] : queue) {
      if (there != object) continue;
      marked = true;
      return true;
    }
    if (queue.size() == room) {
      while (queue[hand].second) {
        queue[hand].second = false;
        hand = (hand + 1) % queue.size();
      }
      queue.erase(queue.begin() + static_cast<ptrdiff_t>(hand));
      if (hand == queue.size()) hand = 0;
    }
    queue.emplace_back(object, false);
    return false;
  };
}

// Johnson and Shasha, the full version: what leaves A1in is remembered in A1out, and comes back to Am.
Model naive_two_queues(uint64_t room) {
  struct State {
    Row in, out, main;
  };
  const uint64_t in_max = std::max<uint64_t>(room / 4, 1), out_max = std::max<uint64_t>(room / 2, 1);
  return [=, state = State{}](uint32_t object) mutable {
    auto& [in, out, main] = state;
    if (main.drop(object)) {
      main.push_back(object);
      return true;
    }
    if (in.has(object)) return true;
    const bool remembered = out.has(object);
    if (in.size() + main.size() == room) {
      if (in.size() > in_max || main.empty()) {
        out.push_back(in.take());
        if (out.size() > out_max) out.take();
      } else {
        main.take();
      }
    }
    out.drop(object);
    (remembered ? main : in).push_back(object);
    return false;
  };
}

// Lee et al.: the sum over all uses of a half to the power of their age, made anew each time.
Model naive_decayed_lfu(uint64_t room) {
  struct State {
    std::map<uint32_t, std::vector<double>> uses;
    std::set<uint32_t> inside;
    double now = 0;
  };
  return [=, state = State{}](uint32_t object) mutable {
    auto& [uses, inside, now] = state;
    const auto count = [&](uint32_t of) {
      double sum = 0;
      for (const double when : uses[of]) sum += std::exp2((when - now) / (8 * static_cast<double>(room)));
      return sum;
    };
    const bool hit = inside.count(object) != 0;
    if (!hit) {
      if (inside.size() == room)
        inside.erase(*std::min_element(inside.begin(), inside.end(),
                                       [&](uint32_t a, uint32_t b) { return count(a) < count(b); }));
      inside.insert(object);
    }
    uses[object].push_back(now);
    now += 1;
    return hit;
  };
}

// Random uses in stretches of uniform, skewed and cyclic ones.
Trace random_trace(Prng& prng, uint64_t objects, uint64_t uses) {
  TraceBuilder builder("random");
  while (builder.uses() < uses) {
    const uint64_t kind = prng.below(3), length = prng.between(5, objects * 2), first = prng.below(objects);
    for (uint64_t at = 0; at < length; ++at) {
      const uint64_t drawn = prng.below(objects);
      builder.begin_request(0);
      builder.use(kind == 0 ? drawn : kind == 1 ? drawn * drawn / objects : (first + at) % objects);
    }
  }
  return builder.finish();
}

void check_against(const char* name, Model (*naive)(uint64_t room), const Trace& trace, uint64_t room) {
  const Model model = naive(room);
  const auto cache = make_cache(name, trace, room);
  CAPTURE(room);
  for (size_t at = 0; at < trace.uses.size(); ++at) {
    CAPTURE(at);
    REQUIRE(cache->use(trace.uses[at]) == model(trace.uses[at]));
  }
}

// Also with room enough for a hundredth of it to be more than one.
void check_against(const char* name, Model (*naive)(uint64_t room)) {
  Prng prng(17);
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    const Trace trace = random_trace(prng, prng.between(2, 40), 400);
    for (const uint64_t room : {1, 2, 3, 5, 8, 13, 21}) check_against(name, naive, trace, room);
  }
  check_against(name, naive, random_trace(prng, 500, 3000), 300);
}

TEST_CASE("lirs: as a naive model of its paper") {
  check_against("lirs", naive_lirs);
}
TEST_CASE("w-tinylfu: as a naive model of its paper") {
  check_against("w-tinylfu", naive_tiny_lfu);
}
TEST_CASE("sieve: as a naive model of its paper") {
  check_against("sieve", naive_sieve);
}
TEST_CASE("2q: as a naive model of its paper") {
  check_against("2q", naive_two_queues);
}
TEST_CASE("decayed-lfu: as a naive model of its paper") {
  check_against("decayed-lfu", naive_decayed_lfu);
}

TEST_CASE("lirs: a loop longer than the room keeps what fits of it, where LRU keeps nothing") {
  // Room for three, two of them LIR: a and b. c, d and e take turns in the third place.
  CHECK(hits_of("lirs", "abcdeabcdeabcde", 3) == ".....hh...hh...");
  CHECK(hits_of("lru", "abcdeabcdeabcde", 3) == "...............");
}

TEST_CASE("lirs: what is used twice within the distance of the last LIR object takes its place") {
  // Room for three. a, b: LIR. c: Q. d puts c out of Q, and it stays in S as a ghost: S = a b c d. c comes back: LIR,
  // and a, at the bottom of S, is put into Q behind d, which has just gone. Hits: c, b, a.
  CHECK(hits_of("lirs", "abcdccba", 3) == ".....hhh");
  // As before, and then e: it puts a out.
  CHECK(hits_of("lirs", "abcdccbeca", 3) == ".....hh.h.");
}

TEST_CASE("w-tinylfu: what was used more often stays, whoever comes after") {
  // Room for three: one for the window, two for the main part. a and b are used twice; c to f go through the window
  // and are put out there.
  CHECK(hits_of("w-tinylfu", "aabbcdefab", 3) == ".h.h....hh");
  CHECK(hits_of("lru", "aabbcdefab", 3) == ".h.h......");
}

TEST_CASE("w-tinylfu: counts are halved, so that what was used much long ago has to go") {
  // Room for two: one each. a is used nine times. After twenty uses counts are halved; b, used five times since, has
  // more than a then has.
  CHECK(hits_of("w-tinylfu", "aaaaaaaaabcbcbcbcbcbcbcbcba", 2).back() == '.');
  CHECK(hits_of("w-tinylfu", "aaaaaaaaabcba", 2).back() == 'h');
}

TEST_CASE("sieve: the hand passes what was used, and goes on from where it was") {
  // Room for three. a is used again. d: the hand passes a, clears it, puts b out and stays at c. e: c goes, at once;
  // the hand is at d. So a, d, e are there.
  CHECK(hits_of("sieve", "abcadeade", 3) == "...h..hhh");
}

TEST_CASE("2q: only what comes back after it left the first queue goes to the main list") {
  // Room for four: A1in one, A1out two. a b c d fill A1in. e: a leaves A1in for A1out. a: comes back into Am, b leaves
  // A1in. f g h i: pass through A1in, and a stays.
  CHECK(hits_of("2q", "abcdeafghia", 4) == "..........h");
  CHECK(hits_of("2q", "abcdaefgha", 4) == "....h.....");  // used again in A1in: no gain
}

TEST_CASE("decayed-lfu: often counts more than lately, until it was long ago") {
  // Room for two. a was used three times, so c and d put each other out, and a stays.
  CHECK(hits_of("decayed-lfu", "aaabcda", 2) == ".hh...h");
  // After three half-lives of sixteen uses, three uses count less than one.
  std::string letters = "aaab";
  for (int at = 0; at < 30; ++at) letters += "cdef"[at % 4];
  CHECK(hits_of("decayed-lfu", letters + "a", 2).back() == '.');
  CHECK(hits_of("decayed-lfu", letters.substr(0, 12) + "a", 2).back() == 'h');
}

}  // namespace
}  // namespace terrace::tiering
