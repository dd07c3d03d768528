// SPDX-License-Identifier: Apache-2.0
// Which trace a call belongs to, as W3C's Trace Context has it: "00-<32 hex: trace>-<16 hex: parent span>-<2 hex: flags>".
//
// Pure. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::daemon {

struct TraceContext {
  static constexpr size_t text_bytes = 55;

  uint64_t trace_high = 0, trace_low = 0;  // never both 0
  uint64_t span = 0;                       // of who calls; never 0
  bool sampled = false;

  bool operator==(const TraceContext&) const = default;
};

// nullopt: it is no traceparent, and as W3C says the call begins a trace of its own. Never an error. Of a version that is
// not known what is known is read.
std::optional<TraceContext> parse_traceparent(std::string_view text);
std::string traceparent(const TraceContext& context);

std::string trace_id_text(uint64_t high, uint64_t low);  // 32 hex digits, lower case
std::string span_id_text(uint64_t id);                   // 16

}  // namespace terrace::daemon
