// SPDX-License-Identifier: Apache-2.0
// Text to Trace: hostile until proven otherwise, so every number is bounded and every message says where.
#include <algorithm>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>

#include "tiering/sim/trace.h"

namespace terrace::tiering {
namespace {

constexpr size_t line_bytes_max = size_t{1} << 22;
constexpr uint64_t time_ns_max = uint64_t{1} << 62;
constexpr uint64_t number_max = uint64_t{1} << 53;  // what JSON numbers carry exactly

struct Place {
  const std::string& name;
  uint64_t line;
};

Error bad(const Place& place, const std::string& text) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = "parse_trace",
               .detail = place.name + ", line " + std::to_string(place.line) + ": " + text};
}

std::string in_quotes(std::string_view text) {
  constexpr size_t shown_max = 40;
  if (text.size() > shown_max) return "'" + std::string(text.substr(0, shown_max)) + "...'";
  return "'" + std::string(text) + "'";
}

Status check_room(const Place& place, const TraceBuilder& builder) {
  if (builder.uses() < trace_accesses_max) return {};
  return Error{.code = ErrorCode::limit_exceeded,
               .where = "parse_trace",
               .detail = place.name + ", line " + std::to_string(place.line) + ": more than " +
                         std::to_string(trace_accesses_max) + " accesses; cut the trace"};
}

Result<uint64_t> checked_time(const Place& place, uint64_t value, uint64_t ns_per_unit, uint64_t last_ns) {
  if (value > time_ns_max / ns_per_unit)
    return bad(place, "the time " + std::to_string(value) + " is beyond a hundred years; are the units right?");
  if (value * ns_per_unit < last_ns)
    return bad(place, "the time " + std::to_string(value) +
                          " is before that of the line above; sort the trace by time");
  return value * ns_per_unit;
}

// One line of mooncake: {"timestamp": ms, "hash_ids": [block, ...], ...}
Status mooncake_line(std::string_view line, const Place& place, uint64_t& last_ns, TraceBuilder& builder) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
  if (row.is_discarded() || !row.is_object())
    return bad(place, "is no JSON object: " + in_quotes(line) + "; mooncake traces have one a line");
  const auto stamp = row.find("timestamp");
  if (stamp == row.end() || !stamp->is_number_unsigned())
    return bad(place, "has no \"timestamp\" of whole milliseconds");
  TERRACE_ASSIGN_OR_RETURN(last_ns, checked_time(place, stamp->get<uint64_t>(), 1'000'000, last_ns));
  const auto blocks = row.find("hash_ids");
  if (blocks == row.end() || !blocks->is_array())
    return bad(place, "has no list \"hash_ids\" of block numbers");
  builder.begin_request(last_ns);
  for (const nlohmann::json& block : *blocks) {
    if (!block.is_number_unsigned() || block.get<uint64_t>() > number_max)
      return bad(place, "\"hash_ids\" has " +
                            in_quotes(block.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) +
                            "; block numbers are whole, from 0 to 2^53");
    TERRACE_RETURN_IF_ERROR(check_room(place, builder));
    builder.use(block.get<uint64_t>());
  }
  return {};
}

std::string_view next_word(std::string_view& line) {
  const size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
  line.remove_prefix(begin);
  const size_t end = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(end);
  return word;
}

// One line of accesses: time_us object [r|w]
Status accesses_line(std::string_view line, const Place& place, uint64_t& last_ns, TraceBuilder& builder,
                     std::unordered_map<std::string, uint64_t>& names) {
  line = line.substr(0, line.find('#'));
  const std::string_view time = next_word(line);
  if (time.empty()) return {};
  const std::string_view object = next_word(line), kind = next_word(line), rest = next_word(line);
  uint64_t time_us = 0;
  const auto [end, error] = std::from_chars(time.data(), time.data() + time.size(), time_us);
  if (error != std::errc{} || end != time.data() + time.size())
    return bad(place, in_quotes(time) + " is no time in whole microseconds; a line is 'time_us object [r|w]'");
  if (object.empty()) return bad(place, "names no object behind the time; a line is 'time_us object [r|w]'");
  if ((!kind.empty() && kind != "r" && kind != "w") || !rest.empty())
    return bad(place, in_quotes(kind == "r" || kind == "w" ? rest : kind) +
                          " is too much; a line is 'time_us object [r|w]'");
  TERRACE_ASSIGN_OR_RETURN(last_ns, checked_time(place, time_us, 1000, last_ns));
  TERRACE_RETURN_IF_ERROR(check_room(place, builder));
  builder.begin_request(last_ns);
  builder.use(names.try_emplace(std::string(object), names.size()).first->second);
  return {};
}

// Requests of one stamp are spread evenly until the next: a coarse clock would have them all at once.
void spread(std::vector<TraceRequest>& requests) {
  for (size_t first = 0; first < requests.size();) {
    size_t end = first;
    while (end < requests.size() && requests[end].time_ns == requests[first].time_ns) ++end;
    if (end == requests.size()) return;
    const uint64_t step = (requests[end].time_ns - requests[first].time_ns) / (end - first);
    for (size_t at = first + 1; at < end; ++at) requests[at].time_ns += step * (at - first);
    first = end;
  }
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, TraceFormat format, const std::string& name) {
  TraceBuilder builder(name);
  std::unordered_map<std::string, uint64_t> names;
  uint64_t line_number = 0, last_ns = 0;
  while (!text.empty()) {
    const Place place{name, ++line_number};
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() > line_bytes_max)
      return bad(place, "has more than " + std::to_string(line_bytes_max) + " bytes; is this a trace?");
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    TERRACE_RETURN_IF_ERROR(format == TraceFormat::mooncake
                                ? mooncake_line(line, place, last_ns, builder)
                                : accesses_line(line, place, last_ns, builder, names));
  }
  Trace trace = builder.finish();
  if (trace.uses.empty()) return bad({name, std::max<uint64_t>(line_number, 1)}, "the trace has no access");
  spread(trace.requests);
  return trace;
}

}  // namespace terrace::tiering
