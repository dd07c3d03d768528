// SPDX-License-Identifier: Apache-2.0
// Numbers of enums without a name in this side's schema, from a newer peer. Their meaning cannot be guessed, so
// the receiver refuses the call.
//
// Threads   Any.
#pragma once

#include <capnp/dynamic.h>

#include <string>

namespace terrace::schema {

// Whether messages of this struct can hold an enum, in themselves or below.
bool may_hold_enums(capnp::StructSchema type);

// The first such number in the message or below it, in words ("request.mode is 7"); empty: there is none.
std::string unknown_enumerant(capnp::DynamicStruct::Reader message);

// The same of a struct of generated code; costs nothing for types without enums.
template <typename Struct>
std::string unknown_enumerant_in(typename Struct::Reader message) {
  static const bool possible = may_hold_enums(capnp::Schema::from<Struct>());
  return possible ? unknown_enumerant(message) : std::string();
}

}  // namespace terrace::schema
