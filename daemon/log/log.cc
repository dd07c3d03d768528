// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/log.h"

#include <spdlog/spdlog.h>

namespace terrace::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
    case Level::critical: break;
  }
  return spdlog::level::critical;
}

// spdlog formats a line on the thread that writes it, before it returns.
thread_local const std::vector<Field>* fields_now = nullptr;

}  // namespace

void silence() {
  spdlog::set_level(spdlog::level::off);
}

bool enabled(Level level) {
  return spdlog::default_logger_raw()->should_log(spdlog_level(level));
}

void write_line(Level level, std::string_view line) {
  spdlog::default_logger_raw()->log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

void write_line(Level level, std::string_view line, const std::vector<Field>& fields) {
  struct Reset {
    ~Reset() { fields_now = nullptr; }
  } reset;
  fields_now = &fields;
  write_line(level, line);
}

const std::vector<Field>* fields_of_line() {
  return fields_now;
}

}  // namespace terrace::log
