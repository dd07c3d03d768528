// SPDX-License-Identifier: Apache-2.0
// What an agent answers to an operator at its own socket: how it and its host are (`terrace status`, `terrace health`,
// `terrace daemon status|stop`). Everything else is refused with the manager's address: an agent decides nothing.
//
// Place     daemon/role_agent.cc makes one AgentHealth; the gateway of local_service.h opens the interface.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <string>
#include <vector>

#include "core/schema/terrace.capnp.h"
#include "daemon/agent/uplink.h"
#include "daemon/health/health_engine.h"
#include "daemon/tls/credentials.h"

namespace terrace::daemon {

class LocalConnection;

struct AgentPlaces {
  std::string runtime_directory = {};
  std::string object_directory = {};
  std::string memory = {};  // in words: Backend::describe_memory
};

// Looks after the agent's own health, again and again, and logs what changes.
class AgentHealth final : private kj::TaskSet::ErrorHandler {
 public:
  // `uplink` and `credentials` outlive it.
  AgentHealth(AgentPlaces places, HealthLimits limits, const Uplink& uplink, const Credentials& credentials,
              const Clock& clock, kj::Timer& timer);

  void begin();
  const HealthEngine& look();
  // Whether a guard runs, and why not: as the look at it each second says.
  void note_guard(const Status& status);

  const Uplink& uplink() const { return uplink_; }
  bool guarded() const { return guard_.ok(); }
  uint64_t host_lease_left_ns() const;

  const AgentPlaces& places() const { return places_; }
  uint64_t started_ns() const { return started_ns_; }
  std::vector<CertificateEnd> certificate_ends() const;
  void write(rpc::AgentInfo::Builder out, uint32_t sessions) const;

 private:
  void taskFailed(kj::Exception&& exception) override;
  kj::Promise<void> look_again();
  HealthView gather() const;

  const AgentPlaces places_;
  const HealthLimits limits_;
  const Uplink& uplink_;
  const Credentials& credentials_;
  const Clock& clock_;
  kj::Timer& timer_;
  const uint64_t started_ns_;
  Status guard_;
  HealthEngine engine_;
  kj::TaskSet tasks_;
};

// For a peer that may look: the gateway asks before.
rpc::Admin::Client make_agent_admin(kj::Own<LocalConnection> connection, AgentHealth& health);

}  // namespace terrace::daemon
