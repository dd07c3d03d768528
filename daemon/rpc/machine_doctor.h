// SPDX-License-Identifier: Apache-2.0
// What the manager's machine can and cannot do, as the doctor's checks say: looked at when somebody asks, and kept for
// some seconds, so that asking again and again costs no more than asking once.
//
// Place     Admin.doctor -> here -> a thread that waits for a helper process (daemon/helper), which looks. A look that
//           hangs keeps that thread only, and no longer than the helper may run.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "daemon/doctor/checks.h"
#include "daemon/event_loop/worker.h"

namespace terrace::daemon {

class MachineDoctor {
 public:
  // Blocks; called on a thread of its own.
  using Look = std::function<Result<std::vector<doctor::Check>>()>;

  MachineDoctor() = default;
  MachineDoctor(const MachineDoctor&) = delete;
  MachineDoctor& operator=(const MachineDoctor&) = delete;
  ~MachineDoctor() {
    if (stop_) stop_();
  }

  struct Seen {
    std::vector<doctor::Check> checks;
    uint64_t looked_ns = 0;  // by the clock of `now_ns`
  };

  // As long as what was seen counts; also how long a failure is not tried again.
  static constexpr uint64_t kept_ns = 10 * ns_per_s;

  // None: there is nobody who looks. `stop`: ends a look under way, from any thread.
  void set_look(Look look, std::function<void()> stop) {
    look_ = std::move(look);
    stop_ = std::move(stop);
  }

  // Errors    unsupported   nobody looks here
  //           ...           those of the look
  kj::Promise<Result<Seen>> ask(std::function<uint64_t()> now_ns);
  // What the last look saw, whoever asked for it; null: nothing yet, or that look failed.
  const Seen* newest() const { return state_->seen.ok() ? &*state_->seen : nullptr; }

 private:
  struct State {
    Result<Seen> seen = Error{.code = ErrorCode::unavailable, .where = "doctor", .detail = "not looked yet"};
    uint64_t ended_ns = 0;  // of the last look
    bool any = false;
    bool looking = false;
  };

  Look look_;
  std::function<void()> stop_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::unique_ptr<kj::ForkedPromise<void>> under_way_;
  std::unique_ptr<Worker> worker_;  // last: its end waits for a look under way
};

}  // namespace terrace::daemon
