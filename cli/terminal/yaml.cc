// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/yaml.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace terrace::cli {
namespace {

// Numbers, words and quoted texts of JSON are YAML as they are.
std::string scalar_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string key_text(const std::string& key) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyz_";
  constexpr const char* words[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
  const bool meant = std::find(std::begin(words), std::end(words), key) != std::end(words);
  const bool is_plain = !key.empty() && key.find_first_not_of(plain) == std::string::npos && !meant;
  return is_plain ? key : scalar_text(key);
}

void add_value(const nlohmann::json& value, size_t indent, std::string& text);

// The keys of an object; the first one's blanks are there already where it follows a dash.
void add_object(const nlohmann::json& object, size_t indent, bool first_is_placed, std::string& text) {
  for (auto field = object.begin(); field != object.end(); ++field) {
    if (!(first_is_placed && field == object.begin())) text += std::string(indent, ' ');
    text += key_text(field.key()) + ":";
    add_value(field.value(), indent + 2, text);
  }
}

// What stands behind "key:".
void add_value(const nlohmann::json& value, size_t indent, std::string& text) {
  if (!value.is_structured() || value.empty()) {
    text += " " + scalar_text(value) + "\n";
    return;
  }
  text += "\n";
  if (value.is_object()) {
    add_object(value, indent, false, text);
    return;
  }
  for (const nlohmann::json& item : value) {
    text += std::string(indent - 2, ' ') + "-";
    if (item.is_object() && !item.empty()) {
      text += " ";
      add_object(item, indent, true, text);
    } else {
      add_value(item, indent + 2, text);
    }
  }
}

}  // namespace

std::string to_yaml(const nlohmann::json& document) {
  std::string text = "---";
  add_value(document, document.is_array() ? 2 : 0, text);
  return text;
}

}  // namespace terrace::cli
