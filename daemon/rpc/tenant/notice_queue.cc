// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/notice_queue.h"

#include <kj/debug.h>

#include <utility>

namespace terrace::daemon {
namespace {

constexpr size_t window =
    64;  // notices that one session has not taken yet; the others wait here, as a few words

capnp::MessageSize size_of(const std::string& reason) {
  return {16 + reason.size() / sizeof(capnp::word), 0};
}

}  // namespace

Notices::Notices(Connection& connection, rpc::LeaseListener::Client listener)
    : connection_(connection),
      listener_(kj::mv(listener)),
      tasks_(kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this))) {}

Notices::~Notices() noexcept(false) {
  stop();
}

void Notices::stop() {
  listener_ = nullptr;
  connection_.notices -= leases_.size();
  leases_.clear();
  ready_.clear();
  under_way_ = 0;
  tasks_ = kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this));
}

// nullptr: nobody listens, or the peer takes too little of what it is told to be worth its memory.
Notices::Entry* Notices::entry_of(LeaseId lease) {
  if (listener_ == nullptr) return nullptr;
  if (const auto known = leases_.find(lease); known != leases_.end()) return &known->second;
  if (connection_.notices >= connection_.service.options().notices_max) {
    connection_.close("it does not take what it is told of its leases");
    return nullptr;
  }
  ++connection_.notices;
  return &leases_[lease];
}

void Notices::revoking(LeaseId lease, uint64_t grace_ns, std::string reason) {
  Entry* entry = entry_of(lease);
  if (entry == nullptr) return;
  const bool silent = entry->silent();
  entry->revoking = Revoking{connection_.service.engine().now_ns() + grace_ns, std::move(reason)};
  entry->move.reset();
  if (silent) speak(lease, *entry);
}

void Notices::fenced(LeaseId lease, std::string reason, LeaseCause cause) {
  Entry* entry = entry_of(lease);
  if (entry == nullptr) return;
  const bool silent = entry->silent();
  entry->fenced = Fenced{std::move(reason), cause};
  entry->revoking.reset();
  entry->move.reset();
  if (silent) speak(lease, *entry);
}

void Notices::move_requested(LeaseId lease, std::string reason) {
  Entry* entry = entry_of(lease);
  if (entry == nullptr || entry->move_under_way || !entry->silent()) return;
  entry->move = std::move(reason);
  speak(lease, *entry);
}

void Notices::speak(LeaseId lease, Entry& entry) {
  if (entry.under_way) return;  // taken() comes back to it
  ready_.push_back(lease);
  send_ready();
}

void Notices::send_ready() {
  while (under_way_ < window && !ready_.empty()) {
    const LeaseId lease = ready_.front();
    ready_.pop_front();
    Entry& entry = leases_.at(lease);
    entry.under_way = true;
    ++under_way_;
    tasks_->add(send(lease, entry)
                    .catch_([this](kj::Exception&& exception) { taskFailed(kj::mv(exception)); })
                    .then([this, lease] { taken(lease); }));
  }
}

kj::Promise<void> Notices::send(LeaseId lease, Entry& entry) {
  rpc::LeaseListener::Client* known = nullptr;
  KJ_IF_MAYBE (listener, listener_) known = listener;
  if (known == nullptr) return kj::READY_NOW;  // stopped since
  rpc::LeaseListener::Client& listener = *known;
  if (entry.fenced.has_value()) {
    const Fenced fenced = *std::exchange(entry.fenced, std::nullopt);
    auto request = listener.fencedRequest(size_of(fenced.reason));
    request.setLease(lease.value);
    request.setReason(fenced.reason);
    request.setCause(static_cast<rpc::LeaseCause>(fenced.cause));
    return request.send().ignoreResult();
  }
  if (entry.revoking.has_value()) {
    const Revoking revoking = *std::exchange(entry.revoking, std::nullopt);
    const uint64_t now_ns = connection_.service.engine().now_ns();
    auto request = listener.revokingRequest(size_of(revoking.reason));
    request.setLease(lease.value);
    request.setGraceNs(revoking.until_ns > now_ns ? revoking.until_ns - now_ns : 0);
    request.setReason(revoking.reason);
    return request.send().ignoreResult();
  }
  const std::string reason = *std::exchange(entry.move, std::nullopt);
  entry.move_under_way = true;
  auto request = listener.moveRequestedRequest(size_of(reason));
  request.setLease(lease.value);
  request.setReason(reason);
  return request.send().ignoreResult();
}

void Notices::taken(LeaseId lease) {
  --under_way_;
  Entry& entry = leases_.at(lease);
  entry.under_way = false;
  entry.move_under_way = false;
  if (entry.silent()) {
    leases_.erase(lease);
    --connection_.notices;
  } else {
    ready_.push_back(lease);
  }
  send_ready();
}

// A holder that cannot be told is fenced all the same when its grace ends.
void Notices::taskFailed(kj::Exception&& exception) {
  connection_.service.peer_log().info(
      connection_.service.engine().now_ns(),
      connection_.name() + " did not take a notice: " + exception.getDescription().cStr());
}

}  // namespace terrace::daemon
