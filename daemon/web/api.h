// SPDX-License-Identifier: Apache-2.0
// The operator's interface as JSON over HTTP: GET /api/v1/PATH is a method of Admin that changes nothing, asked as the
// peer that it is, so that rights, bounds and the log of what was denied are those of the RPC. acts.h has those that change
// something.
//
// Threads   The event loop's thread only.
#pragma once

#include <capnp/dynamic.h>
#include <kj/async.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/schema/json_schema.h"
#include "core/schema/terrace.capnp.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

// Which of all paths there are, behind "/api/v1/": an agent answers few of them. Empty: all.
using ApiNames = std::span<const std::string_view>;

// Makes the operator's interface for who asks for `method`, or says why not. What it returns keeps what it needs.
using OpenApi = std::function<std::variant<rpc::Admin::Client, WebAnswer>(const char* method)>;

// `path` is what is behind "/api/v1/", with its query: "leases?pool=main&limit=100".
kj::Promise<WebAnswer> ask_api(const std::string& path, ApiNames names, const OpenApi& open);

// A method's results as an answer, without its `error` where there was none. `keys`: of each row those that are wanted;
// empty: all.
WebAnswer answer_of_results(capnp::DynamicStruct::Reader results, capnp::InterfaceSchema::Method method,
                            const std::set<std::string>& keys);

// The OpenAPI 3.1 document of these paths, made from the schema.
nlohmann::json open_api(ApiNames names = {});

}  // namespace terrace::daemon
