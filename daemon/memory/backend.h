// SPDX-License-Identifier: Apache-2.0
// The seam between the manager's decisions and memory that can be mapped: its devices (devices.h), the objects that leases
// are carved into (objects.h), and where a kind has them, hardware that is composed (composition.h) and memory that
// several machines see (shared_by_hosts.h). One implementation a kind of memory; BackendSet (backend_set.h)
// is all of them together, and finds the one that an object belongs to by its name: `lease-7` is emulated,
// `devdax:lease-7` belongs to the kind before the colon.
//
// Place     Called by daemon/event_loop on its worker threads, for the state machine's decisions.
// Threads   Its two workers; calls that are quick(), usage(), open(), discover() and attributes() also on the
//           event loop's, so that those four must not wait for hardware.
// Crash     A crash can cut carve, fence and scrub off anywhere; each can be done again.
#pragma once

#include <string>
#include <string_view>

#include "core/base/result.h"
#include "daemon/memory/composition.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/objects.h"
#include "daemon/memory/shared_by_hosts.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {

class Backend : public Devices, public Objects {
 public:
  virtual std::string_view kind() const = 0;

  // What only some kinds have; null: not this one. They live as long as the backend.
  virtual Composition* composition() { return nullptr; }
  virtual SharedByHosts* shared_by_hosts() { return nullptr; }

 protected:
  Error cannot(const char* what) const override {
    return Error{.code = ErrorCode::unsupported,
                 .where = what,
                 .detail = "memory of the kind '" + std::string(kind()) + "' cannot do that"};
  }
};

inline bool lies_on_shared(Backend& backend, std::string_view name) {
  SharedByHosts* shared = backend.shared_by_hosts();
  return shared != nullptr && shared->is_shared(name);
}

}  // namespace terrace::daemon
