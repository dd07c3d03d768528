// SPDX-License-Identifier: Apache-2.0
// The shape of a message's JSON (core/schema/json.h), as OpenAPI 3.1 describes shapes.
//
// Threads   Any.
#pragma once

#include <capnp/schema.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace terrace::schema {

// Of the structs by their names ("PoolInfo"), for "components/schemas".
using JsonShapes = std::map<std::string, nlohmann::json>;

// The shape of a struct; those of structs within it are added to `shapes` and referred to.
nlohmann::json json_shape_of(capnp::StructSchema type, JsonShapes& shapes);

}  // namespace terrace::schema
