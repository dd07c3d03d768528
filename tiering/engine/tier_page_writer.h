// SPDX-License-Identifier: Apache-2.0
// The tier page: one file a process, in which `terrace tier` reads and writes (core/layout/tier_page.h).
//
// Threads   publish(), asked() and answer(): the engine thread's, with the range's lock held. All else before it
//           starts, or while it is held off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tiering/engine/range_state.h"

namespace terrace::tiering {

// What somebody wrote into the page: `terrace tier pause|resume|set`.
struct TierRequest {
  uint32_t number = 0;
  char policy[sizeof(layout::TierRange::wanted_policy)] = {};  // empty: as it is
  std::optional<uint64_t> ddr_bytes_max, copy_bytes_per_s_max;
  bool paused = false;
};

class TierPageWriter {
 public:
  // False where there is no page: nothing is shown then, and all calls do nothing. The first writer of a process
  // has it.
  bool open();
  void close();
  // In a child of fork, which does not have the page: another engine may make one of its own.
  void forget_in_child();

  // A range at its place in the page, from now on; false: no memory for it.
  bool show(RangeState& range, uint32_t index);
  void hide(RangeState& range);
  // Numbers and cells as they are now.
  void publish(RangeState& range, uint64_t copy_bytes_per_s_max, uint64_t now_ns);

  // One that is not answered yet.
  std::optional<TierRequest> asked(const RangeState& range) const;
  // What follows from it is published by then.
  void answer(RangeState& range, const TierRequest& request, layout::TierAnswer answer);

 private:
  bool make();

  layout::TierPage* page_ = nullptr;
  size_t bytes_ = 0;
  char path_[96] = {};
};

}  // namespace terrace::tiering
