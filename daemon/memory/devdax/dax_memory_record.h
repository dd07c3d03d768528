// SPDX-License-Identifier: Apache-2.0
// The ranges of adopted dax devices that were not erased since this boot: they may still hold old bytes,
// although no lease has them. The kernel does not record that.
//
// The kernel zeroes nothing. Memory is erased when a lease ends. Three kinds of ranges are `unerased`: newly
// adopted ones, those below another program's device, and all ranges after a reboot (other firmware, other
// kernels or a power cut could write there). carve() erases such a range before it hands the memory out. The
// record of a device is a small text file of the runtime directory. It is valid for the boot that it names; a
// device without one is unerased as a whole. A file is replaced as a whole; it need not outlive the machine,
// only the process.
//
// It also has what is kept although no lease has it: memory of which somebody still holds pages (daemon/memory/pins).
//
// Threads   Any.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/sync/mutex.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/devdax/dax_bus.h"

namespace terrace::daemon {

// A set of addresses.
class RangeSet {
 public:
  void add(DaxRange range);
  void remove(DaxRange range);
  // The parts of `range` that are in the set, ascending.
  std::vector<DaxRange> within(DaxRange range) const;
  std::vector<DaxRange> all() const;

 private:
  std::map<uint64_t, uint64_t> ends_;  // start -> end; neither overlapping nor touching
};

// Memory of one device that was taken away.
struct KeptMemory {
  std::vector<DaxRange> ranges;  // of that device, in its order
  std::optional<int64_t> pins;   // that were left; not known: it was not counted to the end

  bool overlaps(const std::vector<DaxRange>& others) const {
    for (const DaxRange& one : ranges)
      for (const DaxRange& other : others)
        if (one.overlaps(other)) return true;
    return false;
  }
};

class DaxMemoryRecord {
 public:
  // `directory` is made when something is written to it; empty: remembered by this object alone.
  // `read_only`: nothing is written, for who only looks.
  DaxMemoryRecord(std::string directory, std::string boot_id, bool read_only = false)
      : directory_(std::move(directory)), boot_id_(std::move(boot_id)), read_only_(read_only) {}

  // From here on the device is known; what its file says of it is taken if it is of this boot and of the same
  // addresses. Done again it changes nothing.
  void track(const std::string& serial, DaxRange device);
  // It went, or is given up: nothing is known of it any more, but for what of it is kept in this boot.
  void forget(const std::string& serial);

  // Whether another store's manager has adopted the device in this boot, by the device's file.
  // Errors    invalid_argument   says which one, and what to do
  Status may_claim(const std::string& serial, DaxRange device, const StoreClaim& claim) const;
  // From here on the file of a device that is tracked says whose it is.
  Status claim(const std::string& serial, const StoreClaim& claim);

  // A hand-over begins: until its second device is there the bytes lie on none, and are whole all the same. An
  // earlier process of this boot began one: what lies there is what the manager left there.
  Status begin_hand_over(const std::string& serial);
  bool had_hand_over(const std::string& serial) const;

  // Errors    as the file system's: then nothing may be done that relies on it
  Status mark_unerased(const std::string& serial, const std::vector<DaxRange>& ranges);
  void mark_erased(const std::string& serial, const std::vector<DaxRange>& ranges);
  std::vector<DaxRange> unerased(const std::string& serial, const std::vector<DaxRange>& ranges) const;

  // What a page counts that nobody has (daemon/memory/pins/page_pins.h), in this boot.
  std::optional<uint64_t> idle_count(const std::string& serial) const;
  void set_idle_count(const std::string& serial, uint64_t count);
  // Kept from now on. Of the same ranges again it replaces what was said of them.
  Status keep(const std::string& serial, KeptMemory memory);
  // Exactly these ranges are kept no more.
  void let_go(const std::string& serial, const std::vector<DaxRange>& ranges);
  std::vector<KeptMemory> kept(const std::string& serial) const;

 private:
  struct Entry {
    DaxRange device;
    RangeSet unerased;
    bool hand_over = false;
    StoreId store = {};      // whose manager adopted it; not valid: nobody said
    std::string owner = {};  // where that store is, in words
    std::optional<uint64_t> idle_count = {};
    std::vector<KeptMemory> kept = {};
  };

  std::string path_of(const std::string& serial) const { return directory_ + "/" + serial; }
  // Of the addresses that the entry has, or of any where it has none.
  bool load(const std::string& serial, Entry& entry) const;
  static bool read_line(std::istream& file, const std::string& word, Entry& entry);
  Status save(const std::string& serial, const Entry& entry) const;

  const std::string directory_;
  const std::string boot_id_;
  const bool read_only_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::daemon
