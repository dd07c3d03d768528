// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/handed_memory.h"

#include <algorithm>
#include <utility>

namespace terrace::daemon {

HandedMemory::HandedMemory(std::shared_ptr<const UniqueFd> memory, OpenCounts counts)
    : memory_(std::move(memory)), counts_(std::move(counts)) {
  ++*counts_.of_uid;
  ++*counts_.of_all;
}

void HandedMemory::close() {
  if (std::exchange(memory_, nullptr) == nullptr) return;
  --*counts_.of_uid;
  --*counts_.of_all;
}

kj::Maybe<int> CarriedMemory::carry(const std::shared_ptr<HandedMemory>& memory) {
  if (memory == nullptr || memory->fd() < 0) return nullptr;
  unsent_.push_back(memory);
  return memory->fd();
}

void CarriedMemory::written(kj::ArrayPtr<const int> fds) {
  for (const int fd : fds) {
    const auto at =
        std::find_if(unsent_.begin(), unsent_.end(), [fd](const auto& memory) { return memory->fd() == fd; });
    if (at == unsent_.end()) continue;  // some other capability's: the userfaultfd device, a backup
    const std::shared_ptr<HandedMemory> sent = *at;
    unsent_.erase(at);
    // The same lease's capability may be in a second answer, which needs it still.
    if (std::find(unsent_.begin(), unsent_.end(), sent) == unsent_.end()) sent->close();
  }
}

}  // namespace terrace::daemon
