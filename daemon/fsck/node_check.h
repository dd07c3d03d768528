// SPDX-License-Identifier: Apache-2.0
// The check's look at memory nodes: their objects are files of directories of their own, one a node.
//
// Threads   Plain functions; only read. Nothing is mounted or made.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "daemon/fsck/process_scan.h"
#include "daemon/memory/backend.h"

namespace terrace::daemon {

// Who maps or holds objects of nodes; their names are as in the store, "numa:lease-7".
std::vector<LiveMapping> scan_node_mappings(const std::string& runtime_directory,
                                            std::chrono::milliseconds time_max = std::chrono::seconds(5));

// The objects that a daemon with this runtime directory left on nodes.
// Errors    as list_objects()
Result<std::vector<ObservedObject>> list_node_objects(const std::string& runtime_directory);

// The nodes that could be devices, as the numa backend would show those that are adopted.
std::vector<SeenDevice> discover_nodes(const std::vector<KnownDevice>& known);

}  // namespace terrace::daemon
