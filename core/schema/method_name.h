// SPDX-License-Identifier: Apache-2.0
// A method's name, by the struct that its parameters are in: "Admin.status".
//
// Threads   Any.
#pragma once

#include <capnp/schema.h>

#include <string>
#include <string_view>

namespace terrace::schema {

// Lives as long as the program.
template <typename Params>
std::string_view method_name() {
  static const std::string name = [] {
    // "core/schema/terrace.capnp:Admin.status$Params"
    const std::string whole = capnp::Schema::from<Params>().getProto().getDisplayName();
    const size_t begin = whole.rfind(':') + 1;
    return whole.substr(begin, whole.find('$', begin) - begin);
  }();
  return name;
}

}  // namespace terrace::schema
