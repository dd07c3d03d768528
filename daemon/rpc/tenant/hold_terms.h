// SPDX-License-Identifier: Apache-2.0
// What a program says when it takes a lease, at a manager or at an agent.
#pragma once

#include <cstdint>

#include "core/schema/terrace.capnp.h"

namespace terrace::daemon {

// What whoever takes a lease says of it.
struct HoldTerms {
  bool ends_with_holders = false;  // the lease ends when its holders' processes have (EndedHolders)
  // Its process agrees to be ended before the memory is taken (ConsentedHolders), and calls itself by this number.
  bool kill = false;
  uint32_t process = 0;
};

// Of a grant's or an attach's message.
template <typename Asked>
HoldTerms terms_of(const Asked& asked) {
  return {.ends_with_holders = asked.getEndsWithHolders(),
          .kill = asked.getOnFence() == rpc::OnFence::KILL,
          .process = asked.getProcess()};
}

}  // namespace terrace::daemon
