// SPDX-License-Identifier: Apache-2.0
// Waiting for what another thread or process is about to do.
#pragma once

#include <chrono>
#include <thread>

namespace terrace::test {

// Whether `condition()` became true within `limit`, which is for what never comes, not for how fast it must come:
// a sanitized test beside others waits long for a processor.
template <typename Condition>
bool eventually(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace terrace::test
