// SPDX-License-Identifier: Apache-2.0
// JSON as messages of the schema: the other way of json.h, with the same keys.
//
// Threads   Any.
#pragma once

#include <capnp/dynamic.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace terrace::schema {

// Sets in `message` what `document` has. Nothing is guessed: a key that the struct does not have, a value of another kind,
// or two keys of one union is refused, and `message` is then of no use. null is "not set" where to_json may write it.
// `only`: the keys that count, of this struct itself; empty: all of its keys.
// Returns  what is wrong, with the key that it is at ("drain.serial"); empty: nothing.
std::string read_json(const nlohmann::json& document, capnp::DynamicStruct::Builder message,
                      const std::set<std::string>& only = {});

}  // namespace terrace::schema
