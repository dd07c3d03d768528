// SPDX-License-Identifier: Apache-2.0
// Events as text, for what reads them outside: JSON as the schema has it, fields of a log line, a journal's entry.
//
// Place     daemon/events/sinks; the same words and keys as Admin.events answers with.
// Threads   Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/events/event.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

std::string_view event_word(EventKind kind);
std::string_view severity_word(EventSeverity severity);

// "2026-11-27T10:15:30.123Z"
std::string event_time(uint64_t wall_ns);

// One JSON object, without a line feed: what schema::to_json makes of rpc::Event.
std::string event_json(const Event& event, std::string_view run);

// Those that are set; `event` is its kind's word.
std::vector<log::Field> event_fields(const Event& event);

// An entry of systemd's journal: MESSAGE, PRIORITY and TERRACE_... fields, in the form of its native protocol.
std::string journal_entry(const Event& event, std::string_view run);

// What the log says of it, at which level.
log::Level event_level(const Event& event);

}  // namespace terrace::daemon
