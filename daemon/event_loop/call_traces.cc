// SPDX-License-Identifier: Apache-2.0
// What the engine tells of the calls that its commands come from (daemon/traces): which trace an event belongs to, and how
// long the parts took that a call waits for or has begun.

#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>

#include "daemon/event_loop/engine.h"

namespace terrace::daemon {
namespace {

// What a command says itself; replies and events say more.
template <typename C>
void note_subject(const C& command, CallTrace& trace) {
  if constexpr (requires {
                  { command.tenant } -> std::convertible_to<std::string_view>;
                })
    trace.about(0, command.tenant, {});
  if constexpr (requires {
                  { command.pool } -> std::convertible_to<std::string_view>;
                })
    trace.about(0, {}, command.pool);
  if constexpr (requires { command.lease.value; }) trace.about(command.lease.value, {}, {});
}

template <typename C>
constexpr bool ends_lease = std::is_same_v<C, Release> || std::is_same_v<C, Revoke>;

}  // namespace

void Engine::trace_command(const Actor& actor, const Command& command, const Step& step,
                           std::vector<Event>& events) {
  if (actor.trace == nullptr) {
    // The manager's own work for a call that has ended, as the fence behind a release.
    if (!ended_by_.empty())
      for (Event& event : events)
        if (const auto at = ended_by_.find(event.lease); at != ended_by_.end())
          event.trace_id = trace_id_text(at->second.trace_high, at->second.trace_low);
    return;
  }
  CallTrace& trace = *actor.trace;
  trace.changed();
  std::visit(
      [&](const auto& c) {
        note_subject(c, trace);
        if constexpr (ends_lease<std::decay_t<decltype(c)>>)
          if (step.reply.ok() && state_->find_lease(c.lease) != nullptr)
            ended_by_.insert_or_assign(c.lease.value, trace.context());
      },
      command);
  if (!step.reply.ok()) trace.failed(error_code_name(step.reply.error().code));
  if (step.reply.ok())
    if (const auto* pending = std::get_if<GrantPending>(&step.reply.value()))
      trace.about(pending->lease.value, {}, {});
  for (Event& event : events) {
    event.trace_id = trace.trace_id();
    trace.about(event.lease, event.tenant, event.pool);
  }
}

void Engine::trace_change(const Actor& actor, bool durable) {
  if (actor.trace != nullptr && durable) open_.traces.push_back(actor.trace);
}

void Engine::trace_commit(const Batch& batch, uint64_t began_ns) {
  for (const auto& trace : batch.traces) trace->child("commit", began_ns, clock_.now_ns());
}

// Whatever it waited for is over.
void Engine::trace_work_begins(const Actor& actor) {
  if (actor.trace == nullptr) return;
  const uint64_t now_ns = clock_.now_ns();
  if (const uint64_t since_ns = std::exchange(actor.trace->waits_since_ns, 0); since_ns != 0)
    actor.trace->child("queue", since_ns, now_ns);
  actor.trace->works_since_ns = now_ns;
}

void Engine::trace_work_ends(const Actor& actor, const char* name) {
  if (actor.trace == nullptr) return;
  if (const uint64_t since_ns = std::exchange(actor.trace->works_since_ns, 0); since_ns != 0)
    actor.trace->child(name, since_ns, clock_.now_ns());
}

void Engine::trace_lease(LeaseId lease, const char* name, uint64_t began_ns) {
  if (tracer_ == nullptr || ended_by_.empty()) return;
  if (const auto at = ended_by_.find(lease.value); at != ended_by_.end())
    tracer_->child(at->second, name, began_ns, clock_.now_ns(), lease.value);
}

}  // namespace terrace::daemon
