// Messages of the schema as JSON: a key for each field, its name in snake_case, with numbers as numbers and enums
// as words. What differs from that, the schema itself says (json.capnp).
//
// Threads   Any.
#pragma once

#include <capnp/dynamic.h>

#include <nlohmann/json.hpp>

#include "core/schema/message.h"

namespace terrace::schema {

// Of any reader. Fields that this side's schema does not have are left out; a number without a word is "unknown".
nlohmann::json to_json(capnp::DynamicStruct::Reader message);

template <typename Struct>
nlohmann::json to_json(const Message<Struct>& message) {
  return to_json(capnp::DynamicStruct::Reader(*message));
}

// Of readers or messages, or of a list of the schema's.
template <typename Items>
nlohmann::json to_json_list(const Items& items) {
  auto list = nlohmann::json::array();
  for (const auto& item : items) list.push_back(to_json(item));
  return list;
}

}  // namespace terrace::schema
