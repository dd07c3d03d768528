// SPDX-License-Identifier: Apache-2.0
// Loop: changes of a lease that its holder asked for, or finds when it attaches again: another size, another
// descriptor, another owner.
#include <utility>

#include "core/base/clock.h"
#include "core/base/units.h"
#include "libclient/session/loop.h"
#include "libclient/session/loop_templates.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

using Info = Result<LeaseInfo>;

}  // namespace

// What attaching again says of a lease: that it is the one we know, that it changed with us, or that it is not
// ours any more.
kj::Promise<Status> Loop::confirm(uint64_t handle, rpc::LeaseInfo::Reader info, rpc::Lease::Client capability) {
  Held& held = *held_.find(handle);
  const LeaseFacts facts = held.facts;
  if (const Move* move = unsettled_move(facts.id);
      move != nullptr && move->outcome->state() == LeaseMoveState::unknown) {
    if (move->handle == handle && !move->in_flight) return settle_by_attach(handle, info, kj::mv(capability));
    held.stale = true;  // another answer decides; this handle attaches when it is next used
    held.capability.reset();
    return Status{};
  }
  if (info.getEpoch() != facts.epoch.value && !held.stale) {
    Error error{ErrorCode::lease_expired, 0, "Session: attaching a lease again",
                "lease " + std::to_string(facts.id.value) +
                    " was moved or granted anew under another epoch while this process was away"};
    lose(facts.id, error);
    return Status(std::move(error));
  }
  const bool revoking = info.getPhase() == rpc::LeasePhase::REVOKING;
  std::string reason = text_from_wire(info.getReason());
  kj::Promise<Status> known = Status{};
  if (held.stale || info.getBytes() != facts.bytes) {
    known = take_over(handle, info, kj::mv(capability));
  } else {
    held.capability = kj::mv(capability);
  }
  return known.then([this, id = facts.id, revoking, reason = std::move(reason)](Status status) -> Status {
    if (revoking) on_revoking(id, 0, reason);
    return status;
  });
}

// The lease as the manager now has it, with the descriptor of `capability`, becomes what the handle shows.
kj::Promise<Status> Loop::take_over(uint64_t handle, rpc::LeaseInfo::Reader info,
                                    rpc::Lease::Client capability) {
  const LeaseEpoch epoch{info.getEpoch()};
  const uint64_t bytes = info.getBytes();
  auto descriptor = capability.getFd();
  return descriptor.then(
      [this, handle, epoch, bytes, capability = kj::mv(capability)](kj::Maybe<int> borrowed) mutable -> Status {
        Held* held = held_.find(handle);
        if (held == nullptr) return {};
        KJ_IF_MAYBE (fd, borrowed) {
          TERRACE_RETURN_IF_ERROR(adopt_descriptor(handle, *fd, epoch, bytes));
        } else {
          return Error{ErrorCode::unsupported, 0, "Session",
                       "the manager sent no descriptor for lease " + std::to_string(held->facts.id.value)};
        }
        held->capability = kj::mv(capability);
        held->stale = false;
        return {};
      });
}

Status Loop::adopt_descriptor(uint64_t handle, int fd, LeaseEpoch epoch, uint64_t bytes) {
  Held* held = held_.find(handle);
  const auto lease = held == nullptr ? nullptr : held->handle.lock();
  if (lease == nullptr) return {};
  TERRACE_RETURN_IF_ERROR(lease->adopt(fd, epoch, bytes));
  held->facts.epoch = epoch;
  held->facts.bytes = bytes;
  return {};
}

// The other handles of a lease that changed through `handle`. One that cannot be attached now is when it is
// next used. Never rejects.
kj::Promise<void> Loop::refresh_others(LeaseId id, uint64_t handle) {
  kj::Promise<void> done = kj::READY_NOW;
  for (const uint64_t other : held_.of(id)) {
    if (other == handle) continue;
    Held& held = *held_.find(other);
    held.stale = true;
    held.capability.reset();
    done = done.then([this, other]() -> kj::Promise<void> {
      if (!ready_) return kj::READY_NOW;
      return attach_again(other).then([](Status) {}, [](kj::Exception&&) {});
    });
  }
  return done;
}

// Asks the manager what became of a lease. While it is away the reconnect does that.
void Loop::check_again(LeaseId id) {
  if (!ready_) return;
  for (const uint64_t handle : held_.of(id))
    tasks_.add(attach_again(handle).then([](Status) {}, [](kj::Exception&&) {}));
}

void Loop::resize(uint64_t handle, uint64_t bytes, std::shared_ptr<Answer<LeaseInfo>> answer) {
  constexpr const char* where = "Lease::resize";
  perform_on_lease<LeaseInfo>(where, handle, answer, [this, handle, bytes](rpc::Lease::Client lease) {
    auto call = lease.resizeRequest();
    call.setBytes(bytes);
    return call.send().then([this,
                             handle](capnp::Response<rpc::Lease::ResizeResults>&& reply) -> kj::Promise<Info> {
      if (Status status = status_from_wire(reply.getError(), where); !status.ok())
        return Info(std::move(status).error());
      Info info = lease_info_from_wire(reply.getInfo(), where);
      if (held_.find(handle) == nullptr) return info;
      auto taken =
          reply.hasLease() ? take_over(handle, reply.getInfo(), reply.getLease()) : attach_again(handle);
      return taken
          .then([this, handle, id = LeaseId{reply.getInfo().getId()}](Status status) -> kj::Promise<Status> {
            if (!status.ok()) return status;
            return refresh_others(id, handle).then([] { return Status{}; });
          })
          .then([info = std::move(info)](Status status) mutable -> Info {
            TERRACE_RETURN_IF_ERROR(std::move(status));
            return std::move(info);
          });
    });
  });
}

// Like a release, but an error may also speak of the tenant that should get the lease: what it tells is not
// noted.
void Loop::transfer(uint64_t handle, std::string tenant, std::string host,
                    std::shared_ptr<Answer<void>> answer) {
  constexpr const char* where = "Lease::transfer";
  const Held* found = held_.find(handle);
  if (found == nullptr) {
    answer->deliver(Error{ErrorCode::lease_expired, 0, where, "the lease is no longer held"});
    return;
  }
  const LeaseId id = found->facts.id;
  const auto keep = found->handle.lock();  // or it would be forgotten while the call is on its way
  held_.give_up(id, true, timer_.now());
  std::string owner = tenant + (host.empty() ? "" : " on " + host);
  const auto sent = std::make_shared<bool>(false);
  const auto offered = std::make_shared<bool>(false);  // it waits for the other tenant, and is ours until then
  auto asked = repeating<void>(where, [this, handle, tenant, host, sent, offered]() {
    return capability_of(handle, where)
        .then([tenant, host, sent, offered](Result<rpc::Lease::Client> lease) -> kj::Promise<Status> {
          if (!lease.ok()) {
            // Sent before, the answer was lost, and now the lease is not ours: that was the transfer.
            if (*sent && says_gone(lease.error())) return Status{};
            return Status(std::move(lease).error());
          }
          *sent = true;
          auto call = lease->transferRequest();
          call.setTenant(tenant);
          call.setHost(host);
          return call.send().then([offered](capnp::Response<rpc::Lease::TransferResults>&& reply) {
            *offered = reply.getOffered();
            return status_from_wire(reply.getError(), where);
          });
        });
  });
  auto whole = bounded<void>(where, options_.call_timeout_ns, kj::mv(asked));
  tasks_.add(whole.then([this, id, answer, keep, offered, owner = std::move(owner)](Status status) {
    if (status.ok() && !*offered) {
      lose(id, Error{ErrorCode::lease_expired, 0, where, "the lease was transferred to " + owner}, false);
    } else {
      held_.give_up(id, false, timer_.now());
      wake_renewal();
    }
    answer->deliver(std::move(status));
  }));
}

void Loop::withdraw_offer(uint64_t handle, std::shared_ptr<Answer<void>> answer) {
  constexpr const char* where = "Lease::withdraw_offer";
  perform_on_lease<void>(where, handle, answer, [](rpc::Lease::Client lease) {
    return lease.withdrawOfferRequest().send().then(
        [](capnp::Response<rpc::Lease::WithdrawOfferResults>&& reply) {
          return status_from_wire(reply.getError(), where);
        });
  });
}

void Loop::open_path(uint64_t handle, std::optional<uint32_t> user,
                     std::shared_ptr<Answer<std::string>> answer) {
  constexpr const char* where = "Lease::open_path";
  perform_on_lease<std::string>(where, handle, answer, [user](rpc::Lease::Client lease) {
    auto call = lease.openPathRequest();
    call.setAnotherUser(user.has_value());
    call.setUser(user.value_or(0));
    return call.send().then([](capnp::Response<rpc::Lease::OpenPathResults>&& reply) -> Result<std::string> {
      TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
      return std::string(reply.getPath().cStr());
    });
  });
}

// --- offers of others -------------------------------------------------------------------------------

// One page: more offers than that nobody reads.
void Loop::offers(std::shared_ptr<Answer<std::vector<LeaseInfo>>> answer) {
  constexpr const char* where = "Session::offers";
  using Offers = Result<std::vector<LeaseInfo>>;
  perform<std::vector<LeaseInfo>>(where, answer, [this] {
    return connection_->session.offersRequest().send().then(
        [](capnp::Response<rpc::TenantSession::OffersResults>&& reply) -> Offers {
          TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
          return lease_infos_from_wire(reply.getLeases(), where);
        });
  });
}

void Loop::accept_offer(LeaseId id, std::shared_ptr<Answer<LeaseInfo>> answer) {
  constexpr const char* where = "Session::accept_offer";
  perform<LeaseInfo>(where, answer, [this, id] {
    auto call = connection_->session.acceptOfferRequest();
    call.setLease(id.value);
    return call.send().then([](capnp::Response<rpc::TenantSession::AcceptOfferResults>&& reply) -> Info {
      TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
      return lease_info_from_wire(reply.getInfo(), where);
    });
  });
}

}  // namespace terrace::client
