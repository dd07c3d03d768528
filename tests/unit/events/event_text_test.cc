// SPDX-License-Identifier: Apache-2.0
// Events as JSON, as fields and as entries of the journal.
#include <doctest/doctest.h>

#include <map>

#include "core/schema/json.h"
#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"
#include "daemon/events/sinks/event_text.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

Event full() {
  Event event{.id = 9, .wall_ns = 1'764'238'530'123'456'789, .kind = EventKind::lease_fenced};
  event.severity = EventSeverity::critical;
  event.count = 3;
  event.message = "a \"b\" \\ line\nof two";
  event.lease = 7;
  event.tenant = "t";
  event.pool = "p";
  event.device = "emu:a";
  event.host = "h";
  event.code = "c";
  event.cause = "uid 0 (terrace[1])";
  event.bytes = 4096;
  event.took_ns = 5;
  event.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  return event;
}

// The fields of one datagram of the journal's native protocol.
std::map<std::string, std::string> parse_entry(const std::string& entry) {
  std::map<std::string, std::string> fields;
  for (size_t at = 0; at < entry.size();) {
    const size_t end = entry.find_first_of("=\n", at);
    REQUIRE(end != std::string::npos);
    const std::string key = entry.substr(at, end - at);
    if (entry[end] == '=') {
      const size_t feed = entry.find('\n', end);
      fields[key] = entry.substr(end + 1, feed - end - 1);
      at = feed + 1;
      continue;
    }
    uint64_t size = 0;
    for (size_t byte = 0; byte < 8; ++byte)
      size |= static_cast<uint64_t>(static_cast<unsigned char>(entry.at(end + 1 + byte))) << (8 * byte);
    fields[key] = entry.substr(end + 9, size);
    REQUIRE(entry.at(end + 9 + size) == '\n');
    at = end + 9 + size + 1;
  }
  return fields;
}

}  // namespace

TEST_CASE("events: the words of all kinds are the schema's") {
  CHECK(schema::enum_words<terrace::rpc::EventKind>().size() == event_kinds);
  CHECK(event_word(EventKind::lease_granted) == "lease_granted");
  CHECK(event_word(EventKind::check_found_problems) == "check_found_problems");
  CHECK(event_word(EventKind::host_returned) == "host_returned");
  CHECK(event_word(EventKind::configuration_refused) == "configuration_refused");
}

TEST_CASE("events: JSON is valid whatever a text brings in, and empty fields are null") {
  const auto document = nlohmann::json::parse(event_json(full(), "run"));
  CHECK(document["message"] == "a \"b\" \\ line\nof two");
  CHECK(document["time"] == "2025-11-27T10:15:30.123Z");
  CHECK(document["lease"] == 7);
  CHECK(document["severity"] == "critical");
  const auto bare = nlohmann::json::parse(event_json(Event{.id = 1}, "run"));
  CHECK(bare["lease"].is_null());
  CHECK(bare["tenant"].is_null());
  CHECK(bare["trace_id"].is_null());
  CHECK(bare["count"] == 1);
}

TEST_CASE("events: an entry of the journal keeps a text with line feeds in one field") {
  const auto fields = parse_entry(journal_entry(full(), "r"));
  CHECK(fields.at("MESSAGE") == full().message);
  CHECK(fields.at("PRIORITY") == "2");
  CHECK(fields.at("SYSLOG_IDENTIFIER") == "terraced");
  CHECK(fields.at("TERRACE_EVENT") == "lease_fenced");
  CHECK(fields.at("TERRACE_ID") == "9");
  CHECK(fields.at("TERRACE_RUN") == "r");
  CHECK(fields.at("TERRACE_LEASE") == "7");
  CHECK(fields.at("TERRACE_TENANT") == "t");
  CHECK(fields.at("TERRACE_DEVICE") == "emu:a");
  CHECK(fields.at("TERRACE_TOOK_NS") == "5");
  CHECK(fields.at("TERRACE_TRACE_ID") == "4bf92f3577b34da6a3ce929d0e0e4736");
  Event attack{.id = 1};
  attack.tenant = "a\nPRIORITY=0";
  CHECK(parse_entry(journal_entry(attack, "r")).at("PRIORITY") == "6");
  CHECK_FALSE(parse_entry(journal_entry(attack, "r")).contains("TERRACE_LEASE"));
}

TEST_CASE("events: the log has what is no routine, by severity") {
  CHECK(event_level(Event{.kind = EventKind::lease_granted}) == log::Level::debug);
  CHECK(event_level(Event{.kind = EventKind::lease_revoked}) == log::Level::info);
  CHECK(event_level(Event{.kind = EventKind::pool_created}) == log::Level::info);
  CHECK(event_level(Event{.kind = EventKind::host_away, .severity = EventSeverity::warning}) ==
        log::Level::warn);
  CHECK(event_level(Event{.kind = EventKind::device_lost, .severity = EventSeverity::critical}) ==
        log::Level::error);
}
