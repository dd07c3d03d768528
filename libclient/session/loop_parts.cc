// SPDX-License-Identifier: Apache-2.0
// Parts of a lease: claimed, given back, and whether an owner is dead.
#include "libclient/session/loop_templates.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

// Who gives a part back, or asks whether a writer is dead, is in the middle of something: a manager that is
// away does not hold it up for longer.
constexpr uint64_t patience_ns = 2 * ns_per_s;

}  // namespace

void Loop::claim_part(uint64_t handle, PartClaim claim, std::shared_ptr<Answer<uint64_t>> answer) {
  constexpr const char* where = "Lease::claim_part";
  perform_on_lease<uint64_t>(where, handle, answer, [claim](rpc::Lease::Client lease) {
    auto call = lease.claimPartRequest();
    call.setPart(claim.part);
    call.setLastEpoch(claim.last_epoch);
    call.setKey(claim.key);
    return call.send().then([](capnp::Response<rpc::Lease::ClaimPartResults>&& reply) -> Result<uint64_t> {
      TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
      return reply.getEpoch();
    });
  });
}

// Goes on after its caller was answered, for as long as any call, and keeps the handle for that: a manager that
// was away hears of the release when it is back, though who released has let go of the lease.
void Loop::release_part(uint64_t handle, uint32_t part, uint64_t epoch, std::shared_ptr<Answer<void>> answer) {
  constexpr const char* where = "Lease::release_part";
  tasks_.add(timer_.afterDelay(patience_ns * kj::NANOSECONDS).then([this, answer] {
    answer->deliver(Status(timeout_error(where)));
  }));
  const Held* held = held_.find(handle);
  const auto keep = held == nullptr ? nullptr : held->handle.lock();
  perform_on_lease<void>(where, handle, answer, [part, epoch, keep](rpc::Lease::Client lease) {
    auto call = lease.releasePartRequest();
    call.setPart(part);
    call.setEpoch(epoch);
    return call.send().then([](capnp::Response<rpc::Lease::ReleasePartResults>&& reply) {
      return status_from_wire(reply.getError(), where);
    });
  });
}

void Loop::part_is_dead(uint64_t handle, uint32_t part, uint64_t epoch, std::shared_ptr<Answer<bool>> answer) {
  constexpr const char* where = "Lease::part_is_dead";
  auto sent = repeating<bool>(where, [this, handle, part, epoch] {
    return capability_of(handle, where)
        .then([part, epoch](Result<rpc::Lease::Client> lease) -> kj::Promise<Result<bool>> {
          if (!lease.ok()) return Result<bool>(std::move(lease).error());
          auto call = lease->partIsDeadRequest();
          call.setPart(part);
          call.setEpoch(epoch);
          return call.send().then([](capnp::Response<rpc::Lease::PartIsDeadResults>&& reply) -> Result<bool> {
            TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
            return reply.getDead();
          });
        });
  });
  auto whole = bounded<bool>(where, std::min(patience_ns, options_.call_timeout_ns), kj::mv(sent));
  tasks_.add(whole.then([answer](Result<bool> result) { answer->deliver(std::move(result)); }));
}

}  // namespace terrace::client
