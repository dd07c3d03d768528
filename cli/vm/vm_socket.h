// SPDX-License-Identifier: Apache-2.0
// Where `terrace vm resize` and the like find the command that keeps a machine's memory: a socket of its own in a
// folder of the user's, one line of JSON each way.
//
// Threads   The main thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

// $TERRACE_VM_DIR, else terrace-vm below $XDG_RUNTIME_DIR, below /run for root, or below /tmp; made if it is not there.
// Errors    permission_denied   it is there and another user's, or open to others
Result<std::string> vm_folder(const char* where);

// The path of the socket, or of QEMU's monitor, of the machine with that label.
std::string vm_socket_path(const std::string& folder, const std::string& label);
std::string vm_monitor_path(const std::string& folder, const std::string& label);
// The labels whose keepers have a socket there; some may have ended.
std::vector<std::string> vm_labels(const std::string& folder);

// The right to keep the machine with that label, as long as the descriptor is open.
// Errors    already_exists   another keeper has it
Result<UniqueFd> lock_vm(const std::string& folder, const std::string& label, const char* where);

// In the place of a socket that an earlier keeper left; the caller has the lock.
Result<UniqueFd> listen_at(const std::string& path, const char* where);

// Sends a request to the keeper of `label` and waits for the answer: a little longer than `timeout_ns`, which is how long
// the keeper itself waits for the guest.
// Errors    not_found     no keeper has that label
//           unavailable   it ended meanwhile, or does not answer; and what it answers
Result<nlohmann::json> ask_keeper(const std::string& label, const nlohmann::json& request, uint64_t timeout_ns,
                                  const char* where);

}  // namespace terrace::cli
