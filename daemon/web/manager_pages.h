// SPDX-License-Identifier: Apache-2.0
// What a manager answers over HTTP: /healthz, /readyz, /metrics, /api/v1/..., the console, and a page that leads to them.
// Changes are calls of Admin by whoever asks (acts.h); the planner computes from what is sent.
//
// Place     daemon/role_manager.cc gives one to its WebServer.
// Threads   The event loop's thread only.
#pragma once

#include "daemon/rpc/service.h"
#include "daemon/web/planner.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

class ManagerPages final : public WebPages {
 public:
  ManagerPages(Service& service, kj::Timer& timer)
      : service_(service), timer_(timer), planner_(service, timer) {}
  kj::Promise<WebAnswer> answer(const PeerCredentials& peer, const std::string& path,
                                const FileWishes& wishes) override;
  bool takes(const std::string& place) const override;
  kj::Promise<WebAnswer> take(const PeerCredentials& peer, WebPost post) override;

 private:
  kj::Promise<WebAnswer> api(const PeerCredentials& peer, const std::string& path);

  Service& service_;
  kj::Timer& timer_;
  Planner planner_;
};

}  // namespace terrace::daemon
