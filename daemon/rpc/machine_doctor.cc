// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/machine_doctor.h"

namespace terrace::daemon {

kj::Promise<Result<MachineDoctor::Seen>> MachineDoctor::ask(std::function<uint64_t()> now_ns) {
  if (!look_)
    return Result<Seen>(
        Error{.code = ErrorCode::unsupported,
              .where = "doctor",
              .detail = "this manager does not look at its machine; `terrace doctor` there does"});
  const auto state = state_;
  if (!state->looking && state->any && now_ns() - state->ended_ns < kept_ns) return state->seen;
  if (!state->looking) {
    state->looking = true;
    if (worker_ == nullptr) worker_ = std::make_unique<Worker>();
    auto looked = worker_->run([look = look_] { return look(); })
                      .then([state, now_ns](Result<std::vector<doctor::Check>> checks) {
                        state->ended_ns = now_ns();
                        state->any = true;
                        state->looking = false;
                        if (checks.ok())
                          state->seen = Seen{std::move(checks).value(), state->ended_ns};
                        else
                          state->seen = checks.error();
                      });
    // Kept until the next look: those who ask meanwhile wait for this one, and it goes on when they leave.
    under_way_ = std::make_unique<kj::ForkedPromise<void>>(looked.fork());
  }
  return under_way_->addBranch().then([state] { return state->seen; });
}

}  // namespace terrace::daemon
