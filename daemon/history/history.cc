// SPDX-License-Identifier: Apache-2.0
#include "daemon/history/history.h"

#include <algorithm>
#include <set>
#include <utility>

namespace terrace::daemon {

void History::add(Moment moment) {
  if (!moments_.empty() && moment.at_ns <= moments_.back().at_ns) return;
  if (moment.pools.size() > pools_max_) moment.pools.resize(pools_max_);
  moments_.push_back(std::move(moment));
  while (moments_.size() > moments_max_) moments_.pop_front();
}

std::vector<std::string> History::pool_names() const {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const Moment& moment : moments_)
    for (const PoolMoment& pool : moment.pools)
      if (seen.insert(pool.name).second) names.push_back(pool.name);
  return names;
}

const PoolMoment* find_pool(const Moment& moment, const std::string& name) {
  const auto at = std::find_if(moment.pools.begin(), moment.pools.end(),
                               [&](const PoolMoment& pool) { return pool.name == name; });
  return at == moment.pools.end() ? nullptr : &*at;
}

}  // namespace terrace::daemon
