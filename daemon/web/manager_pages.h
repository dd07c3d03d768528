// What a manager answers over HTTP: /healthz, /readyz, /metrics, /api/v1/..., the console, and a page that leads to them.
//
// Place     daemon/role_manager.cc gives one to its WebServer.
// Threads   The event loop's thread only.
#pragma once

#include "daemon/rpc/service.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

class ManagerPages final : public WebPages {
 public:
  explicit ManagerPages(Service& service) : service_(service) {}
  kj::Promise<WebAnswer> answer(const PeerCredentials& peer, const std::string& path,
                                const FileWishes& wishes) override;

 private:
  kj::Promise<WebAnswer> api(const PeerCredentials& peer, const std::string& path);
  // 403, and a line in the audit log.
  WebAnswer deny(const PeerCredentials& peer, const char* what);

  Service& service_;
};

}  // namespace terrace::daemon
