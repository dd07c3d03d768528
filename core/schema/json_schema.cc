// SPDX-License-Identifier: Apache-2.0
#include "core/schema/json_schema.h"

#include "core/schema/json_rules.h"
#include "core/schema/words.h"

namespace terrace::schema {
namespace {

using nlohmann::json;
using Type = capnp::schema::Type;

// "terrace.capnp:PoolInfo" -> "PoolInfo".
std::string short_name(capnp::Schema type) {
  const std::string name = type.getShortDisplayName().cStr();
  return name;
}

json shape_of(capnp::Type type, JsonShapes& shapes) {
  switch (type.which()) {
    case Type::BOOL: return {{"type", "boolean"}};
    case Type::INT8:
    case Type::INT16:
    case Type::INT32:
    case Type::INT64: return {{"type", "integer"}, {"format", "int64"}};
    case Type::UINT8:
    case Type::UINT16:
    case Type::UINT32:
    case Type::UINT64: return {{"type", "integer"}, {"minimum", 0}};
    case Type::FLOAT32:
    case Type::FLOAT64: return {{"type", "number"}};
    case Type::TEXT: return {{"type", "string"}};
    case Type::ENUM: return {{"type", "string"}, {"enum", words_of(type.asEnum())}};
    case Type::LIST: return {{"type", "array"}, {"items", shape_of(type.asList().getElementType(), shapes)}};
    case Type::STRUCT: {
      const std::string name = short_name(type.asStruct());
      if (!shapes.contains(name)) {
        shapes[name] = json::object();  // for a struct within itself
        json shape = json_shape_of(type.asStruct(), shapes);
        shapes[name] = std::move(shape);
      }
      return {{"$ref", "#/components/schemas/" + name}};
    }
    default: return {{"type", "null"}};
  }
}

}  // namespace

json json_shape_of(capnp::StructSchema type, JsonShapes& shapes) {
  json properties = json::object();
  for (const auto field : type.getFields()) {
    const JsonRules rules = json_rules_of(field);
    if (rules.hidden) continue;
    json shape = shape_of(field.getType(), shapes);
    if (rules.nullable || !rules.only_with.empty()) shape = {{"anyOf", {shape, {{"type", "null"}}}}};
    properties[rules.key] = std::move(shape);
  }
  return {{"type", "object"}, {"properties", std::move(properties)}};
}

}  // namespace terrace::schema
