// SPDX-License-Identifier: Apache-2.0
// Which tensors stay in HBM between two device guards of a learned order, and when each is needed next.
//
// Place     order.h learns the order, of slots in the place of granules; device_tier.h carries it out. Pure.
// Threads   Plain values.
//
// As schedule.h does for granules of DDR, for whole tensors of any size: intervals between two uses are kept,
// the short ones first, as long as there is room in bytes at every position in between, beside what is in use
// there and the largest tensor that is being fetched.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::placement {

struct SlotUse {
  uint32_t slot = 0;
  uint64_t bytes = 0;
  uint32_t positions = 1;  // as Use::positions
};

struct NextUse {
  static constexpr uint32_t never = UINT32_MAX;
  uint32_t distance = never;  // uses until then; 0: the one that is expected next
  bool kept = false;          // planned to stay until then
};

class DeviceSchedule {
 public:
  DeviceSchedule() = default;
  // `room_bytes`: what the order may have. A cycle with a use of more than that has no plan: empty() then.
  DeviceSchedule(std::vector<SlotUse> cycle, uint64_t room_bytes);

  bool empty() const { return uses_.empty(); }
  uint32_t positions() const { return static_cast<uint32_t>(uses_.size()); }
  const SlotUse& use(uint32_t position) const { return uses_[position]; }
  bool kept_before(uint32_t position) const { return kept_[position] != 0; }
  uint64_t fetch_bytes() const { return fetch_bytes_; }  // a step
  // By slot, as seen from a position.
  std::vector<NextUse> next_uses(uint32_t position, uint32_t slots) const;

 private:
  void choose_kept(uint64_t room_bytes);

  std::vector<SlotUse> uses_;
  std::vector<uint8_t> kept_;  // by position
  uint64_t fetch_bytes_ = 0;
};

}  // namespace terrace::placement
