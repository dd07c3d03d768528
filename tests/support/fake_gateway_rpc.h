// SPDX-License-Identifier: Apache-2.0
// The schema's interfaces as a FakeGateway serves them on one connection. For the fake_gateway_*.cc files only.
#pragma once

#include <kj/async.h>
#include <kj/debug.h>
#include <kj/time.h>
#include <kj/timer.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/schema/terrace.capnp.h"
#include "tests/support/fake_gateway_state.h"

namespace terrace::test {

struct Link;
using FakeListeners = std::map<Link*, rpc::LeaseListener::Client>;
using WaitingGrants = std::vector<kj::Own<kj::PromiseFulfiller<void>>>;

void set_fake_error(rpc::Error::Builder wire, ErrorCode code, const std::string& detail);
void fill_fake_lease(const FakeLease& lease, rpc::LeaseInfo::Builder wire);

// One connection's link to faults that break it.
struct Link : kj::Refcounted {
  kj::Own<kj::PromiseFulfiller<void>> drop;
  std::shared_ptr<FakeGateway::State> state;
  kj::Timer* timer = nullptr;
  WaitingGrants* queue = nullptr;  // the server's; outlives the connection

  // Performs `body` under the fault planned for `method`; it gets whether to refuse.
  template <typename Body>
  kj::Promise<void> perform(const char* method, Body body) {
    const std::optional<Fault> fault = state->take_fault(method);
    if (fault == Fault::defect) KJ_FAIL_REQUIRE("a defect made by the test");
    if (fault == Fault::unknown) KJ_UNIMPLEMENTED("an older manager made by the test");
    if (fault != Fault::drop_before) body(fault);
    if (fault == Fault::drop_before || fault == Fault::drop_after) drop->fulfill();
    if (fault == Fault::drop_before || fault == Fault::drop_after || fault == Fault::hang)
      return kj::NEVER_DONE;
    return kj::READY_NOW;
  }
  template <typename Results>
  bool refused(std::optional<Fault> fault, Results results) {
    if (fault != Fault::refuse) return false;
    const std::lock_guard lock(state->mutex);
    set_fake_error(results.initError(), state->refuse_code, state->refuse_detail);
    return true;
  }
};

rpc::Gateway::Client make_fake_gateway_capability(kj::Own<Link> link, FakeListeners& listeners);
rpc::Lease::Client make_fake_lease_capability(kj::Own<Link> link, uint64_t id, int fd);  // takes the descriptor
// Opens the memory of `file` anew, as a manager does for each holder.
int open_fake_memory(const UniqueFd& file, rpc::Access access);

}  // namespace terrace::test
