// SPDX-License-Identifier: Apache-2.0
// Converts orders, devices and objects to and from the messages of managers and agents. Both sides bound and
// check the other side's messages here.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "core/schema/agent.capnp.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/remote/remote_memory.h"

namespace terrace::daemon {

// What one host can show or have. An agent with more is refused; a manager that names more loses its
// connection.
inline constexpr uint32_t agent_devices_max = 4096;
inline constexpr uint32_t agent_objects_max = 65'536;
inline constexpr uint32_t agents_max = 256;           // of one manager
inline constexpr uint32_t agent_sessions_max = 4096;  // programs of one host, at once
// One message between manager and agent: 65,536 objects with an extent each are about 8 MiB.
inline constexpr uint64_t agent_message_bytes_max = 16 * mib;

struct WireObject {
  std::string name;
  uint64_t bytes = 0;
  std::vector<WireExtent> extents;
  bool handed_out = false;
};

void write_object(rpc::AgentObject::Builder out, const std::string& name, uint64_t bytes,
                  const std::vector<WireExtent>& extents);
void write_observed(rpc::AgentObject::Builder out, const ObservedObject& object);
void write_devices(capnp::List<rpc::AgentDevice>::Builder out, const std::vector<SeenDevice>& devices);

// Errors    invalid_argument   names, sizes or numbers that cannot be; nothing of it is used
Result<WireObject> read_object(rpc::AgentObject::Reader in);
Result<std::vector<WireObject>> read_objects(capnp::List<rpc::AgentObject>::Reader in);
Result<std::vector<SeenDevice>> read_devices(capnp::List<rpc::AgentDevice>::Reader in);

// An Error as data; its place is where it was received. nullopt: none.
Status read_error(rpc::Error::Reader in, const char* where);

}  // namespace terrace::daemon
