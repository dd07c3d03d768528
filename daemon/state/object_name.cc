// Names of memory objects: what finds the backend, and the machine, that an object belongs to.
#include "daemon/model/kinds.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

const std::string& StateMachine::pool_backend(PoolId id) const {
  static const std::string none;
  for (const auto& [device_id, device] : devices_)
    if (device.pool == id) return device.backend;
  return none;
}

std::string StateMachine::object_name(const LeaseRow& lease, const std::string& agent, LeaseId id,
                                      const std::string& tail) const {
  const std::string& kind = pool_backend(lease.pool);
  const LeaseId named = id.valid() ? id : lease.id;
  std::string name = prefix_of_kind(kind) + "lease-" + std::to_string(named.value) + tail;
  if (!agent.empty()) name += "@" + agent;
  return name;
}

std::string StateMachine::agent_of(const LeaseRow& lease) {
  const size_t at = lease.object.find('@');
  return at == std::string::npos ? std::string() : lease.object.substr(at + 1);
}

}  // namespace terrace::daemon
