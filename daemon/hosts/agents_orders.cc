// SPDX-License-Identifier: Apache-2.0
// Orders: from a worker that waits, over the event loop, to an agent and back.

#include <algorithm>

#include "core/base/failpoint.h"
#include "daemon/hosts/agent_peer.h"
#include "daemon/hosts/agents.h"

namespace terrace::daemon {
namespace {

// How long an answer may take; then the outcome is unknown, and the order is given again.
kj::Duration patience(const AgentOrder& order) {
  // What goes over all bytes may be slow memory's pace on top: 256 MiB/s.
  uint64_t bytes = 0;
  for (const WireExtent& extent : order.extents) bytes += extent.length;
  const kj::Duration for_bytes = static_cast<int64_t>(std::max(bytes, order.bytes) / (256 * mib)) * kj::SECONDS;
  switch (order.kind) {
    case AgentOrder::Kind::carve:
    case AgentOrder::Kind::erase:
    case AgentOrder::Kind::write_back:
    case AgentOrder::Kind::rebind:
    case AgentOrder::Kind::copy: return 60 * kj::SECONDS + for_bytes;
    case AgentOrder::Kind::exchange:
    case AgentOrder::Kind::kept:
    case AgentOrder::Kind::end_holders:
    case AgentOrder::Kind::fence:
    case AgentOrder::Kind::scrub:
    case AgentOrder::Kind::resize: break;
  }
  return 15 * kj::SECONDS;
}

// How long an agent may take to say whether a process has ended, and how long its answer is good.
constexpr uint64_t answer_within_ns = 500 * ns_per_ms, answer_good_for_ns = 10 * ns_per_ms;

Error unavailable(std::string detail) {
  return Error{.code = ErrorCode::unavailable, .where = "order", .detail = std::move(detail)};
}

template <typename Request>
kj::Promise<AgentAnswer> answer_of(Request request) {
  return request.send().then([](auto&& reply) -> AgentAnswer {
    Status status = read_error(reply.getError(), "agent");
    if (status.ok()) return {OrderOutcome::done, {}, 0};
    return {OrderOutcome::refused, status.error(), 0};
  });
}

kj::Promise<AgentAnswer> send_end_holders(rpc::HostAgent::Client& agent, const AgentOrder& order) {
  auto request = agent.endHoldersRequest();
  request.setName(order.object);
  return request.send()
      .then([](auto&& reply) -> AgentAnswer {
        AgentAnswer answer{OrderOutcome::done, {}, 0};
        for (const capnp::Text::Reader name : reply.getEnded()) answer.ended.push_back(read_text(name));
        if (Status status = read_error(reply.getError(), "agent"); !status.ok()) {
          answer.outcome = OrderOutcome::refused;
          answer.error = status.error();
        }
        return answer;
      })
      .catch_([](kj::Exception&& exception) -> AgentAnswer {
        if (exception.getType() != kj::Exception::Type::UNIMPLEMENTED)
          kj::throwFatalException(kj::mv(exception));
        return {OrderOutcome::done, {}, 0};  // an agent of an earlier version
      });
}

}  // namespace

AgentAnswer Agents::order(const std::string& host, const AgentOrder& order) {
  const auto pending = std::make_shared<Pending>();
  pending->host = host;
  pending->order = order;
  return wait_for(pending);
}

bool Agents::wait_until_forgotten(const std::string& host) {
  const auto pending = std::make_shared<Pending>();
  pending->host = host;
  pending->until_forgotten = true;
  return wait_for(pending).outcome == OrderOutcome::done;
}

bool Agents::wait_until_settled() {
  if (settled_) return true;
  const auto pending = std::make_shared<Pending>();
  pending->until_settled = true;
  return wait_for(pending).outcome == OrderOutcome::done;
}

// Called whenever a host is heard of or has lapsed.
void Agents::settle_hosts() {
  std::erase_if(unsettled_, [this](const std::string& name) {
    Host& known = host(name);
    return known.peer != nullptr || known.count.lapsed(now_ns());
  });
  if (!unsettled_.empty()) return;
  settled_ = true;
  for (const PendingPtr& pending : std::exchange(until_settled_, {}))
    answer(pending, {OrderOutcome::done, {}, 0});
}

AgentAnswer Agents::wait_for(const PendingPtr& pending) {
  {
    const MutexLock lock(queue_mutex_);
    if (stopping_) return {OrderOutcome::not_sent, unavailable("the manager is ending"), 0};
    queue_.push_back(pending);
    unanswered_.insert(pending);
    if (wake_.get() != nullptr) {
      wake_->fulfill();
      wake_ = nullptr;
    }
  }
  const MutexLock lock(pending->mutex);
  pending->ready.wait(pending->mutex, [&pending]() TERRACE_REQUIRES(pending->mutex) { return pending->done; });
  return pending->answer;
}

void Agents::answer(const PendingPtr& pending, AgentAnswer given) {
  {
    const MutexLock lock(queue_mutex_);
    unanswered_.erase(pending);
  }
  const MutexLock lock(pending->mutex);
  if (pending->done) return;
  pending->answer = std::move(given);
  pending->done = true;
  pending->ready.notify_all();
}

void Agents::stop() {
  std::set<PendingPtr> left;
  {
    const MutexLock lock(queue_mutex_);
    stopping_ = true;
    queue_.clear();
    left = std::move(unanswered_);
    unanswered_.clear();
  }
  for (const PendingPtr& pending : left)
    answer(pending, {OrderOutcome::unknown, unavailable("the manager is ending"), 0});
}

kj::Promise<void> Agents::order_loop() {
  std::deque<PendingPtr> taken;
  kj::Promise<void> next = kj::READY_NOW;
  {
    const MutexLock lock(queue_mutex_);
    if (stopping_) return kj::READY_NOW;
    taken.swap(queue_);
    auto pair = kj::newPromiseAndCrossThreadFulfiller<void>();
    wake_ = kj::mv(pair.fulfiller);
    next = kj::mv(pair.promise);
  }
  for (const PendingPtr& pending : taken) dispatch(pending);
  return next.then([this] { return order_loop(); });
}

void Agents::dispatch(const PendingPtr& pending) {
  if (pending->until_settled) {
    until_settled_.push_back(pending);
    settle_hosts();
    return;
  }
  Host& known = host(pending->host);
  const bool lapsed = known.count.lapsed(now_ns());
  if (pending->until_forgotten) {
    if (lapsed) {
      answer(pending, {OrderOutcome::done, {}, 0});
    } else {
      known.until_forgotten.push_back(pending);
      // One that is there forgets by registering again: its orders of before are refused then, and what they
      // left is destroyed.
      if (known.peer != nullptr) known.peer->close("an order's outcome is not known");
    }
    return;
  }
  if (lapsed) {  // the watch closes a connection that is still there
    answer(pending, {OrderOutcome::lapsed, unavailable(describe_absence(pending->host, known)), 0});
    return;
  }
  if (known.peer == nullptr) {
    answer(pending, {OrderOutcome::not_sent, unavailable(describe_absence(pending->host, known)), 0});
    return;
  }
  // Not even asked for: where the answer got lost, what may have been made is fenced and erased by its name.
  if (pending->order.kind == AgentOrder::Kind::carve && known.kept.contains(pending->order.object)) {
    answer(pending, {OrderOutcome::refused,
                     Error{.code = ErrorCode::already_exists,
                           .where = "carve",
                           .detail = "host " + pending->host + " has an object " + pending->order.object +
                                     " that this store does not know (`terrace host list`)"},
                     0});
    return;
  }
  [[maybe_unused]] const int before = TERRACE_FAILPOINT(order_before_send);
  auto unknown = [this, pending](const std::string& why) {
    answer(pending, {OrderOutcome::unknown,
                     unavailable("the agent of host " + pending->host + " did not answer: " + why), 0});
  };
  auto sent = send(known.peer->agent(), pending->order).then([this, pending](AgentAnswer given) {
    [[maybe_unused]] const int after = TERRACE_FAILPOINT(order_after_reply);
    answer(pending, std::move(given));
  });
  auto late = timer_.afterDelay(patience(pending->order)).then([unknown] { unknown("it takes too long"); });
  tasks_->add(sent.exclusiveJoin(kj::mv(late)).catch_([unknown](kj::Exception&& exception) {
    unknown(exception.getDescription().cStr());
  }));
}

kj::Promise<AgentAnswer> Agents::send(rpc::HostAgent::Client& agent, const AgentOrder& order) {
  switch (order.kind) {
    case AgentOrder::Kind::carve: {
      auto request = agent.carveRequest();
      write_object(request.initObject(), order.object, order.bytes, order.extents);
      return answer_of(kj::mv(request));
    }
    case AgentOrder::Kind::erase: {
      auto request = agent.eraseRequest();
      write_object(request.initObject(), order.object, order.bytes, order.extents);
      request.setOffset(order.offset);
      request.setLength(order.length);
      return answer_of(kj::mv(request));
    }
    case AgentOrder::Kind::scrub: {
      auto request = agent.scrubRequest();
      request.setName(order.object);
      return request.send().then([](auto&& reply) -> AgentAnswer {
        Status status = read_error(reply.getError(), "agent");
        if (status.ok()) return {OrderOutcome::done, {}, reply.getBytes()};
        return {OrderOutcome::refused, status.error(), 0};
      });
    }
    case AgentOrder::Kind::resize: {
      auto request = agent.resizeRequest();
      write_object(request.initObject(), order.object, order.bytes, order.extents);
      request.setFromBytes(order.from_bytes);
      return answer_of(kj::mv(request));
    }
    case AgentOrder::Kind::rebind: {
      auto request = agent.rebindRequest();
      request.setFrom(order.object);
      write_object(request.initTo(), order.other, order.bytes, order.extents);
      return answer_of(kj::mv(request));
    }
    case AgentOrder::Kind::copy: {
      auto request = agent.copyRequest();
      request.setFrom(order.object);
      request.setTo(order.other);
      request.setBytes(order.bytes);
      return answer_of(kj::mv(request));
    }
    case AgentOrder::Kind::exchange: {
      auto request = agent.exchangeRequest();
      write_object(request.initObject(), order.object, order.bytes, order.extents);
      request.setPut(kj::arrayPtr(order.put.data(), order.put.size()));
      return request.send().then([](auto&& reply) -> AgentAnswer {
        Status status = read_error(reply.getError(), "agent");
        if (!status.ok()) return {OrderOutcome::refused, status.error(), 0};
        AgentAnswer answer{OrderOutcome::done, {}, 0};
        const capnp::Data::Reader found = reply.getFound();
        std::copy_n(found.begin(), std::min(found.size(), answer.found.size()), answer.found.begin());
        return answer;
      });
    }
    case AgentOrder::Kind::write_back: {
      auto request = agent.writeBackRequest();
      write_object(request.initObject(), order.object, order.bytes, order.extents);
      return answer_of(kj::mv(request));
    }
    case AgentOrder::Kind::kept: {
      auto request = agent.keptRequest();
      write_object(request.initObject(), order.object, order.bytes, order.extents);
      return request.send().then([](auto&& reply) -> AgentAnswer {
        Status status = read_error(reply.getError(), "agent");
        if (!status.ok()) return {OrderOutcome::refused, status.error(), 0};
        AgentAnswer answer{OrderOutcome::done, {}, 0};
        answer.kept = reply.getEnded() ? Kept::ended : reply.getKept() ? Kept::yes : Kept::no;
        return answer;
      });
    }
    case AgentOrder::Kind::end_holders: return send_end_holders(agent, order);
    case AgentOrder::Kind::fence: break;
  }
  auto request = agent.fenceRequest();
  request.setName(order.object);
  return answer_of(kj::mv(request));
}

// Who waits for an owner asks in a loop, and so do all others: one question at a time goes to the agent, and a "no" is good for a
// moment. Callers have less patience than that with the manager itself.
kj::Promise<bool> Agents::has_ended(const std::string& name, const ProcessId& process) {
  const auto known = hosts_.find(name);
  if (known == hosts_.end() || known->second.peer == nullptr) return false;
  auto& asked = known->second.asked;
  std::erase_if(asked, [now = now_ns()](const auto& one) { return *one.second.until_ns <= now; });
  const std::tuple key(process.pid, process.started, process.space);
  if (const auto at = asked.find(key); at != asked.end()) return at->second.answer.addBranch();
  auto request = known->second.peer->agent().hasEndedRequest();
  auto out = request.initProcess();
  out.setPid(process.pid);
  out.setStarted(process.started);
  out.setSpace(process.space);
  auto answered =
      request.send().then([](auto&& reply) { return reply.getError().getCode() == 0 && reply.getEnded(); });
  auto late = timer_.afterDelay(answer_within_ns * kj::NANOSECONDS).then([] { return false; });
  const auto until_ns = std::make_shared<uint64_t>(now_ns() + answer_within_ns + answer_good_for_ns);
  kj::Promise<bool> answer = answered.exclusiveJoin(kj::mv(late))
                                 .catch_([](kj::Exception&&) { return false; })
                                 .then([until_ns, &clock = clock_](bool ended) {
                                   *until_ns = clock.now_ns() + answer_good_for_ns;
                                   return ended;
                                 });
  return asked.emplace(key, Asked{answer.fork(), until_ns}).first->second.answer.addBranch();
}

bool Agents::has_proved(const std::string& host, const std::string& serial) const {
  const MutexLock lock(queue_mutex_);
  return proved_.contains({host, serial});
}

void Agents::set_proved(const std::string& host, const std::string& serial) {
  const MutexLock lock(queue_mutex_);
  proved_.insert({host, serial});
}

void Agents::forget_proofs(const std::string& host) {
  const MutexLock lock(queue_mutex_);
  std::erase_if(proved_, [&host](const auto& one) { return one.first == host; });
}

void Agents::forgotten(Host& known) {
  for (const PendingPtr& pending : std::exchange(known.until_forgotten, {}))
    answer(pending, {OrderOutcome::done, {}, 0});
}

}  // namespace terrace::daemon
