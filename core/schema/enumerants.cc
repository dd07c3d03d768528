// SPDX-License-Identifier: Apache-2.0
#include "core/schema/enumerants.h"

#include <set>

namespace terrace::schema {
namespace {

using Type = capnp::schema::Type;

bool may_hold_enums(capnp::Type type, std::set<uint64_t>& seen);

bool may_hold_enums(capnp::StructSchema type, std::set<uint64_t>& seen) {
  if (!seen.insert(type.getProto().getId()).second) return false;
  for (const auto field : type.getFields())
    if (may_hold_enums(field.getType(), seen)) return true;
  return false;
}

bool may_hold_enums(capnp::Type type, std::set<uint64_t>& seen) {
  switch (type.which()) {
    case Type::ENUM: return true;
    case Type::STRUCT: return may_hold_enums(type.asStruct(), seen);
    case Type::LIST: return may_hold_enums(type.asList().getElementType(), seen);
    default: return false;
  }
}

std::string unknown_in(capnp::DynamicValue::Reader value, const std::string& name) {
  switch (value.getType()) {
    case capnp::DynamicValue::ENUM: {
      const auto number = value.as<capnp::DynamicEnum>();
      return number.getEnumerant() == nullptr ? name + " is " + std::to_string(number.getRaw()) : std::string();
    }
    case capnp::DynamicValue::STRUCT: {
      const std::string below = unknown_enumerant(value.as<capnp::DynamicStruct>());
      return below.empty() ? std::string() : name + "." + below;
    }
    case capnp::DynamicValue::LIST: {
      const auto list = value.as<capnp::DynamicList>();
      std::set<uint64_t> seen;
      if (!may_hold_enums(list.getSchema().getElementType(), seen)) return {};
      for (const auto element : list)
        if (std::string found = unknown_in(element, name); !found.empty()) return found;
      return {};
    }
    default: return {};
  }
}

}  // namespace

bool may_hold_enums(capnp::StructSchema type) {
  std::set<uint64_t> seen;
  return may_hold_enums(type, seen);
}

std::string unknown_enumerant(capnp::DynamicStruct::Reader message) {
  const auto look = [&message](capnp::StructSchema::Field field) {
    const auto kind = field.getType().which();
    const bool below = kind == Type::STRUCT || kind == Type::LIST;
    if (kind != Type::ENUM && !(below && message.has(field))) return std::string();
    return unknown_in(message.get(field), field.getProto().getName().cStr());
  };
  for (const auto field : message.getSchema().getNonUnionFields())
    if (std::string found = look(field); !found.empty()) return found;
  KJ_IF_MAYBE (chosen, message.which()) return look(*chosen);
  return {};
}

}  // namespace terrace::schema
