// SPDX-License-Identifier: Apache-2.0
// What an agent answers over HTTP: /healthz, /readyz, /metrics, and of /api/v1/ what it answers to operators at its socket.
//
// Place     daemon/role_agent.cc gives one to its WebServer.
// Threads   The event loop's thread only.
#pragma once

#include "daemon/agent/local_service.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

class AgentPages final : public WebPages {
 public:
  explicit AgentPages(LocalService& service) : service_(service) {}
  kj::Promise<WebAnswer> answer(const PeerCredentials& peer, const std::string& path,
                                const FileWishes& wishes) override;

 private:
  kj::Promise<WebAnswer> api(const PeerCredentials& peer, const std::string& path);
  // 403. An agent has no audit log; its own log has a line, within bounds.
  WebAnswer deny(const PeerCredentials& peer, const char* what);

  LocalService& service_;
};

}  // namespace terrace::daemon
