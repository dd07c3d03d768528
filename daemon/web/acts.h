// SPDX-License-Identifier: Apache-2.0
// Methods of Admin that change something, as POST /api/v1/PATH with their parameters as JSON: rights, bounds, the audit
// log and words are those of the RPC, as for the paths that only read (api.h).
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/timer.h>

#include <string>

#include "daemon/rpc/service.h"
#include "daemon/web/api.h"

namespace terrace::daemon {

// A body is the parameters of one call: a grant has some 300 bytes.
inline constexpr uint64_t act_body_bytes_max = 64 * 1024;

bool is_act(const std::string& place);  // "/api/v1/drain", without a query

// Does it in the peer's name, once the body is there. Plain TCP, and what another site's page may have sent, are refused.
// `peer` lives until the answer is there.
// Errors (as answers)   400 with the key that is wrong, 403, 413, 415, what ask_api has
kj::Promise<WebAnswer> take_act(Service& service, kj::Timer& timer, const PeerCredentials& peer, WebPost post);

// Their part of the OpenAPI document.
void add_acts(nlohmann::json& paths, schema::JsonShapes& shapes);

}  // namespace terrace::daemon
