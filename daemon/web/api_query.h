// SPDX-License-Identifier: Apache-2.0
// What an URL's query asks of a method of Admin: its parameters by name, and which fields of each row are wanted.
//
// Threads   Any.
#pragma once

#include <capnp/dynamic.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

// "a=1&b=x%20y" as its parts, in order.
std::vector<std::pair<std::string, std::string>> query_parts(std::string_view query);

// What is wrong with a query, as an error of the interface.
Error web_usage(std::string detail);

// The fields that a query may set: those of the parameters, or of the one struct that they are.
capnp::StructSchema asked_fields(capnp::InterfaceSchema::Method method);

// The list of rows that a method answers with; nullopt where there is none, or more than one.
std::optional<capnp::StructSchema::Field> rows_of(capnp::InterfaceSchema::Method method);

// Sets `params` as `query` says ("pool=main&limit=100&fields=id,bytes"). `keys`: the fields of each row that are wanted;
// empty: all of them.
// Errors    invalid_argument   a name that is not known: says which there are; a value of another kind
Status set_params(capnp::DynamicStruct::Builder params, capnp::InterfaceSchema::Method method,
                  std::string_view query, std::set<std::string>& keys);

// A page becomes JSON between the manager's other work: whoever wants more asks again, behind the last row.
void bound_rows(capnp::DynamicStruct::Builder params, capnp::InterfaceSchema::Method method);

// Whether the call would wait: that is for the unix socket of the RPC, since over HTTP nobody notices that who asked has
// gone.
bool waits(capnp::DynamicStruct::Reader params, capnp::InterfaceSchema::Method method);

}  // namespace terrace::daemon
