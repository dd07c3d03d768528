// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/local_time.h"

#include <ctime>

#include "core/base/units.h"

namespace terrace::cli {
namespace {

// What strptime takes of `text`, if that is all of it.
bool read_as(const std::string& text, const char* form, tm* fields) {
  const char* end = strptime(text.c_str(), form, fields);
  return end != nullptr && *end == '\0';
}

}  // namespace

Result<uint64_t> parse_moment(const std::string& text, uint64_t now_ns) {
  if (const Result<uint64_t> ago = parse_duration(text); ago.ok()) return now_ns - std::min(*ago, now_ns);
  const Error refused{.code = ErrorCode::invalid_argument,
                      .where = "parse_moment",
                      .detail = "'" + text +
                                "' is neither a duration (2h) nor a moment; write 11:30, 2026-11-21 or "
                                "'2026-11-21 11:30:05' (local time, or UTC with a Z)"};
  const bool utc = !text.empty() && text.back() == 'Z';
  const std::string local = utc ? text.substr(0, text.size() - 1) : text;
  const auto now_s = static_cast<time_t>(now_ns / ns_per_s);
  for (const char* form : {"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                           "%Y-%m-%dT%H:%M:%S", "%H:%M", "%H:%M:%S"}) {
    tm fields{};
    if (form[1] == 'H') {
      utc ? gmtime_r(&now_s, &fields) : localtime_r(&now_s, &fields);
      fields.tm_sec = 0;
    }
    if (!read_as(local, form, &fields)) continue;
    fields.tm_isdst = -1;
    const tm asked = fields;
    const time_t moment = utc ? timegm(&fields) : mktime(&fields);
    // 2026-02-31 would silently become the third of March.
    if (moment < 0 || fields.tm_mday != asked.tm_mday) return refused;
    return static_cast<uint64_t>(moment) * ns_per_s;
  }
  return refused;
}

std::string format_moment(uint64_t wall_ns) {
  const auto seconds = static_cast<time_t>(wall_ns / ns_per_s);
  tm fields{};
  localtime_r(&seconds, &fields);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &fields)};
}

Result<uint64_t> parse_interval(const std::string& option, const std::string& text) {
  constexpr uint64_t shortest_ns = 100 * ns_per_ms;
  const bool bare = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  TERRACE_ASSIGN_OR_RETURN(const uint64_t interval_ns, parse_duration(bare ? text + "s" : text));
  if (interval_ns < shortest_ns || interval_ns > 86400 * ns_per_s)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "interval",
                 .detail = option + "=" + text + ": from 0.1 seconds to a day"};
  return interval_ns;
}

}  // namespace terrace::cli
