// SPDX-License-Identifier: Apache-2.0
// Which calls are running, so that what they use can be replaced and then destroyed: who enters sees what was
// published last, or what was before and still lives.
//
//   a call                                   who replaces
//   count of its slot + 1 (seq_cst)          publishes the new state (seq_cst)
//   loads the published state (seq_cst)      twice: turns to the other row of counts, and waits until each
//   ...                                      count of the row before was 0 once
//   count - 1 (release)                      destroys the older state
//
// A call that counted before the publication is in one of the rows, and both are waited for; one that counts later loads
// the new state, whichever row it took. Turning keeps calls that come all the time from holding up the wait.
//
// Threads   Enter: any. wait_for_earlier(): one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace terrace::kv {

class CallGate {
  static constexpr size_t slots = 16;
  struct alignas(64) Count {
    std::atomic<uint32_t> calls = 0;
  };

 public:
  class Pass {
   public:
    explicit Pass(CallGate& gate) : count_(gate.mine()) {
      // seq_cst: before the load of the state; pairs with the looks of wait_for_earlier()
      count_.calls.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Pass() { count_.calls.fetch_sub(1, std::memory_order_release); }  // release: pairs with wait_for_earlier()
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Count& count_;
  };

  // Whether all calls that entered before the last publication have left. `again` is asked after each look that found
  // one: false ends the wait.
  template <typename Again>
  bool wait_for_earlier(Again again) {
    for (int turn = 0; turn < 2; ++turn) {
      // seq_cst: behind the publication; pairs with Pass()
      const uint32_t row = row_.fetch_xor(1, std::memory_order_seq_cst) & 1;
      for (Count& count : counts_[row])
        // seq_cst: behind the publication; pairs with ~Pass()
        while (count.calls.load(std::memory_order_seq_cst) != 0) {
          if (!again()) return false;
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    }
    return true;
  }

 private:
  Count& mine() {
    static std::atomic<uint32_t> next = 0;
    thread_local const uint32_t slot = next.fetch_add(1, std::memory_order_relaxed) % slots;
    return counts_[row_.load(std::memory_order_relaxed) & 1][slot];
  }

  std::atomic<uint32_t> row_ = 0;
  Count counts_[2][slots];
};

}  // namespace terrace::kv
