// SPDX-License-Identifier: Apache-2.0
// What is answered over HTTP, and who makes it.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "daemon/rpc/peer_limits.h"
#include "daemon/web/request_guard.h"

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
  std::string allowed = {};   // methods that the path has, where another was used
};

// {"error": {"code", "message"}} with the HTTP status that stands for it.
WebAnswer web_error(const Error& error);
WebAnswer web_json(const nlohmann::json& document);
// As web_error, with a status of its own.
WebAnswer web_refusal(unsigned status, ErrorCode code, std::string why);
WebAnswer web_text(unsigned status, std::string text);

// What of a request decides how a file is sent.
struct FileWishes {
  std::string_view accepted;  // Accept-Encoding
  std::string_view known;     // If-None-Match
};

// A request that brings something. All of it lives until the answer is there.
struct WebPost {
  std::string path;  // with its query
  ActHeaders headers;
  kj::AsyncInputStream& body;
  std::function<kj::Promise<void>()> turn;  // whose it is, once the body has taken its time
  std::function<bool()> gone;               // whether who asked is away
};

// What a WebServer serves: a manager's pages, or an agent's.
class WebPages {
 public:
  virtual ~WebPages() noexcept(false) = default;
  // `path` with its query. `wishes` lives until this returns.
  virtual kj::Promise<WebAnswer> answer(const PeerCredentials& peer, const std::string& path,
                                        const FileWishes& wishes) = 0;
  // Whether `place` (a path without its query) is for POST, and for nothing else.
  virtual bool takes(const std::string& place) const {
    (void)place;
    return false;
  }
  // Of such a place. Who asks from where is for the pages to look at (request_guard.h).
  virtual kj::Promise<WebAnswer> take(const PeerCredentials& peer, WebPost post) {
    (void)peer, (void)post;
    return web_refusal(405, ErrorCode::unsupported, "only GET: nothing can be changed here");
  }
};

// `path` without its query.
std::string web_place(const std::string& path);
WebAnswer web_nothing_here();

}  // namespace terrace::daemon
