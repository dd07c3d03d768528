// SPDX-License-Identifier: Apache-2.0
// What libcxl, libdaxctl and libndctl say, each in a context of its own. Internal to daemon/inventory.
#pragma once

#include "daemon/inventory/inventory.h"

namespace terrace::inventory {

// Memdevs and decoders. `health`: ask each mailbox (Get Health Info; a question, nothing is set).
void read_cxl(Inventory& inventory, bool health);
// Dax regions and devices; needs the regions to name those of CXL memory.
void read_dax(Inventory& inventory);
void read_namespaces(Inventory& inventory);

}  // namespace terrace::inventory
