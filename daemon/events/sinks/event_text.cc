// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/sinks/event_text.h"

#include <cstdio>
#include <ctime>

#include "core/base/units.h"
#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"
#include "daemon/lines/journal.h"
#include "daemon/lines/json_line.h"

namespace terrace::daemon {
namespace {

// Enums are cast, as in daemon/rpc.
static_assert(static_cast<unsigned>(rpc::EventKind::LEASE_HOLDER_ENDED) + 1 == event_kinds);
static_assert(static_cast<unsigned>(rpc::EventKind::DEVICE_LOST) ==
              static_cast<unsigned>(EventKind::device_lost));
static_assert(static_cast<unsigned>(rpc::EventKind::CALL_DENIED) ==
              static_cast<unsigned>(EventKind::call_denied));
static_assert(static_cast<unsigned>(rpc::EventSeverity::CRITICAL) ==
              static_cast<unsigned>(EventSeverity::critical));

void text_or_null(JsonLine& line, std::string_view key, const std::string& value) {
  value.empty() ? line.null(key) : line.text(key, value);
}
void number_or_null(JsonLine& line, std::string_view key, uint64_t value) {
  value == 0 ? line.null(key) : line.number(key, value);
}

unsigned syslog_priority(EventSeverity severity) {
  switch (severity) {
    case EventSeverity::info: return 6;
    case EventSeverity::warning: return 4;
    case EventSeverity::critical: return 2;
  }
  return 5;
}

std::string upper_case(std::string_view key) {
  std::string upper = "TERRACE_";
  for (const char c : key) upper += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return upper;
}

}  // namespace

std::string_view event_word(EventKind kind) {
  return schema::enum_word(static_cast<rpc::EventKind>(kind));
}

std::string_view severity_word(EventSeverity severity) {
  return schema::enum_word(static_cast<rpc::EventSeverity>(severity));
}

std::string event_time(uint64_t wall_ns) {
  const auto second = static_cast<std::time_t>(wall_ns / ns_per_s);
  std::tm broken{};
  char text[48] = "";
  if (::gmtime_r(&second, &broken) == nullptr) return "";
  const size_t bytes = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &broken);
  std::snprintf(text + bytes, sizeof(text) - bytes, ".%03uZ",
                static_cast<unsigned>(wall_ns / ns_per_ms % 1000));
  return text;
}

std::string event_json(const Event& event, std::string_view run) {
  JsonLine line;
  line.number("id", event.id);
  line.text("run", run);
  line.number("time_ns", event.wall_ns);
  line.text("time", event_time(event.wall_ns));
  line.text("kind", event_word(event.kind));
  line.text("severity", severity_word(event.severity));
  line.text("message", event.message);
  number_or_null(line, "lease", event.lease);
  text_or_null(line, "tenant", event.tenant);
  text_or_null(line, "pool", event.pool);
  text_or_null(line, "device", event.device);
  text_or_null(line, "host", event.host);
  text_or_null(line, "code", event.code);
  text_or_null(line, "cause", event.cause);
  number_or_null(line, "bytes", event.bytes);
  number_or_null(line, "took_ns", event.took_ns);
  text_or_null(line, "trace_id", event.trace_id);
  line.number("count", event.count);
  return line.object();
}

std::vector<log::Field> event_fields(const Event& event) {
  std::vector<log::Field> fields;
  const auto text = [&fields](const char* key, std::string_view value) {
    if (!value.empty()) fields.push_back({key, std::string(value), false});
  };
  const auto number = [&fields](const char* key, uint64_t value) {
    if (value != 0) fields.push_back({key, std::to_string(value), true});
  };
  text("event", event_word(event.kind));
  number("id", event.id);
  number("lease", event.lease);
  text("tenant", event.tenant);
  text("pool", event.pool);
  text("device", event.device);
  text("host", event.host);
  text("code", event.code);
  text("cause", event.cause);
  number("bytes", event.bytes);
  number("took_ns", event.took_ns);
  text("trace_id", event.trace_id);
  if (event.count > 1) number("count", event.count);
  return fields;
}

std::string journal_entry(const Event& event, std::string_view run) {
  std::string entry;
  add_journal_field(entry, "MESSAGE", event.message);
  add_journal_field(entry, "PRIORITY", std::to_string(syslog_priority(event.severity)));
  add_journal_field(entry, "SYSLOG_IDENTIFIER", "terraced");
  add_journal_field(entry, "TERRACE_RUN", run);
  add_journal_field(entry, "TERRACE_SEVERITY", severity_word(event.severity));
  for (const log::Field& field : event_fields(event))
    add_journal_field(entry, upper_case(field.key), field.value);
  return entry;
}

log::Level event_level(const Event& event) {
  switch (event.severity) {
    case EventSeverity::info: return is_routine(event.kind) ? log::Level::debug : log::Level::info;
    case EventSeverity::warning: return log::Level::warn;
    case EventSeverity::critical: break;
  }
  return log::Level::error;
}

}  // namespace terrace::daemon
