// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/litmus/faulty_memory.h"

namespace terrace::litmus {

bool FaultyMemory::is_tried(const uint64_t* word) const {
  return word >= region_.x[0].words && word < region_.y[0].words + 8 * rounds_of_batch;
}

void FaultyMemory::drain(bool all) {
  while (!stores_.empty() && (all || prng_.chance(1, 4))) {
    const size_t at = fault_ == Fault::stores_reordered ? prng_.below(stores_.size()) : 0;
    // To one word they keep their order: the fault is not to lose what a side stored last.
    size_t chosen = at;
    for (size_t earlier = 0; earlier < at; ++earlier)
      if (stores_[earlier].word == stores_[at].word) {
        chosen = earlier;
        break;
      }
    *stores_[chosen].word = stores_[chosen].value;
    stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
}

uint64_t FaultyMemory::load(const uint64_t* word) {
  turn_();
  drain(false);
  for (auto store = stores_.rbegin(); store != stores_.rend(); ++store)
    if (store->word == word) return store->value;
  if (fault_ != Fault::stale_loads || !is_tried(word)) return *word;
  const auto before = earlier_.find(word);
  if (before != earlier_.end() && prng_.chance(1, 4)) return before->second;
  earlier_.try_emplace(word, *word);
  return *word;
}

void FaultyMemory::store(uint64_t* word, uint64_t value) {
  turn_();
  if (fault_ == Fault::stores_lost && is_tried(word) && prng_.chance(1, 500)) return;
  stores_.push_back({word, value});
  drain(fault_ != Fault::stores_reordered && fault_ != Fault::barrier_ignored);
}

bool FaultyMemory::compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired) {
  turn_();
  drain(true);
  if (*word != expected) return false;
  if (fault_ == Fault::swap_divisible) turn_();
  *word = desired;
  return true;
}

void FaultyMemory::full_barrier() {
  turn_();
  if (fault_ != Fault::barrier_ignored) drain(true);
}

void FaultyMemory::publish(const uint64_t* at, size_t) {
  turn_();
  if (fault_ == Fault::results_lost && at >= reinterpret_cast<const uint64_t*>(region_.seen) &&
      at < region_.x[0].words) {
    for (size_t word = 0; word < 8; ++word) const_cast<uint64_t*>(at)[word] = 0;
  }
  drain(true);
}

void FaultyMemory::refresh(const uint64_t* at, size_t bytes) {
  turn_();
  drain(true);
  earlier_.erase(earlier_.lower_bound(at), earlier_.lower_bound(at + bytes / 8));
}

bool FaultyMemory::wait(uint64_t turn) {
  turn_();
  return turn < 1'000'000;
}

}  // namespace terrace::litmus
