// SPDX-License-Identifier: Apache-2.0
// What the schema says of a field's JSON: json.capnp's annotations.
//
// Place     Inside core/schema: json.cc, json_schema.cc.
#pragma once

#include <capnp/schema.h>

#include <string>

namespace terrace::schema {

struct JsonRules {
  std::string key;
  bool hidden = false;
  bool nullable = false;
  std::string only_with;  // empty: always
};

JsonRules json_rules_of(capnp::StructSchema::Field field);

}  // namespace terrace::schema
