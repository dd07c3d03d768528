// SPDX-License-Identifier: Apache-2.0
// One connection of an agent to the manager: its identity by its certificate, the state of its registration,
// and the sessions that it opened for programs on its host.
//
// Place     Agents makes one a connection; its capabilities (AgentGateway, Registration, AgentService) refer to
// it.
// Threads   The event loop's thread only.
// Invariant After end() nothing of Agents or Service is touched: capabilities may live on for a moment.
#pragma once

#include <kj/debug.h>
#include <kj/refcount.h>

#include <list>
#include <set>
#include <string>
#include <vector>

#include "daemon/hosts/agents.h"
#include "daemon/rpc/connection.h"

namespace terrace::daemon {

class AgentPeer final : public kj::Refcounted {
 public:
  AgentPeer(Agents& agents, std::string host, std::string address, CertificateFacts certificate);

  const std::string& host() const { return host_; }
  const std::string& address() const { return address_; }
  const CertificateFacts& certificate() const { return certificate_; }
  // What it was given since, or the same.
  const CertificateFacts& newest_certificate() const { return renewed_.der.empty() ? certificate_ : renewed_; }
  const std::string& version() const { return version_; }
  uint64_t instance() const { return instance_; }
  const std::vector<SeenDevice>& devices() const { return devices_; }
  bool registered() const { return instance_ != 0; }
  bool ended() const { return ended_; }
  rpc::HostAgent::Client& agent() {
    KJ_IF_MAYBE (there, agent_) return *there;
    KJ_FAIL_REQUIRE("this agent has not enrolled");
  }
  Agents& agents() { return agents_; }
  std::vector<WireExtent> wire_extents(const std::vector<Extent>& extents) const;

  // Has the connection closed, for a reason that goes into the log.
  void close(const std::string& reason);
  kj::Promise<void> on_close() { return kj::mv(closing_.promise); }
  // The connection is gone.
  void end();

  // From its capabilities.
  Status begin_registration(uint64_t instance, std::string version, std::vector<SeenDevice> devices,
                            rpc::HostAgent::Client agent);
  kj::Promise<Status> report(std::vector<WireObject> objects, const HostFencing& fencing);
  Status heartbeat(std::vector<SeenDevice> devices, const HostFencing& fencing);
  Result<std::string> renew_certificate();
  Result<rpc::TenantSession::Client> open_session(const std::string& tenant, const std::string& client,
                                                  uint32_t uid, rpc::LeaseListener::Client listener,
                                                  const std::string& trace);
  // Of what was reported: programs may have it.
  const std::set<std::string>& handed_out() const { return handed_out_; }
  std::vector<SeenDevice> adopted() const;
  std::vector<WireObject> assigned() const;

 private:
  struct Session {
    kj::Own<Connection> connection;
    kj::Promise<void> closing;  // ends it when it is to be closed
  };

  Agents& agents_;
  const std::string host_;
  const std::string address_;
  const CertificateFacts certificate_;
  CertificateFacts renewed_;
  std::string version_;
  uint64_t instance_ = 0;
  std::set<std::string> handed_out_;
  std::vector<SeenDevice> devices_;
  kj::Maybe<rpc::HostAgent::Client> agent_;
  std::list<Session> sessions_;
  bool reported_ = false;
  bool ended_ = false;
  kj::PromiseFulfillerPair<void> closing_;
};

rpc::AgentGateway::Client make_agent_gateway(kj::Own<AgentPeer> peer);

}  // namespace terrace::daemon
