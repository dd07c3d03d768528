// SPDX-License-Identifier: Apache-2.0
#include "libclient/tensor/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace terrace {

uint32_t worker_threads(uint32_t wanted, size_t items) {
  if (wanted == 0) wanted = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  return static_cast<uint32_t>(std::clamp<size_t>(items, 1, wanted));
}

void parallel_for(size_t items, uint32_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  // relaxed: only the counter itself is shared; joining orders the results.
  const auto loop = [&] {
    for (size_t index = next.fetch_add(1, std::memory_order_relaxed); index < items;
         index = next.fetch_add(1, std::memory_order_relaxed)) {
      work(index);
    }
  };
  std::vector<std::jthread> others;
  for (uint32_t index = 1; index < threads; ++index) {
    try {
      others.emplace_back(loop);
    } catch (const std::system_error&) {
      break;
    }
  }
  loop();
}

}  // namespace terrace
