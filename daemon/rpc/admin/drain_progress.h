// SPDX-License-Identifier: Apache-2.0
// Drains and compactions as the operator sees them: which leases should leave their place, what each waits for,
// and which of them will not go by themselves.
//
// Threads   The event loop's thread only. O(leases).
#pragma once

#include "core/schema/terrace.capnp.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {

void write_progress(rpc::DeviceProgress::Builder out, const DeviceRow& device, Service& service);
void write_compaction(rpc::Compaction::Builder out, const PoolRow& pool, Service& service);

}  // namespace terrace::daemon
