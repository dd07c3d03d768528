// SPDX-License-Identifier: Apache-2.0
// Whether the state machine answers in the kind that each command promises (Answer in daemon/state/command.h), or
// says that the answer comes later. The engine relies on it, and cannot see it at compile time.
#pragma once

#include <type_traits>
#include <variant>

#include "daemon/state/command.h"

namespace terrace::test {

struct IsReplyTo {
  const daemon::Reply& reply;

  template <typename C>
  bool operator()(const C&) const {
    // A new lease, or what is done to one: answered once that is finished.
    constexpr bool carves = std::is_same_v<C, daemon::Grant> || std::is_same_v<C, daemon::BeginMove>;
    constexpr bool changes = std::is_same_v<C, daemon::Resize> || std::is_same_v<C, daemon::Transfer> ||
                             std::is_same_v<C, daemon::AcceptOffer>;
    if constexpr (!daemon::Asked<C>)
      return true;
    else if (std::holds_alternative<daemon::GrantPending>(reply))
      return carves;
    else if (std::holds_alternative<daemon::ChangePending>(reply))
      return changes;
    else
      return std::holds_alternative<daemon::ReplyOf<C>>(reply);
  }
  // What the shell reports goes to whoever waits for it.
  bool operator()(const daemon::CarveFinished&) const {
    return std::holds_alternative<daemon::ReplyOf<daemon::Grant>>(reply) ||
           std::holds_alternative<daemon::ReplyOf<daemon::BeginMove>>(reply);
  }
  bool operator()(const daemon::ResizeFinished&) const {
    return std::holds_alternative<daemon::ReplyOf<daemon::Resize>>(reply);
  }
  bool operator()(const daemon::RebindFinished&) const {
    return std::holds_alternative<daemon::ReplyOf<daemon::Transfer>>(reply);
  }
};

inline bool is_reply_to(const daemon::Command& command, const daemon::Reply& reply) {
  return std::visit(IsReplyTo{reply}, command);
}

}  // namespace terrace::test
