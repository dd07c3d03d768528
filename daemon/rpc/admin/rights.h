// SPDX-License-Identifier: Apache-2.0
// Who may call which method of the operator's interface. The one place where that is said: AdminServer asks here before
// any method begins, and what is not in the table is an administrator's.
//
// Threads   Any.
#pragma once

#include <capnp/schema.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/model/socket_role.h"

namespace terrace::daemon {

struct AdminMethod {
  const char* name = nullptr;  // as in the schema; null: there is no such method
  Authority needed = Authority::administrator;
  capnp::InterfaceSchema::Method schema;
};

// By the numbers of a call.
AdminMethod find_admin_method(uint64_t interface_id, uint16_t method_id);

// All that `authority` may call, as in the schema.
std::vector<std::string> admin_methods_of(Authority authority);

// Methods of the schema that the table does not name, and names in it that no method has: for a test.
std::vector<std::string> admin_methods_without_rights();
std::vector<std::string> rights_without_admin_method();

}  // namespace terrace::daemon
