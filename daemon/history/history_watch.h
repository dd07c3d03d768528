// SPDX-License-Identifier: Apache-2.0
// Notes every ten seconds how full the manager's pools are and what it has done.
//
// Place     daemon/role_manager.cc makes one; Service shows its History (Admin.history).
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include "daemon/event_loop/engine.h"
#include "daemon/history/history.h"

namespace terrace::daemon {

class HistoryWatch final : private kj::TaskSet::ErrorHandler {
 public:
  // `engine` outlives it. The first moment is noted at once.
  explicit HistoryWatch(Engine& engine);
  ~HistoryWatch() noexcept;

  const History& history() const { return history_; }

 private:
  void taskFailed(kj::Exception&& exception) override;
  kj::Promise<void> note_again();
  void note();

  Engine& engine_;
  History history_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
