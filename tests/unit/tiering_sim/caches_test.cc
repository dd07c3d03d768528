// SPDX-License-Identifier: Apache-2.0
// The caches that policies are compared with, against traces worked by hand, and belady against all there is.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "core/base/prng.h"
#include "tests/unit/tiering_sim/traces.h"

namespace terrace::tiering {
namespace {

TEST_CASE("lru: keeps what was used last") {
  //                           a b c: full; d puts a out, so b and c are there and a is not
  CHECK(hits_of("lru", "abcdbca", 3) == "....hh.");
  CHECK(hits_of("lru", "aaaa", 1) == ".hhh");
  CHECK(hits_of("lru", "abab", 1) == "....");
  CHECK(hits_of("lru", "abcabcabc", 2) == ".........");
}

TEST_CASE("arc: a scan does not put out what was used twice") {
  // Room for four. a and b are used twice (T2); c to h pass through T1; a and b are still there, where LRU has
  // lost them.
  CHECK(hits_of("arc", "ababcdefghab", 4) == "..hh......hh");
  CHECK(hits_of("lru", "ababcdefghab", 4) == "..hh........");
}

TEST_CASE("arc: what comes back after it left T1 makes T1 larger") {
  // Room for two, worked through the paper's four cases: b and a go to B1; each comes back from there to T2.
  //   a: T1=a. b: T1=ab. a: hit, T1=b T2=a. c: b leaves for B1, T1=c T2=a. b: from B1, target 1; T1 is not
  //   above it, so a leaves T2 for B2; T1=c T2=b. a: from B2, target 0; c leaves T1 for B1; T2=ba. b, a: hits.
  CHECK(hits_of("arc", "abacbaba", 2) == "..h...hh");
}

TEST_CASE("s3-fifo: what is used once only passes through the small queue") {
  // Room for ten, so one for the small queue. a is used three times: it goes on to the main queue; b to k do
  // not.
  CHECK(hits_of("s3-fifo", "aaabcdefghijkla", 10) == ".hh...........h");
  CHECK(hits_of("lru", "aaabcdefghijkla", 10) == ".hh............");
}

TEST_CASE("s3-fifo: what comes back soon after it left goes to the main queue") {
  // Room for two: b and a leave the small queue as ghosts; a comes back into the main queue, and c does not
  // move it.
  CHECK(hits_of("s3-fifo", "abcada", 2) == ".....h");
}

TEST_CASE("prefix-order: of a request the last object goes first, and a used beginning stays") {
  // Room for four. a b c d, then x, which puts d out; a b c are hits, d is not and puts x out.
  TraceBuilder builder("requests");
  for (const std::string_view request : {"abcd", "x", "abcd", "abcd"}) {
    builder.begin_request(0);
    for (const char object : request) builder.use(static_cast<uint64_t>(object));
  }
  const Trace trace = builder.finish();
  const auto cache = make_cache("prefix-order", trace, 4);
  std::string hits;
  for (const uint32_t object : trace.uses) hits += cache->use(object) ? 'h' : '.';
  CHECK(hits == ".....hhh.hhhh");
  CHECK(cache->brought_in() == 6);
  CHECK(cache->put_out() == 2);
}

TEST_CASE("prefix-order: requests of one object each are kept as LRU does, before anything is learned") {
  CHECK(hits_of("prefix-order", "abcdbca", 3) == "....hh.");
}

TEST_CASE(
    "belady: leaves out what is used farthest ahead, and does not bring in what is used later than the rest") {
  CHECK(hits_of("belady", "abcab", 2) == "...hh");
  CHECK(hits_of("belady", "abcdabcd", 2) == "....hh..");
  CHECK(hits_of("belady", "abcde", 2) == ".....");
}

// The most hits that any choice of what stays can have: all choices after each use.
uint64_t best_hits(const Trace& trace, size_t at, std::vector<uint32_t> cache, uint64_t room,
                   std::map<std::pair<size_t, std::vector<uint32_t>>, uint64_t>& known) {
  if (at == trace.uses.size()) return 0;
  const auto key = std::pair(at, cache);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const uint32_t object = trace.uses[at];
  const bool hit = std::find(cache.begin(), cache.end(), object) != cache.end();
  uint64_t best = best_hits(trace, at + 1, cache, room, known);
  if (!hit) {
    std::vector<uint32_t> with = cache;
    with.push_back(object);
    std::sort(with.begin(), with.end());
    if (with.size() <= room) {
      best = std::max(best, best_hits(trace, at + 1, with, room, known));
    } else {
      for (const uint32_t out : cache) {
        std::vector<uint32_t> without = with;
        without.erase(std::find(without.begin(), without.end(), out));
        best = std::max(best, best_hits(trace, at + 1, without, room, known));
      }
    }
  }
  return known[key] = best + (hit ? 1 : 0);
}

TEST_CASE("belady: as many hits as the best of all choices, on 400 small traces; the others never more") {
  Prng prng(42);
  for (int round = 0; round < 400; ++round) {
    std::string letters;
    const uint64_t objects = prng.between(2, 7), length = prng.between(4, 18), room = prng.between(1, 4);
    for (uint64_t at = 0; at < length; ++at) letters += static_cast<char>('a' + prng.below(objects));
    const Trace trace = trace_of(letters);
    std::map<std::pair<size_t, std::vector<uint32_t>>, uint64_t> known;
    const auto best = static_cast<long>(best_hits(trace, 0, {}, room, known));
    CAPTURE(letters);
    CAPTURE(room);
    const auto count = [&](std::string_view name) {
      const std::string hits = hits_of(name, letters, room);
      return static_cast<long>(std::count(hits.begin(), hits.end(), 'h'));
    };
    CHECK(count("belady") == best);
    for (const std::string_view other : cache_names()) CHECK(count(other) <= best);
  }
}

TEST_CASE("caches: what is in never exceeds the room, and every name makes one") {
  Prng prng(3);
  std::string letters;
  for (int at = 0; at < 2000; ++at) letters += static_cast<char>('A' + prng.below(60));
  const Trace trace = trace_of(letters);
  for (const std::string_view name : cache_names()) {
    for (const uint64_t room : {1, 2, 3, 10, 59, 60, 100}) {
      const auto cache = make_cache(name, trace, room);
      REQUIRE(cache != nullptr);
      for (const uint32_t object : trace.uses) {
        cache->use(object);
        REQUIRE(cache->brought_in() - cache->put_out() <= room);
      }
    }
  }
  CHECK(make_cache("fifo", trace, 3) == nullptr);
}

}  // namespace
}  // namespace terrace::tiering
