// SPDX-License-Identifier: Apache-2.0
// Things that cannot be ended any more, since their end is a store to memory that is gone: kept for ever.
#pragma once

#include <utility>
#include <vector>

#include "core/base/sync/mutex.h"

namespace terrace::checkpoint {

template <typename Thing>
void abandon(Thing thing) {
  static Mutex mutex;
  static auto& all = *new std::vector<Thing>;
  const MutexLock lock(mutex);
  all.push_back(std::move(thing));
}

}  // namespace terrace::checkpoint
