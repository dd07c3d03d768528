// Between the manager's rows and the schema's messages. No decisions.
#pragma once

#include "core/schema/terrace.capnp.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {

void write_error(rpc::Error::Builder out, const Error& error);

// `with_object` also asks the backend what the object really occupies (one stat).
void write_lease(rpc::LeaseInfo::Builder out, const LeaseRow& lease, Service& service, bool with_object);
void write_pool(rpc::PoolInfo::Builder out, const PoolRow& pool, const StateMachine& state);

LeaseMode read_mode(rpc::LeaseMode mode);

// The text of a request, as a string. Lengths are checked by the state machine.
inline std::string read_text(capnp::Text::Reader text) {
  return std::string(text.cStr(), text.size());
}

}  // namespace terrace::daemon
