// SPDX-License-Identifier: Apache-2.0
// What the manager and the agent say for their operator: one line an event. daemon/config/log.h sets up where it goes
// and in which form. spdlog writes the lines, but its headers are in log.cc alone: they take longer to compile than
// most of the files that have something to say.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::log {

enum class Level : uint8_t { debug, info, warn, error, critical };

// For tests: nothing is written from now on.
void silence();

bool enabled(Level level);

// One line at `level`, as it is. Any thread.
void write_line(Level level, std::string_view line);

// What a line says beside its message: `lease=7` behind the text, `"lease":7` in JSON.
struct Field {
  std::string_view key;  // lives as long as the line; letters and '_'
  std::string value;
  bool number = false;
};
void write_line(Level level, std::string_view line, const std::vector<Field>& fields);

// For formatters: the fields of the line that this thread is writing; null: it has none.
const std::vector<Field>* fields_of_line();

template <typename... Values>
void write(Level level, fmt::format_string<Values...> text, Values&&... values) {
  if (enabled(level)) write_line(level, fmt::format(text, std::forward<Values>(values)...));
}

template <typename... Values>
void info(fmt::format_string<Values...> text, Values&&... values) {
  write(Level::info, text, std::forward<Values>(values)...);
}

template <typename... Values>
void warn(fmt::format_string<Values...> text, Values&&... values) {
  write(Level::warn, text, std::forward<Values>(values)...);
}

template <typename... Values>
void error(fmt::format_string<Values...> text, Values&&... values) {
  write(Level::error, text, std::forward<Values>(values)...);
}

template <typename... Values>
void critical(fmt::format_string<Values...> text, Values&&... values) {
  write(Level::critical, text, std::forward<Values>(values)...);
}

}  // namespace terrace::log
