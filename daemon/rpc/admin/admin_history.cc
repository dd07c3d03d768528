// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what the manager was in the last hour, as columns.
#include "daemon/history/history.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

template <typename List, typename Value>
void write_column(List out, const std::deque<Moment>& moments, Value value) {
  for (uint32_t i = 0; i < out.size(); ++i) out.set(i, value(moments[i]));
}

void write_pool_history(rpc::PoolHistory::Builder out, const std::deque<Moment>& moments,
                        const std::string& name) {
  const auto rows = static_cast<uint32_t>(moments.size());
  std::vector<const PoolMoment*> found;
  for (const Moment& moment : moments) found.push_back(find_pool(moment, name));
  const auto write = [&](auto list, uint64_t PoolMoment::*value) {
    for (uint32_t i = 0; i < rows; ++i) list.set(i, found[i] == nullptr ? 0 : found[i]->*value);
  };
  out.setName(name);
  write(out.initCapacityBytes(rows), &PoolMoment::capacity_bytes);
  write(out.initFreeBytes(rows), &PoolMoment::free_bytes);
  write(out.initLeasedBytes(rows), &PoolMoment::leased_bytes);
  write(out.initScrubbingBytes(rows), &PoolMoment::scrubbing_bytes);
  write(out.initQuarantinedBytes(rows), &PoolMoment::quarantined_bytes);
  write(out.initAbsentBytes(rows), &PoolMoment::absent_bytes);
  write(out.initLeases(rows), &PoolMoment::leases);
  write(out.initWaiting(rows), &PoolMoment::waiting);
}

}  // namespace

// At once, as health: nothing of it is of any weight, and it is wanted most while something fails.
kj::Promise<void> AdminServer::history(HistoryContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    auto results = context.getResults();
    results.setIntervalNs(history_interval_ns);
    const History* history = service().history();
    if (history == nullptr) return kj::READY_NOW;
    const std::deque<Moment>& moments = history->moments();
    const auto rows = static_cast<uint32_t>(moments.size());
    const uint64_t now = now_ns();
    write_column(results.initAgeNs(rows), moments, [now](const Moment& one) { return now - one.at_ns; });
    write_column(results.initGrants(rows), moments, [](const Moment& one) { return one.grants; });
    write_column(results.initCommands(rows), moments, [](const Moment& one) { return one.commands; });
    write_column(results.initCommits(rows), moments, [](const Moment& one) { return one.commits; });
    const std::vector<std::string> names = history->pool_names();
    auto pools = results.initPools(static_cast<uint32_t>(names.size()));
    for (uint32_t i = 0; i < pools.size(); ++i) write_pool_history(pools[i], moments, names[i]);
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
