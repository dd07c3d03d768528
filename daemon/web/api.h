// The operator's interface as JSON over HTTP, to be read only: /api/v1/PATH is a method of Admin, asked as the peer
// that it is, so that rights, bounds and the log of what was denied are those of the RPC.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/rpc/service.h"

namespace terrace::daemon {

struct WebAnswer {
  unsigned status = 200;
  std::string type = "application/json";
  std::string body;
  // Of a file that may be kept by who asked, as long as this names it; empty: what changes with every question.
  std::string etag = {};
  bool gzip = false;          // how `body` is packed
  std::string policy = {};    // Content-Security-Policy; empty: the usual one
  std::string location = {};  // of a redirection
};

// {"error": {"code", "message"}} with the HTTP status that stands for it.
WebAnswer web_error(const Error& error);
WebAnswer web_json(const nlohmann::json& document);

// 403, and a line in the audit log.
WebAnswer deny_api(Service& service, const PeerCredentials& peer, const char* what);

// `path` is what is behind "/api/v1/", with its query: "leases?pool=main&limit=100".
kj::Promise<WebAnswer> ask_api(Service& service, const PeerCredentials& peer, const std::string& path);

// The OpenAPI 3.1 document of all paths, made from the schema.
nlohmann::json open_api();

}  // namespace terrace::daemon
