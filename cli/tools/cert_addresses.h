// SPDX-License-Identifier: Apache-2.0
// The addresses by which a browser finds a manager, as alternative names in its certificate. Agents and clients look for the
// name that every manager's has, whatever the address.
//
// Threads   Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/tools/cert_files.h"

namespace terrace::cli {

// Those of manager `name`, as libcrypto takes them: the fixed name, its own, and `addresses`, which are DNS names or IP
// addresses.
// Errors    invalid_argument   one is neither; says which
Result<std::string> manager_names(const std::string& name, const std::vector<std::string>& addresses);

// DNS names and IP addresses in a certificate, but for the name that every manager's has.
std::vector<std::string> addresses_of(const X509& certificate);

}  // namespace terrace::cli
