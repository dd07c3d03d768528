// SPDX-License-Identifier: Apache-2.0
// What a traceparent is, and what is none.
#include <doctest/doctest.h>

#include "core/base/traceparent.h"
#include "daemon/traces/trace_context.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

std::string with(size_t at, const std::string& text) {
  std::string changed = good;
  return changed.replace(at, text.size(), text);
}

}  // namespace

TEST_CASE("traceparent: W3C's example is read and written again") {
  const auto context = parse_traceparent(good);
  REQUIRE(context.has_value());
  CHECK(context->trace_high == 0x4bf92f3577b34da6);
  CHECK(context->trace_low == 0xa3ce929d0e0e4736);
  CHECK(context->span == 0x00f067aa0ba902b7);
  CHECK(context->sampled);
  CHECK(traceparent(*context) == good);
  CHECK(trace_id_text(context->trace_high, context->trace_low) == "4bf92f3577b34da6a3ce929d0e0e4736");
}

TEST_CASE("traceparent: of the flags the first one counts") {
  CHECK(!parse_traceparent(with(53, "00"))->sampled);
  CHECK(!parse_traceparent(with(53, "fe"))->sampled);
  CHECK(parse_traceparent(with(53, "ff"))->sampled);
}

TEST_CASE("traceparent: a later version is read as far as this one goes") {
  CHECK(parse_traceparent(with(0, "cc")).has_value());
  CHECK(parse_traceparent(with(0, "cc") + "-what-the-future-will-be-like").has_value());
  CHECK(!parse_traceparent(with(0, "cc") + ".what").has_value());
  CHECK(!parse_traceparent(good + "-00").has_value());  // version 00 has an end
}

TEST_CASE("traceparent: what is none begins a new trace, never an error") {
  for (const std::string& bad :
       {std::string(), std::string("00"), good.substr(0, 54), good + "0", with(0, "ff"), with(0, "0G"),
        with(3, "4BF92F3577B34DA6A3CE929D0E0E4736"), with(3, std::string(32, '0')),
        with(36, std::string(16, '0')), with(2, "_"), with(35, "_"), with(52, "_"), with(53, "0x"),
        with(10, "\n"), with(10, std::string(1, '\0')), std::string(55, '-'), std::string(1 << 20, '0')})
    CHECK_MESSAGE(!parse_traceparent(bad).has_value(), bad.substr(0, 80));
}

TEST_CASE("traceparent: a client sends 55 bytes at most") {
  CHECK(bounded_traceparent(good) == good);
  CHECK(bounded_traceparent(with(0, "cc") + "-more") == with(0, "cc"));
  CHECK(bounded_traceparent(good + "-more").empty());
  CHECK(bounded_traceparent("abc").empty());
  CHECK(bounded_traceparent(std::string(1 << 20, 'x')).empty());
}
