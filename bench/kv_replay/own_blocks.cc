// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/kv_replay/worker.h"

namespace terrace::bench {

void OwnBlocks::add(uint32_t block, const SharedTensor& tensor) {
  tensors_.insert_or_assign(block, tensor);
  by_use_.emplace(run_.stamp(block).load(std::memory_order_relaxed), block);
}

bool OwnBlocks::evict_one() {
  // A block that was used since it was entered is entered again: once for each use, at most.
  size_t busy = 0;
  while (!by_use_.empty() && busy < std::min<size_t>(64, by_use_.size())) {
    const auto [stamp, block] = *by_use_.begin();
    by_use_.erase(by_use_.begin());
    const auto found = tensors_.find(block);
    if (found == tensors_.end()) continue;  // lost on purpose
    const uint64_t used = run_.stamp(block).load(std::memory_order_relaxed);
    if (used != stamp) {
      by_use_.emplace(used, block);
      continue;
    }
    const Removed removed = remove(block, found->second);
    if (removed == Removed::busy) {
      run_.used(block);  // somebody reads it now
      by_use_.emplace(run_.stamp(block).load(std::memory_order_relaxed), block);
      bench::add(counts_.evicted_busy);
      ++busy;
      continue;
    }
    tensors_.erase(found);
    if (removed == Removed::not_ours) continue;
    bench::add(counts_.evicted);
    return true;
  }
  return false;
}

OwnBlocks::Removed OwnBlocks::remove(uint32_t block, const SharedTensor& tensor) {
  const Fact fact = run_.truth().of(block);
  const Fact removing{Phase::removing, fact.generation};
  if (fact.phase != Phase::published || !run_.truth().change(block, fact, removing)) return Removed::not_ours;
  const Status removed = space_.remove(tensor);
  if (removed.ok()) {
    run_.truth().change(block, removing, {Phase::removed, fact.generation});
    replicas_.discard(tensor);
    return Removed::yes;
  }
  run_.truth().change(block, removing, fact);
  if (removed.error().code == ErrorCode::busy) return Removed::busy;
  run_.found_wrong(Wrong::lost, block, "its owner cannot remove it: " + removed.error().to_string());
  return Removed::not_ours;
}

void OwnBlocks::lose(uint32_t block) {
  const auto found = tensors_.find(block);
  if (found == tensors_.end()) return;
  (void)space_.remove(found->second);
  tensors_.erase(found);
}

}  // namespace terrace::bench
