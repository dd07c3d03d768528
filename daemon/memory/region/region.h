// SPDX-License-Identifier: Apache-2.0
// Composes memdevs into CXL regions, takes them apart, and makes them again after a reboot.
//
//   request -> window, granularity and order that the kernel can do -> record -> region -> decoders committed
//           -> enabled -> probed -> recorded as made
//
// The kernel's exit codes are not believed: a region counts when a fresh look shows it whole. A refused request
// is tried with all other orders and windows, and then explained.
//
// Place     daemon/memory/region; owned by the pmem backend, which calls it under its kernel's lock.
// Threads   One call at a time; seconds where devices are slow.
// Crash     The record is written before the kernel is changed, and says whether the region was ever finished:
//           restore() takes unfinished regions apart, and makes finished ones again.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/memory/backend.h"
#include "daemon/memory/region/region_kernel.h"
#include "daemon/memory/region/region_record.h"

namespace terrace::daemon {

// A region that is there and enabled, under the serial that it is adopted by.
struct MadeRegion {
  std::string serial;
  bool ram = false;
  uint64_t start = 0, bytes = 0;
  std::vector<std::string> memdevs;
  unsigned granularity = 0;

  bool operator==(const MadeRegion&) const = default;
};

// One on record that cannot be made now, and why.
struct RegionProblem {
  std::string serial;
  std::string text;

  bool operator==(const RegionProblem&) const = default;
};

// Whether what is written to a region that was just made can be read again.
struct Probed {
  // NOLINTNEXTLINE(google-explicit-constructor): a verdict is the status of having tried
  Probed(Status verdict) : status(std::move(verdict)) {}
  static Probed untried(Error why) {
    Probed probed{Status(std::move(why))};
    probed.tried = false;
    return probed;
  }

  Status status;
  // false: it could not be tried (its driver is not there yet, say), which says nothing of the memory.
  bool tried = true;
};

class RegionMaker {
 public:
  using Probe = std::function<Probed(const CxlRegion&)>;

  RegionMaker(CxlKernel& kernel, RegionRecords records) : kernel_(kernel), records_(std::move(records)) {}

  // Those that are whole. `unseen`: CxlView's.
  Result<std::vector<MadeRegion>> regions(std::string* unseen = nullptr);

  // Errors    invalid_argument    no such number of memdevs, granularity or size, or no fitting window
  //           not_found           a memdev is not there
  //           busy                a memdev is in a region, now or on record,
  //                               or its host bridge has no decoder left
  //           capacity_exhausted  a memdev or window has not that much
  //           io_error            the kernel takes no order and granularity of them; or the region was made,
  //                               and cannot be trusted
  // In each case nothing is left behind.
  Result<std::string> create(const RegionRequest& request, const Probe& probe);

  // Also forgets it; one that is only on record is forgotten.
  Status destroy(const std::string& serial);

  // Puts a region that something else made on record, so that it is made again after a reboot.
  Status remember(const std::string& serial);

  // Finishes what a crash or a reboot left. Returns what cannot be. A region that was made again and could not
  // be tried stays, since leases lie in it; it is among what is returned, and tried again by the next call.
  std::vector<RegionProblem> restore(const Probe& probe);
  // Whether it was made again and could not be tried yet: nothing new may be put there.
  bool is_untried(const std::string& serial) const { return untried_.contains(serial); }

 private:
  Status check_unrecorded(const RegionRequest& request, const std::vector<RegionRecord>& records) const;
  // Makes what the record says in the window `root`, and notes what it is called; on failure nothing is left.
  // `refused` becomes true where
  // the kernel refused that order, window or granularity, so that another may do.
  // `again`: it was there before, with what leases have in it.
  Status make(RegionRecord& record, const std::string& root, const Probe& probe, bool again, bool& refused);
  Status build(const RegionRecord& record, const std::string& region, bool& refused);
  Result<CxlRegion> verify(const RegionRecord& record, const CxlView& view, const std::string& region,
                           bool again) const;
  Status restore_one(RegionRecord& record, const CxlView& view, const Probe& probe);
  Status try_again(const CxlRegion& region, const Probe& probe);
  Status forget(std::vector<RegionRecord> records, const std::string& serial);

  CxlKernel& kernel_;
  RegionRecords records_;
  std::set<std::string> untried_;  // serials
};

}  // namespace terrace::daemon
