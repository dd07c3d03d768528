// SPDX-License-Identifier: Apache-2.0
// What this host would have to fence, and how long that takes: the objects there are, and the cost of each kind as it
// was measured (daemon/model/fence_cost.h).
//
//   carve, growth ─► Orders ─► estimate_with() ─► Uplink: does the host lease allow it? ─► set()
//   fence order ─► observe()                      heartbeat ─► estimate() ─► the manager, `terrace host list`
//
// Threads   Any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "daemon/memory/backend.h"
#include "daemon/model/fence_cost.h"
#include "daemon/model/kinds.h"
#include "daemon/model/latency_histogram.h"

namespace terrace::daemon {

struct FenceEstimate {
  FenceLoad load;
  uint64_t fence_ns = 0;
};

class Fencing {
 public:
  static constexpr uint64_t probe_bytes = 8 * mib;  // of the file that is measured with

  Fencing();

  // How long it takes here to truncate a mapped file in that directory, the object directory, and one of small pages:
  // what is believed of files is the slower. Where it cannot be measured what is assumed stands: the directory has no room
  // for a file of probe_bytes, or is no directory of files.
  void measure(const std::string& directory);

  // What there is now, whatever was known before.
  void reset(const std::vector<ObservedObject>& objects);
  void set(const std::string& object, uint64_t bytes);
  void forget(const std::string& object);
  // One object was fenced in that time: nothing of it can be mapped any more.
  void observe(const std::string& object, uint64_t took_ns, uint64_t now_ns);

  // Of single objects by the manager's order; all of a host at once is not among them.
  struct Done {
    LatencyHistogram times = {};
    uint64_t failed = 0;
  };
  void failed();
  Done done() const;

  FenceEstimate estimate(uint64_t now_ns) const;
  // As if that object were there, with so many bytes.
  FenceEstimate estimate_with(const std::string& object, uint64_t bytes, uint64_t now_ns) const;

 private:
  FenceCost& cost_of(std::string_view object) const TERRACE_REQUIRES(mutex_) {
    return is_file(object) ? files_ : devices_;
  }
  static bool is_file(std::string_view object) { return object_kind(object) == kinds::emulated; }
  FenceEstimate estimate_of(const FenceLoad& files, const FenceLoad& devices, uint64_t now_ns) const
      TERRACE_REQUIRES(mutex_);

  const uint32_t parallel_;
  mutable Mutex mutex_;
  mutable FenceCost files_ TERRACE_GUARDED_BY(mutex_);
  mutable FenceCost devices_ TERRACE_GUARDED_BY(mutex_);
  FenceLoad of_files_ TERRACE_GUARDED_BY(mutex_);
  FenceLoad of_devices_ TERRACE_GUARDED_BY(mutex_);
  Done done_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> objects_ TERRACE_GUARDED_BY(mutex_);  // name -> bytes that can be mapped
};

}  // namespace terrace::daemon
