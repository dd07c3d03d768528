// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tiering/sim/generators.h"
#include "tiering/sim/trace.h"

namespace terrace::tiering {
namespace {

Result<Trace> mooncake(std::string_view text) {
  return parse_trace(text, TraceFormat::mooncake, "t.jsonl");
}
Result<Trace> accesses(std::string_view text) {
  return parse_trace(text, TraceFormat::accesses, "t.txt");
}

TEST_CASE("trace: mooncake lines become requests, objects numbered by first use") {
  const auto trace = mooncake(
      "{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": [7, 9]}\r\n\n"
      "{\"timestamp\": 2000, \"hash_ids\": [9, 7, 9, 11]}\n");
  REQUIRE(trace.ok());
  CHECK(trace->objects == 3);
  CHECK(trace->uses == std::vector<uint32_t>{0, 1, 1, 0, 2});
  REQUIRE(trace->requests.size() == 2);
  CHECK(trace->requests[1].time_ns == 2'000'000'000);
  CHECK(trace->requests[1].count == 3);  // an object named twice counts once
  CHECK(trace->re_references() == 2);
}

TEST_CASE("trace: requests of one stamp are spread until the next one") {
  const auto trace = mooncake(
      "{\"timestamp\":0,\"hash_ids\":[1]}\n{\"timestamp\":0,\"hash_ids\":[2]}\n{\"timestamp\":0,\"hash_ids\":["
      "3]}\n"
      "{\"timestamp\":3000,\"hash_ids\":[1]}\n{\"timestamp\":3000,\"hash_ids\":[4]}\n");
  REQUIRE(trace.ok());
  std::vector<uint64_t> ms;
  for (const TraceRequest& request : trace->requests) ms.push_back(request.time_ns / 1'000'000);
  CHECK(ms == std::vector<uint64_t>{0, 1000, 2000, 3000, 3000});  // nothing says how long the last ones took
}

TEST_CASE("trace: accesses are words in order of time, with comments") {
  const auto trace = accesses("# made by hand\n0 heap:3 r\n 5\theap:4\n5 heap:3 w  # again\n\n");
  REQUIRE(trace.ok());
  CHECK(trace->uses == std::vector<uint32_t>{0, 1, 0});
  CHECK(trace->requests[1].time_ns == 5000);
}

TEST_CASE("trace: what cannot be read says which file and line, what is there and what is wanted") {
  const auto says = [](const Result<Trace>& trace, const char* part) {
    REQUIRE(!trace.ok());
    CHECK(trace.error().code == ErrorCode::invalid_argument);
    CAPTURE(trace.error().detail);
    CHECK(trace.error().detail.find(part) != std::string::npos);
  };
  says(mooncake("{\"timestamp\":1,\"hash_ids\":[1]}\nhello\n"), "t.jsonl, line 2: is no JSON object: 'hello'");
  says(mooncake("[1]\n"), "line 1: is no JSON object");
  says(mooncake("{\"hash_ids\":[1]}\n"), "has no \"timestamp\"");
  says(mooncake("{\"timestamp\":-1,\"hash_ids\":[1]}\n"), "has no \"timestamp\"");
  says(mooncake("{\"timestamp\":1}\n"), "has no list \"hash_ids\"");
  says(mooncake("{\"timestamp\":1,\"hash_ids\":[1.5]}\n"), "'1.5'");
  says(mooncake("{\"timestamp\":1,\"hash_ids\":[\"\xff\"]}\n"), "line 1");
  says(mooncake("{\"timestamp\":1,\"hash_ids\":[18446744073709551615]}\n"), "2^53");
  says(mooncake("{\"timestamp\":9,\"hash_ids\":[1]}\n{\"timestamp\":8,\"hash_ids\":[1]}\n"),
       "line 2: the time 8 is before");
  says(mooncake("{\"timestamp\":18446744073709551615,\"hash_ids\":[1]}\n"), "units");
  says(mooncake(""), "no access");
  says(mooncake("{\"timestamp\":1,\"hash_ids\":[]}\n"), "no access");
  says(mooncake(std::string(5'000'000, ' ')), "bytes");
  says(mooncake(std::string(100'000, '[')), "line 1");
  says(accesses("soon a r\n"), "t.txt, line 1: 'soon' is no time");
  says(accesses("1.5 a\n"), "'1.5' is no time");
  says(accesses("5\n"), "names no object");
  says(accesses("5 a x\n"), "'x' is too much");
  says(accesses("5 a r now\n"), "'now' is too much");
  says(accesses("5 a\n4 a\n"), "line 2: the time 4 is before");
}

TEST_CASE("trace: every made-up trace is the same for the same seed, and re-uses objects") {
  for (const GeneratorEntry& entry : generators()) {
    CAPTURE(entry.name);
    const auto one = generate_trace(entry.name, 0.02, 5), same = generate_trace(entry.name, 0.02, 5);
    REQUIRE(one.ok());
    CHECK(one->uses == same->uses);
    CHECK(one->re_references() > one->objects / 4);
    for (size_t at = 1; at < one->requests.size(); ++at)
      REQUIRE(one->requests[at].time_ns >= one->requests[at - 1].time_ns);
  }
  CHECK(!generate_trace("nothing").ok());
  CHECK(!generate_trace("zipf", 0).ok());
  CHECK(!generate_trace("zipf", 1e9).ok());
}

}  // namespace
}  // namespace terrace::tiering
