// SPDX-License-Identifier: Apache-2.0
#include "daemon/traces/trace_context.h"

namespace terrace::daemon {
namespace {

// Lower case only, as W3C says.
std::optional<uint64_t> read_hex(std::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    value <<= 4;
    if (c >= '0' && c <= '9')
      value |= static_cast<uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value |= static_cast<uint64_t>(c - 'a' + 10);
    else
      return std::nullopt;
  }
  return value;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view text) {
  if (text.size() < TraceContext::text_bytes) return std::nullopt;
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const auto version = read_hex(text.substr(0, 2)), high = read_hex(text.substr(3, 16)),
             low = read_hex(text.substr(19, 16)), span = read_hex(text.substr(36, 16)),
             flags = read_hex(text.substr(53, 2));
  if (!version || !high || !low || !span || !flags || *version == 0xff) return std::nullopt;
  // A later version may say more behind what this one says.
  if (text.size() > TraceContext::text_bytes && (*version == 0 || text[TraceContext::text_bytes] != '-'))
    return std::nullopt;
  if ((*high == 0 && *low == 0) || *span == 0) return std::nullopt;
  return TraceContext{*high, *low, *span, (*flags & 1) != 0};
}

std::string span_id_text(uint64_t id) {
  static constexpr const char* hex = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; id >>= 4) text[i] = hex[id & 15];
  return text;
}

std::string trace_id_text(uint64_t high, uint64_t low) {
  return span_id_text(high) + span_id_text(low);
}

std::string traceparent(const TraceContext& context) {
  return "00-" + trace_id_text(context.trace_high, context.trace_low) + "-" + span_id_text(context.span) +
         (context.sampled ? "-01" : "-00");
}

}  // namespace terrace::daemon
