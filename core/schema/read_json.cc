// SPDX-License-Identifier: Apache-2.0
#include "core/schema/read_json.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/schema/json_rules.h"
#include "core/schema/words.h"

namespace terrace::schema {
namespace {

using nlohmann::json;
using Builder = capnp::DynamicStruct::Builder;
using Field = capnp::StructSchema::Field;
using Type = capnp::schema::Type;

constexpr size_t shown_bytes_max = 64;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// A piece of what was sent, for people: it may be anything, and of any length.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > shown_bytes_max) text = text.substr(0, shown_bytes_max) + "...";
  return text;
}

bool in_union(Field field) {
  return field.getProto().getDiscriminantValue() != capnp::schema::Field::NO_DISCRIMINANT;
}

// The reader of one struct within another: `at` is the way to it, "drain." or "".
std::string read_struct(const json& document, Builder message, const std::string& at,
                        const std::set<std::string>& only);

std::string wrong(const std::string& at, const json& value, const std::string& wanted) {
  return at + ": " + shown(value) + " is no " + wanted;
}

std::string read_number(const json& value, Builder message, Field field, const std::string& at, uint64_t most) {
  const bool whole = value.is_number_unsigned();
  if (!whole || value.get<uint64_t>() > most)
    return wrong(at, value, "whole number from 0 to " + std::to_string(most));
  message.set(field, value.get<uint64_t>());
  return "";
}

std::string read_value(const json& value, Builder message, Field field, const std::string& at) {
  switch (field.getType().which()) {
    case Type::BOOL:
      if (!value.is_boolean()) return wrong(at, value, "true or false");
      message.set(field, value.get<bool>());
      return "";
    case Type::UINT16: return read_number(value, message, field, at, UINT16_MAX);
    case Type::UINT32: return read_number(value, message, field, at, UINT32_MAX);
    case Type::UINT64: return read_number(value, message, field, at, UINT64_MAX);
    case Type::TEXT: {
      if (!value.is_string()) return wrong(at, value, "text");
      const auto& text = value.get_ref<const std::string&>();
      if (text.find('\0') != std::string::npos) return at + ": a text has no zero characters";
      message.set(field, capnp::Text::Reader(text.c_str(), text.size()));
      return "";
    }
    case Type::ENUM: {
      const auto type = field.getType().asEnum();
      const std::vector<std::string>& words = words_of(type);
      const auto word =
          value.is_string() ? std::find(words.begin(), words.end(), value.get<std::string>()) : words.end();
      if (word == words.end()) return wrong(at, value, "one of " + joined(words));
      message.set(field, capnp::DynamicEnum(type, static_cast<uint16_t>(word - words.begin())));
      return "";
    }
    case Type::STRUCT: return read_struct(value, message.init(field).as<capnp::DynamicStruct>(), at + ".", {});
    default: return at + ": cannot be given as JSON";
  }
}

std::string read_struct(const json& document, Builder message, const std::string& at,
                        const std::set<std::string>& only) {
  const std::string where = at.empty() ? "what was sent" : at.substr(0, at.size() - 1);
  if (!document.is_object()) return where + ": " + shown(document) + " is no object with keys";
  std::vector<std::string> known;
  for (const Field field : message.getSchema().getFields()) {
    const JsonRules rules = json_rules_of(field);
    if (!rules.hidden && (only.empty() || only.contains(rules.key))) known.push_back(rules.key);
  }
  std::string chosen;  // of a union
  for (const auto& [key, value] : document.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return where + " has no key " + shown(key) + "; there " +
             (known.empty() ? "is none" : "are " + joined(known));
    for (const Field field : message.getSchema().getFields()) {
      const JsonRules rules = json_rules_of(field);
      if (rules.key != key || rules.hidden) continue;
      if (in_union(field) && !chosen.empty())
        return where + ": " + chosen + " and " + key + " exclude each other";
      if (in_union(field)) chosen = key;
      if (value.is_null() && rules.nullable) continue;
      if (std::string problem = read_value(value, message, field, at + key); !problem.empty()) return problem;
    }
  }
  return "";
}

}  // namespace

std::string read_json(const json& document, Builder message, const std::set<std::string>& only) {
  return read_struct(document, message, "", only);
}

}  // namespace terrace::schema
