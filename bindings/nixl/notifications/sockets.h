// SPDX-License-Identifier: Apache-2.0
// Addresses of sockets as text, and what stands behind them: "unix:@name" (abstract), "unix:/path", "tcp:HOST:PORT".
#pragma once

#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::nixl {

// Listens there. A port of 0 is replaced by the one that was given.
Result<UniqueFd> listen_at(std::string& address);
// Waits at most `seconds` for it. Errors: unavailable (nobody listens)
Result<UniqueFd> connect_to(const std::string& address, int seconds);
// Sockets in `folder` at which nobody listens any more are removed: their processes were killed.
void remove_dead_sockets(const std::string& folder);
// A name in `folder` that no other process takes; removed when its process ends in order.
std::string new_socket_path(const std::string& folder);
// `bytes` that nobody can guess.
Result<std::string> random_bytes(size_t bytes);

}  // namespace terrace::nixl
