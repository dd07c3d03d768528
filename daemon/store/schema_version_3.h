// Migration 3: the coherence of pools, and the owners of parts of leases.
#pragma once

#include "core/base/result.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

// Replaces the table of pools and adds that of owners. All rows of version 2 are verified against their
// checksums and their seal first; those of other tables stay as they are.
// Errors    corrupt   a row of version 2 is not what was written
Status migrate_to_version_3(Connection& connection);

}  // namespace terrace::daemon
