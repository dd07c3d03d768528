// SPDX-License-Identifier: Apache-2.0
#include "core/schema/json.h"

#include <string>
#include <unordered_map>
#include <vector>

#include "core/schema/json_rules.h"
#include "core/schema/words.h"

namespace terrace::schema {
namespace {

using nlohmann::json;
using Field = capnp::StructSchema::Field;
using Reader = capnp::DynamicStruct::Reader;
using Type = capnp::schema::Type;

// Their numbers in json.capnp.
constexpr uint64_t key_id = 0xbc5a0b9e465f84f9;
constexpr uint64_t hidden_id = 0xa32bce833a280e21;
constexpr uint64_t nullable_id = 0xe351a8ba24900fa5;
constexpr uint64_t only_with_id = 0xcaefeba088932970;
// Of a field that is no member of a union.
constexpr uint16_t no_discriminant = capnp::schema::Field::NO_DISCRIMINANT;

std::string text_of(capnp::Text::Reader text) {
  return std::string(text.begin(), text.size());
}

// A struct's fields in the order of their numbers, with what annotations say of each: looked up once, since reading them
// for each of a thousand leases took most of the time of making their JSON.
struct FieldRules {
  Field field;
  JsonRules rules;
  bool in_union = false;
};

const std::vector<FieldRules>& fields_of(capnp::StructSchema schema) {
  thread_local std::unordered_map<uint64_t, std::vector<FieldRules>> known;
  std::vector<FieldRules>& fields = known[schema.getProto().getId()];
  if (fields.empty()) {
    for (const Field field : schema.getFields())
      fields.push_back(
          {field, json_rules_of(field), field.getProto().getDiscriminantValue() != no_discriminant});
  }
  return fields;
}

// Whether it has another value than its default; an empty text or list is as good as none.
bool is_set(Reader message, Field field) {
  switch (field.getType().which()) {
    case Type::TEXT: return message.get(field).as<capnp::Text>().size() != 0;
    case Type::LIST: return message.get(field).as<capnp::DynamicList>().size() != 0;
    default: return message.has(field, capnp::HasMode::NON_DEFAULT);
  }
}

// "ttlNs", "kind = root", "tenant != *".
bool holds(Reader message, const std::string& condition) {
  const size_t blank = condition.find(' ');
  const Field field = message.getSchema().getFieldByName(condition.substr(0, blank));
  if (blank == std::string::npos) return is_set(message, field);
  const bool negated = condition[blank + 1] == '!';
  const std::string wanted = condition.substr(condition.rfind(' ') + 1);
  return (text_of(message.get(field).as<capnp::Text>()) == wanted) != negated;
}

json to_json(capnp::DynamicValue::Reader value) {
  switch (value.getType()) {
    case capnp::DynamicValue::BOOL: return value.as<bool>();
    case capnp::DynamicValue::INT: return value.as<int64_t>();
    case capnp::DynamicValue::UINT: return value.as<uint64_t>();
    case capnp::DynamicValue::FLOAT: return value.as<double>();
    case capnp::DynamicValue::TEXT: return text_of(value.as<capnp::Text>());
    case capnp::DynamicValue::STRUCT: return schema::to_json(value.as<capnp::DynamicStruct>());
    case capnp::DynamicValue::ENUM: {
      const auto number = value.as<capnp::DynamicEnum>();
      const auto& words = words_of(number.getSchema());
      return number.getRaw() < words.size() ? words[number.getRaw()] : "unknown";
    }
    case capnp::DynamicValue::LIST: {
      json list = json::array();
      for (const auto element : value.as<capnp::DynamicList>()) list.push_back(to_json(element));
      return list;
    }
    default: return nullptr;  // capabilities and bytes are nothing for people
  }
}

}  // namespace

JsonRules json_rules_of(Field field) {
  JsonRules rules;
  for (const auto annotation : field.getProto().getAnnotations()) {
    switch (annotation.getId()) {
      case key_id: rules.key = text_of(annotation.getValue().getText()); break;
      case hidden_id: rules.hidden = true; break;
      case nullable_id: rules.nullable = true; break;
      case only_with_id: rules.only_with = text_of(annotation.getValue().getText()); break;
      default: break;
    }
  }
  if (rules.key.empty()) rules.key = snake_case(field.getProto().getName().cStr());
  return rules;
}

namespace {

json keys_of(Reader message, const std::set<std::string>* wanted) {
  json document = json::object();
  const auto add = [&](const FieldRules& known) {
    const auto& [field, rules, in_union] = known;
    if (rules.hidden || (wanted != nullptr && !wanted->contains(rules.key))) return;
    const bool none = (rules.nullable && !is_set(message, field)) ||
                      (!rules.only_with.empty() && !holds(message, rules.only_with));
    document[rules.key] = none ? json(nullptr) : to_json(message.get(field));
  };
  const std::vector<FieldRules>& fields = fields_of(message.getSchema());
  for (const FieldRules& field : fields)
    if (!field.in_union) add(field);
  KJ_IF_MAYBE (chosen, message.which()) add(fields[chosen->getIndex()]);
  return document;
}

}  // namespace

json to_json(Reader message) {
  return keys_of(message, nullptr);
}

json to_json(Reader message, const std::set<std::string>& keys) {
  return keys_of(message, &keys);
}

std::vector<std::string> json_keys(capnp::StructSchema schema) {
  std::vector<std::string> keys;
  for (const FieldRules& field : fields_of(schema))
    if (!field.rules.hidden) keys.push_back(field.rules.key);
  return keys;
}

}  // namespace terrace::schema
