// SPDX-License-Identifier: Apache-2.0
// The answers of every method: admitted within the connection's bounds, then a query's answer once all that it
// shows is durable, or a command's once its outcome is.
//
// Threads   The event loop's thread only.
#pragma once

#include <string>
#include <utility>

#include "core/schema/enumerants.h"
#include "core/schema/method_name.h"
#include "daemon/rpc/connection.h"

namespace terrace::daemon {

// Calls of one connection whose answers take megabytes (pages of leases, of the audit log).
inline constexpr uint32_t pages_outstanding_max = 4;

template <typename Context>
void refuse(Context& context, const Error& error) {
  write_error(context.getResults().initError(), error);
}

// Admits a call, or answers it: limit_exceeded, or version_mismatch where it holds a number of an enum that this
// program does not know. Every method of every capability begins with this.
template <typename Params, typename Results>
kj::Maybe<CallSlot> admit(PeerConnection& connection, capnp::CallContext<Params, Results>& context) {
  if (const std::string unknown = schema::unknown_enumerant_in<Params>(context.getParams()); !unknown.empty()) {
    refuse(context, Error{.code = ErrorCode::version_mismatch,
                          .where = "admit",
                          .detail = unknown + ", which this program is too old to know; upgrade it, or ask for "
                                              "what it knows"});
    return nullptr;
  }
  const uint32_t most = connection.peers.peer_options().calls_outstanding_max;
  if (connection.calls < most) return CallSlot(connection, schema::method_name<Params>());
  refuse(context, Error{.code = ErrorCode::limit_exceeded,
                        .where = "admit",
                        .detail = "this connection has " + std::to_string(most) +
                                  " calls under way already; wait for answers before sending more"});
  return nullptr;
}

// Takes the answer now and sends it once all that it shows is durable.
template <typename Context, typename Answer>
kj::Promise<void> answer_query(Connection& connection, Context context, Answer answer) {
  KJ_IF_MAYBE (slot, admit(connection, context)) {
    answer(context);
    return connection.service.engine()
        .settled()
        .then([context](Status settled) mutable {
          if (!settled.ok()) refuse(context, settled.error());
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

// As answer_query, for an answer that may take megabytes: few at once, and none for a uid whose peers do not
// take what they asked for.
template <typename Context, typename Answer>
kj::Promise<void> answer_page(Connection& connection, Context context, Answer answer) {
  Service& service = connection.service;
  const uint64_t unwritten = service.unwritten_bytes(service.key_of(connection.peer));
  if (connection.pages >= pages_outstanding_max || unwritten > service.options().unwritten_bytes_uid_max) {
    refuse(context, Error{.code = ErrorCode::limit_exceeded,
                          .where = "answer_page",
                          .detail = connection.pages >= pages_outstanding_max
                                        ? "this connection has " + std::to_string(pages_outstanding_max) +
                                              " lists under way already; wait for them"
                                        : connection.peer.text() + " has not taken " + format_size(unwritten) +
                                              " of answers; read them first"});
    return kj::READY_NOW;
  }
  Counted<&PeerConnection::pages> page(connection);
  return answer_query(connection, context, answer).attach(kj::mv(page));
}

// Submits `request`; `answer(context, reply)` writes the outcome, a ReplyOf<C>.
template <typename Context, Asked C, typename Answer>
kj::Promise<void> answer_command(Connection& connection, Context context, C request, Answer answer) {
  KJ_IF_MAYBE (slot, admit(connection, context)) {
    return connection.submit(std::move(request))
        .then([context, answer](Result<ReplyOf<C>> reply) mutable {
          if (!reply.ok()) {
            refuse(context, reply.error());
          } else {
            answer(context, *reply);
          }
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
