// What is answered over HTTP, and who makes it.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "daemon/rpc/peer_limits.h"

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
WebAnswer web_text(unsigned status, std::string text);

// What of a request decides how a file is sent.
struct FileWishes {
  std::string_view accepted;  // Accept-Encoding
  std::string_view known;     // If-None-Match
};

// What a WebServer serves: a manager's pages, or an agent's.
class WebPages {
 public:
  virtual ~WebPages() noexcept(false) = default;
  // `path` with its query. `wishes` lives until this returns.
  virtual kj::Promise<WebAnswer> answer(const PeerCredentials& peer, const std::string& path,
                                        const FileWishes& wishes) = 0;
};

// `path` without its query.
std::string web_place(const std::string& path);
WebAnswer web_nothing_here();

}  // namespace terrace::daemon
