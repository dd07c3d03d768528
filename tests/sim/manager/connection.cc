// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/manager/connection.h"

#include <algorithm>

namespace terrace::sim {
namespace {

void stamp(daemon::Command& command, uint64_t now_ns) {
  std::visit(
      [now_ns](auto& c) {
        if constexpr (requires { c.now_ns; }) c.now_ns = now_ns;
        if constexpr (std::is_same_v<std::decay_t<decltype(c)>, daemon::CompactPool>) c.deadline_ns += now_ns;
      },
      command);
}

}  // namespace

uint64_t Connection::delay_ns(uint64_t& last_ns) {
  const uint64_t now_ns = environment_.now_ns();
  last_ns = std::max(last_ns, now_ns + environment_.prng().below(2 * ns_per_ms)) + 1;
  return last_ns - now_ns;
}

void Connection::deliver(std::function<void(ReplyAction)> request, ReplyAction received) {
  if (lost()) return;
  environment_.after(delay_ns(last_request_ns_),
                     [this, life = life_, request = std::move(request), received = std::move(received)] {
                       if (life != life_) return;
                       request([this, life, received](const Result<daemon::Reply>& result) {
                         if (lost()) return;
                         environment_.after(delay_ns(last_reply_ns_), [this, life, received, result] {
                           if (life == life_) received(result);
                         });
                       });
                     });
}

void Connection::send(const daemon::Command& command, ReplyAction received) {
  deliver(
      [this, command](ReplyAction reply) {
        daemon::Command stamped = command;
        stamp(stamped, environment_.now_ns());
        const bool grant = std::holds_alternative<daemon::Grant>(command) && client_.has_value();
        daemon_.submit(std::move(stamped), [this, grant, reply](const Result<daemon::Reply>& result) {
          const auto* granted = grant && result.ok() ? std::get_if<daemon::LeaseReply>(&*result) : nullptr;
          if (granted != nullptr) daemon_.hold(granted->lease.id, *client_);
          reply(result);
        });
      },
      std::move(received));
}

void Connection::send_attach(LeaseId lease, const std::string& tenant, ReplyAction received) {
  deliver([this, lease, tenant](ReplyAction reply) { daemon_.attach(lease, tenant, *client_, reply); },
          std::move(received));
}

}  // namespace terrace::sim
