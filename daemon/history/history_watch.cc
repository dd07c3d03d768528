// SPDX-License-Identifier: Apache-2.0
#include "daemon/history/history_watch.h"

#include "daemon/log/log.h"

namespace terrace::daemon {

HistoryWatch::HistoryWatch(Engine& engine) : engine_(engine), tasks_(*this) {
  tasks_.add(note_again());
}

HistoryWatch::~HistoryWatch() noexcept = default;

void HistoryWatch::taskFailed(kj::Exception&& exception) {
  log::error("noting the manager's history failed: {}", exception.getDescription().cStr());
}

kj::Promise<void> HistoryWatch::note_again() {
  note();
  return engine_.timer().afterDelay(static_cast<int64_t>(history_interval_ns) * kj::NANOSECONDS).then([this] {
    return note_again();
  });
}

// Counters and a sum over each pool's devices; never a walk over leases. While the store fails there is a gap: what is
// in memory then may be taken back.
void HistoryWatch::note() {
  if (!engine_.serving()) return;
  const StateMachine& state = engine_.state();
  const EngineCounters& counters = engine_.counters();
  Moment moment{.at_ns = engine_.now_ns(),
                .grants = counters.grants,
                .commands = counters.commands,
                .commits = counters.commits};
  for (const auto& [id, use] : state.pool_uses())
    moment.pools.push_back({.name = state.find_pool(id)->name,
                            .capacity_bytes = use.capacity_bytes,
                            .free_bytes = use.free_bytes,
                            .leased_bytes = use.leased_bytes,
                            .scrubbing_bytes = use.scrubbing_bytes,
                            .quarantined_bytes = use.quarantined_bytes,
                            .absent_bytes = use.absent_bytes,
                            .leases = use.leases,
                            .waiting = use.waiting});
  history_.add(std::move(moment));
}

}  // namespace terrace::daemon
