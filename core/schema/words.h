// SPDX-License-Identifier: Apache-2.0
// The words of the schema's enums and fields: `sharedReadOnly` is "shared_read_only" to people, in JSON, C and
// Python. This is the one place where a value gets its name.
//
// Threads   Any.
#pragma once

#include <capnp/schema.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::schema {

// "inService" -> "in_service".
std::string snake_case(std::string_view name);

// The words of an enum by its numbers. They live as long as the process.
const std::vector<std::string>& words_of(capnp::EnumSchema type);

template <typename Enum>
const std::vector<std::string>& enum_words() {
  static const std::vector<std::string>& words = words_of(capnp::Schema::from<Enum>());
  return words;
}

// "unknown" for a number that this side's schema has no name for; enumerants.h refuses messages that hold one.
template <typename Enum>
std::string_view enum_word(Enum value) {
  const std::vector<std::string>& words = enum_words<Enum>();
  const auto number = static_cast<size_t>(value);
  return number < words.size() ? std::string_view(words[number]) : std::string_view("unknown");
}

template <typename Enum>
std::optional<Enum> enum_of_word(std::string_view word) {
  const std::vector<std::string>& words = enum_words<Enum>();
  for (size_t number = 0; number < words.size(); ++number)
    if (words[number] == word) return static_cast<Enum>(number);
  return std::nullopt;
}

}  // namespace terrace::schema
