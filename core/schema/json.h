// SPDX-License-Identifier: Apache-2.0
// Messages of the schema as JSON: a key for each field, its name in snake_case, with numbers as numbers and enums
// as words. What differs from that, the schema itself says (json.capnp).
//
// Threads   Any.
#pragma once

#include <capnp/dynamic.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/schema/message.h"

namespace terrace::schema {

// Of any reader. Fields that this side's schema does not have are left out; a number without a word is "unknown".
nlohmann::json to_json(capnp::DynamicStruct::Reader message);

template <typename Struct>
nlohmann::json to_json(const Message<Struct>& message) {
  return to_json(capnp::DynamicStruct::Reader(*message));
}

// Only the keys named, in the order of the schema; other keys are not looked at, which is most of the cost of a long list.
nlohmann::json to_json(capnp::DynamicStruct::Reader message, const std::set<std::string>& keys);

// The keys that a struct's JSON can have.
std::vector<std::string> json_keys(capnp::StructSchema schema);

// Of readers or messages, or of a list of the schema's.
template <typename Items>
nlohmann::json to_json_list(const Items& items) {
  auto list = nlohmann::json::array();
  for (const auto& item : items) list.push_back(to_json(item));
  return list;
}

}  // namespace terrace::schema
