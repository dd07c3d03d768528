// SPDX-License-Identifier: Apache-2.0
// The agent's service on its host: the gateway, tenant sessions and leases of terrace.capnp, each passed
// through to the manager, with descriptors of this host's own memory objects. It decides nothing; while the
// manager is away it answers within the promises made before.
//
//   program ─ unix socket ─► gateway ─► LocalSession ─► manager's TenantSession, opened for its tenant
//                                          └─ LocalLease ─► manager's Lease  +  the object's descriptor here
//
// Threads   The event loop's thread only.
// Invariant L1  a capability handed out here has a descriptor of an object that was granted to this host
//           L2  without the manager nothing is said to last beyond the host lease, nor beyond the lease's own
//               expiry as the manager gave it last
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "daemon/agent/orders.h"
#include "daemon/agent/uplink.h"
#include "daemon/rpc/answers.h"
#include "daemon/rpc/connection/server.h"

namespace terrace::daemon {

class AgentHealth;
class LocalSession;

class LocalService final : public Peers, public UplinkListener, private kj::TaskSet::ErrorHandler {
 public:
  LocalService(PeerOptions options, Uplink& uplink, Orders& orders, const Clock& clock, kj::Timer& timer)
      : Peers(std::move(options)),
        uplink_(uplink),
        orders_(orders),
        clock_(clock),
        timer_(timer),
        tasks_(*this) {}

  uint64_t now_ns() const override { return clock_.now_ns(); }
  Uplink& uplink() { return uplink_; }
  Orders& orders() { return orders_; }
  kj::Promise<void> after(kj::Duration pause) { return timer_.afterDelay(pause); }

  // For RpcServer.
  RpcServer::Welcome welcome(PeerCredentials peer);

  void manager_connected() override;
  void manager_away() override;
  void host_fenced(const std::string& reason) override;

  void session_began(LocalSession& session) { sessions_.insert(&session); }
  void session_ended(LocalSession& session) { sessions_.erase(&session); }
  // Does something of a session's, which lives until it is over. Not in a TaskSet of the session: what is done
  // may be what lets go of it last, and a TaskSet must not go while one of its tasks is run.
  void run(LocalSession& session, kj::Promise<void> work);

  // What a call says that needs the manager while it is away.
  Error away(const char* where) const;
  // What a call of the operator's interface says that an agent does not answer.
  Error managers_business(const char* where) const;

  // What operators are answered from. Set before anybody can connect; outlives it.
  void set_health(AgentHealth* health) { health_ = health; }
  AgentHealth& health() { return *health_; }
  uint32_t lease_count() const;  // that sessions here have attached
  void run_passed_on() { ++runs_passed_on_; }
  uint64_t runs_passed_on() const { return runs_passed_on_; }
  uint32_t session_count() const { return static_cast<uint32_t>(sessions_.size()); }

 private:
  std::vector<kj::Own<LocalSession>> sessions();
  void taskFailed(kj::Exception&& exception) override;

  Uplink& uplink_;
  Orders& orders_;
  const Clock& clock_;
  kj::Timer& timer_;
  AgentHealth* health_ = nullptr;
  std::set<LocalSession*> sessions_;
  uint64_t runs_passed_on_ = 0;
  kj::TaskSet tasks_;  // goes first: sessions that only it keeps end with it
};

class LocalConnection final : public PeerConnection {
 public:
  LocalConnection(LocalService& service_in, PeerCredentials peer_in)
      : PeerConnection(service_in, std::move(peer_in)), service(service_in) {}

  LocalService& service;
};

}  // namespace terrace::daemon
