// SPDX-License-Identifier: Apache-2.0
// Spans as OTLP's JSON has them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "daemon/traces/otlp/otlp_json.h"

using namespace terrace::daemon;

TEST_CASE("OTLP: ids are hex, times and whole numbers are texts") {
  Span span;
  span.trace_high = 1;
  span.trace_low = 0xab;
  span.id = 0xcd;
  span.parent = 0xef;
  span.name = "TenantSession.grant";
  span.is_call = true;
  span.begin_wall_ns = 1'764'238'530'123'456'789;
  span.end_wall_ns = span.begin_wall_ns + 5;
  span.lease = 7;
  span.tenant = "a \"b\"\n";
  span.pool = "p";
  span.code = "capacity_exhausted";
  const auto document = nlohmann::json::parse(otlp_span(span));
  CHECK(document["traceId"] == "000000000000000100000000000000ab");
  CHECK(document["spanId"] == "00000000000000cd");
  CHECK(document["parentSpanId"] == "00000000000000ef");
  CHECK(document["kind"] == 2);
  CHECK(document["startTimeUnixNano"] == "1764238530123456789");
  CHECK(document["endTimeUnixNano"] == "1764238530123456794");
  CHECK(document["status"] == nlohmann::json({{"code", 2}, {"message", "capacity_exhausted"}}));
  nlohmann::json attributes;
  for (const auto& one : document["attributes"]) attributes[one["key"].get<std::string>()] = one["value"];
  CHECK(attributes["terrace.tenant"] == nlohmann::json({{"stringValue", "a \"b\"\n"}}));
  CHECK(attributes["terrace.lease"] == nlohmann::json({{"intValue", "7"}}));
  CHECK(attributes["rpc.method"] == nlohmann::json({{"stringValue", "TenantSession.grant"}}));
}

TEST_CASE("OTLP: what a span is not about it does not have, and a request is one document") {
  Span span;
  span.id = 1;
  span.trace_low = 2;
  span.name = "commit";
  const auto frame = otlp_frame("1.2", "here", "run");
  const auto document =
      nlohmann::json::parse(frame.head + otlp_span(span) + ", " + otlp_span(span) + frame.tail);
  const auto& resource = document.at("resourceSpans").at(0);
  CHECK(resource.at("resource").at("attributes").size() == 4);
  const auto& spans = resource.at("scopeSpans").at(0).at("spans");
  REQUIRE(spans.size() == 2);
  CHECK(!spans[0].contains("parentSpanId"));
  CHECK(spans[0]["attributes"].empty());
  CHECK(spans[0]["status"].empty());
  CHECK(spans[0]["kind"] == 1);
}
