// SPDX-License-Identifier: Apache-2.0
// Memory that is kept because somebody holds pages of it beyond the fence (daemon/memory/pins): counted when a device is
// taken away, recorded, and looked at again until the pins have ended. What the kinds of dax memory share; each knows
// itself which device of the manager's own lies on what is kept, and makes and removes that.
//
// Place     devdax_pins.cc and pmem_pins.cc; over DaxMemoryRecord, whose devices it names by their serials.
// Threads   Any; steps on one device follow each other (their backends see to it).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/sync/mutex.h"
#include "daemon/memory/devdax/dax_memory_record.h"
#include "daemon/memory/pins/page_pins.h"
#include "daemon/memory/tier_attributes.h"

namespace terrace::daemon {

class KeptPages {
 public:
  // `record` and `pins` outlive it. Without `pins` nobody can see them, and nothing is kept.
  KeptPages(DaxMemoryRecord& record, PagePins* pins) : record_(record), pins_(pins) {}

  // For a device's detail: whether its tenants must trust each other, and why.
  std::string in_words(const std::string& serial) const;

  // Where nothing was learned yet nobody has pinned anything: that is done before the first lease.
  Fence fence(const std::string& serial) const;

  // Whether what an idle block counts is not known yet and can be found out: once a boot, and once a process where
  // that failed.
  bool to_learn(const std::string& serial) const;
  // By a device over `range`, all of it mapped as `memory`, which nobody else has: what an idle block counts, and that
  // the probe fires when `take_away` takes that device away.
  void learn(const std::string& serial, std::span<std::byte> memory, DaxRange range, uint64_t block_bytes,
             const std::function<Status()>& take_away);
  // It could not be tried yet: says why, until it can.
  void cannot_learn_yet(const std::string& serial, const std::string& why);

  // nullopt: pins cannot be seen there.
  std::optional<PageBlock> block_of(const std::string& serial, uint64_t block_bytes) const;

  // Takes the device over `ranges` away by `take_away`. From before that until it is known that nobody has a page, the
  // record says that the memory is kept. Returns the pins that were left; nullopt where there were none, where none can
  // be seen, or where they were not counted: then it is kept for this boot.
  // Errors    as take_away's; then the device is taken to be as it was
  Result<std::optional<int64_t>> take_away(const std::string& serial, const std::vector<DaxRange>& ranges,
                                           uint64_t block_bytes, const std::function<Status()>& take_away);

  // `block_bytes`: of the manager's device that lies on exactly this memory; 0: there is none.
  // Errors    busy   somebody holds pages of it, or nobody knows
  Status look(const std::string& serial, const KeptMemory& memory, uint64_t block_bytes) const;

 private:
  DaxMemoryRecord& record_;
  PagePins* const pins_;
  mutable Mutex mutex_;
  std::map<std::string, std::string> not_learned_
      TERRACE_GUARDED_BY(mutex_);  // by serial: why pins are not counted, although they can be seen
  std::map<std::string, std::string> not_yet_
      TERRACE_GUARDED_BY(mutex_);  // by serial: likewise, and it is tried again
};

}  // namespace terrace::daemon
