// SPDX-License-Identifier: Apache-2.0
// The devices of a kind of memory: what the machine shows, what is adopted, and how a device is taken over. Part of
// Backend (backend.h), which says who calls on which thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "daemon/memory/tier_attributes.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// A device as the machine shows it. Seen is not adopted: nothing is written to it yet.
struct SeenDevice {
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  std::string detail;  // in words: how it is reached, or what is wrong and how to fix it
  // In words, what adopting it destroys: "2 dax devices, one mapped by process 12 (vllm)"; who uses them is
  // known to inspect() only. Empty: nothing.
  std::string contents = {};
};

// What the manager has adopted and what should be on it, for backends that find their objects again by where
// they lie.
struct KnownDevice {
  DeviceId id;
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
};
class Devices {
 public:
  virtual ~Devices() = default;

  // Those of this kind, adopted or not, as refresh() saw them last. Writes to none.
  virtual std::vector<SeenDevice> discover() = 0;
  // Looks at the hardware again: at the start, about once a second, and when the kernel reports a change. On a
  // worker; changes as little and costs as little as can be: whose the memory is that is not ours, and who uses
  // it, is for inspect().
  // Errors    where not all could be looked at (for want of descriptors, say): discover() stands as it was, and
  //           what it lacks is not gone; busy, where the next look will do
  virtual Status refresh() { return {}; }
  // Whether the last refresh() saw all there is of devices of that backend.
  virtual bool saw_all(std::string_view backend) const {
    (void)backend;
    return true;
  }
  // As discover(), looked at now, and with who uses what in `contents`: looks through all processes, so only
  // when somebody asks. On a worker.
  virtual std::vector<SeenDevice> inspect() {
    (void)refresh();
    return discover();
  }
  // Whether objects on devices of that backend are whole when a device comes back that was not there at a
  // start.
  virtual bool outlasts_absence(std::string_view backend) const {
    (void)backend;
    return false;
  }
  virtual TierAttributes attributes(const std::string& serial) const {
    (void)serial;
    return {};
  }
  // The adopted devices of every kind, whenever they change.
  virtual void know_devices(const std::vector<KnownDevice>& devices) { (void)devices; }
  // Whether something stands against taking the device over; changes nothing. On a worker.
  // Errors    busy   in use: says by whom
  virtual Status may_take_over(const std::string& serial) {
    (void)serial;
    return {};
  }
  // A device was adopted, durably, and know_devices() names it: what was on it goes. Done again it goes on.
  // Errors    busy   in use; the adoption is undone
  virtual Status take_over(const std::string& serial) {
    (void)serial;
    return {};
  }
};

}  // namespace terrace::daemon
