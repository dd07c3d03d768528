// SPDX-License-Identifier: Apache-2.0
// Reads one table of the TOML file: every mistake is noted with its line, and reading goes on.
//
// Place     config_file.cc and sockets.cc only: toml++ stays out of config.h.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/units.h"

namespace terrace::daemon {

// One table of the file: known keys are taken out of it, whatever is left over is a mistake.
class Section {
 public:
  Section(const std::string& path, const toml::table& table, std::string name,
          std::vector<std::string>& problems)
      : path_(path), table_(table), name_(std::move(name)), problems_(problems) {}

  void text(const char* key, std::string& out) {
    if (const toml::node* node = take(key)) {
      if (const auto value = node->value_exact<std::string>()) {
        out = *value;
      } else {
        problem(*node, key, "must be a text in quotes");
      }
    }
  }
  // A word, or "true" or "false" of a key that had these before.
  void word(const char* key, std::string& out) {
    if (const toml::node* node = take(key)) {
      if (const auto value = node->value_exact<std::string>()) {
        out = *value;
      } else if (const auto before = node->value_exact<bool>()) {
        out = *before ? "true" : "false";
      } else {
        problem(*node, key, "must be a word in quotes");
      }
    }
  }
  void boolean(const char* key, bool& out) {
    if (const toml::node* node = take(key)) {
      if (const auto value = node->value_exact<bool>()) {
        out = *value;
      } else {
        problem(*node, key, "must be true or false");
      }
    }
  }
  void number(const char* key, uint32_t& out) {
    if (const toml::node* node = take(key)) {
      const auto value = node->value_exact<int64_t>();
      if (value.has_value() && *value >= 0 && *value <= UINT32_MAX) {
        out = static_cast<uint32_t>(*value);
      } else {
        problem(*node, key, "must be a whole number from 0 to 4294967295");
      }
    }
  }
  // From 0 to 1.
  void ratio(const char* key, double& out) {
    const toml::node* node = take(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value.has_value() || !(*value >= 0 && *value <= 1)) {
      problem(*node, key, "must be a number from 0 to 1");
    } else {
      out = *value;
    }
  }
  void duration(const char* key, uint64_t& out) {
    if (const toml::node* node = take(key)) {
      const auto value = node->value_exact<std::string>();
      const auto parsed = parse_duration(value.value_or(""));
      if (value.has_value() && parsed.ok()) {
        out = *parsed;
      } else {
        problem(*node, key, "must be a duration in quotes, as \"30s\", \"10m\" or \"7d\"");
      }
    }
  }
  void size(const char* key, uint64_t& out) {
    if (const toml::node* node = take(key)) {
      const auto value = node->value_exact<std::string>();
      const auto parsed = parse_size(value.value_or(""));
      if (value.has_value() && parsed.ok()) {
        out = *parsed;
      } else {
        problem(*node, key, "must be a size in quotes, as \"512M\" or \"2G\"");
      }
    }
  }
  const toml::table* table(const char* key) {
    const toml::node* node = take(key);
    if (node == nullptr) return nullptr;
    if (const toml::table* found = node->as_table()) return found;
    problem(*node, key, "must be a table: write it as [" + std::string(key) + "]");
    return nullptr;
  }
  const toml::array* array(const char* key) {
    const toml::node* node = take(key);
    if (node == nullptr) return nullptr;
    if (const toml::array* found = node->as_array()) return found;
    problem(*node, key, "must be a list in [ ]");
    return nullptr;
  }

  // A user's or group's number, or its name, for which `find` has the number.
  void id(const char* key, const char* what, std::optional<uint32_t> (*find)(const std::string&),
          std::optional<uint32_t>& out) {
    const toml::node* node = take(key);
    if (node == nullptr) return;
    const auto number = node->value_exact<int64_t>();
    const auto name = node->value_exact<std::string>();
    if (number.has_value() && *number >= 0 && *number < UINT32_MAX) {
      out = static_cast<uint32_t>(*number);
    } else if (name.has_value() && find(*name).has_value()) {
      out = find(*name);
    } else {
      problem(*node, key,
              name.has_value() ? "'" + *name + "' is no " + what + " of this machine"
                               : std::string("must be a ") + what + "'s name in quotes, or its number");
    }
  }

  void problem(const toml::node& at, const std::string& key, const std::string& what) {
    problems_.push_back(path_ + ":" + std::to_string(at.source().begin.line) + ": " +
                        (name_.empty() ? "" : name_ + ".") + key + " " + what);
  }
  // A table within this one.
  Section inner(const toml::table& table, std::string name) const {
    return Section(path_, table, std::move(name), problems_);
  }
  // Every key that nothing asked for.
  void finish() {
    for (const auto& [key, node] : table_) {
      if (known_.contains(std::string(key.str()))) continue;
      std::string names;
      for (const std::string& name : known_) names += (names.empty() ? "" : ", ") + name;
      problems_.push_back(path_ + ":" + std::to_string(key.source().begin.line) + ": unknown key '" +
                          std::string(key.str()) + "'" + (name_.empty() ? "" : " in [" + name_ + "]") +
                          "; known are " + names);
    }
  }

 private:
  const toml::node* take(const char* key) {
    known_.insert(key);
    return table_.get(key);
  }

  const std::string& path_;
  const toml::table& table_;
  std::string name_;
  std::vector<std::string>& problems_;
  std::set<std::string> known_;
};

}  // namespace terrace::daemon
