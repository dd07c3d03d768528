// SPDX-License-Identifier: Apache-2.0
// A tenant's view of its leases, for users who are no administrators.
#pragma once

#include "cli/client/lease_client.h"

namespace terrace::cli {

struct Connection;

// Errors    permission_denied  this uid has no tenant there
Result<std::unique_ptr<LeaseClient>> make_tenant_client(std::unique_ptr<Connection> connection);

}  // namespace terrace::cli
