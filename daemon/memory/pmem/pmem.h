// SPDX-License-Identifier: Apache-2.0
// Leases as namespaces of persistent memory: a device is a CXL region of pmem, a lease its own devdax namespace
// in it, whose alternative name in the label is the object's name (`pmem:lease-7`). By serial and label it is
// found again after a reboot, with its bytes.
//
// Sizes. A namespace costs 2 MiB of its region for the kernel's metadata, whatever its size, and units of 2 MiB
// (6 where memdevs interleave by threes). The granule is 16 MiB (128 MiB in regions of 16 GiB and more), since
// the kernel makes no smaller devices. The shown capacity counts every granule as if it were a lease of its
// own: a holder of n bytes can map n bytes, and the books never promise more than the kernel has. Page
// structures are kept in DRAM.
//
// Places. Where a namespace lies is the kernel's choice: at the lowest address where all of it fits. A lease's
// extents are therefore accounting: how much of which region, not where. Room that is free in the books but not
// in one piece is `capacity_exhausted`, with the largest free run named. A lease lies in one region.
//
// Zeros. Only bytes that this process has erased since its start, and not handed out again, count as erased;
// the rest of a new namespace is erased before its holder gets it.
//
// Fencing takes the namespace's device away: mappings give SIGBUS, descriptors ENXIO. Enabling the namespace
// again, to erase it, makes a new device; mappings and descriptors of the old one stay dead (measured on 6.1:
// docs/operations/pmem.md).
//
// A fence ends mappings, not pins (daemon/memory/pins): the namespace of which somebody still holds pages is kept. It is
// enabled again at once, so that the kernel has pages in which the pins can end; nobody may open it, and it is neither
// erased, renamed nor removed until all have. That it is kept is on record by where it lies, so that no way around its
// name leads to its memory (pmem_pins.cc, docs/design/0023-pinned-dax-pages.md).
//
// Memory that was never adopted is not written, with one exception on request: composing a region writes to its
// free capacity, to find out whether it keeps its bytes.
//
// Threads   Any. `kernel_mutex_` is held over every step that changes hardware, with the check for users of the
//           device. It is never held during a wait, an erasure or a copy: fences take it. `composing_` is held
//           over a whole change of regions and their record. `mutex_` protects the data behind
//           discover(), open(), usage() and attributes(), never for long. They are taken in the order
//           composing_, kernel_mutex_, mutex_.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/devdax/dax_memory_record.h"
#include "daemon/memory/devdax/kept_pages.h"
#include "daemon/memory/measured_record.h"
#include "daemon/memory/pins/page_pins.h"
#include "daemon/memory/pmem/erased_ranges.h"
#include "daemon/memory/pmem/pmem_kernel.h"
#include "daemon/memory/region/region.h"

namespace terrace::daemon {

struct PmemOptions {
  // How often a look is taken, and what could not be made again is tried again, although nothing seems changed.
  uint64_t look_ns = 10 * ns_per_s;
  // Devices of which the firmware says nothing are measured once, into this; nullptr: not. Outlives the
  // backend.
  MeasuredRecord* measured = nullptr;
  std::string record_directory = {};  // DaxMemoryRecord; empty: known to this process only
  std::string boot_id = {};
  // Sees who holds pages without a mapping; nullptr: nobody does, and memory is free once it is erased. Outlives
  // the backend.
  PagePins* pins = nullptr;
};

// Of a namespace of the manager's own, which lives for a moment.
inline constexpr const char* pmem_probe_label = "terrace:probe";

// What a lease of `bytes` takes of a region, metadata included.
uint64_t pmem_namespace_bytes(uint64_t bytes, uint64_t unit_bytes);
// Sizes that a region's namespaces are multiples of, once it is ours.
uint64_t pmem_unit_bytes(unsigned ways);
uint64_t pmem_granule_bytes(uint64_t region_bytes);
// What all leases together can have, even if each is of one granule.
uint64_t pmem_capacity_bytes(uint64_t region_bytes, unsigned ways);

class PmemBackend final : public Backend, public Composition {
 public:
  // Both kernels outlive it.
  PmemBackend(PmemKernel& kernel, CxlKernel& cxl, RegionRecords records, PmemOptions options = {});

  std::string_view kind() const override { return kinds::pmem; }
  std::vector<SeenDevice> discover() override;
  Status refresh() override;
  std::vector<SeenDevice> inspect() override;
  bool outlasts_absence(std::string_view) const override { return true; }
  TierAttributes attributes(const std::string& serial) const override;
  void know_devices(const std::vector<KnownDevice>& devices) override;
  // Within a boot, by the regions' records: labels have no room for it.
  Status claim(const StoreClaim& claim) override;
  void know_objects(const std::vector<KnownObject>& objects) override;
  Status may_take_over(const std::string& serial) override;
  Status take_over(const std::string& serial) override;
  Composition* composition() override { return this; }
  Result<std::string> create_region(const RegionRequest& request) override;
  Status destroy_region(const std::string& serial) override;
  Result<std::string> online(const std::string&) override { return cannot("bring online"); }
  Status offline(const std::string&) override { return cannot("take offline"); }

  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  Result<uint64_t> scrub(const std::string& name) override;
  bool erases_in_place(std::string_view) const override { return true; }
  Status erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
               uint64_t length) override;
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<Extent>& extents) override;
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  Kept kept(const std::string& name, const std::vector<Extent>& extents) override;
  std::string describe_memory() const override;
  bool huge_pages(std::string_view) const override { return true; }

 private:
  // A region as both buses show it.
  struct Device {
    MadeRegion made;
    PmemRegion region;
  };
  struct Object {
    std::string serial;
    PmemNamespace space;
    uint64_t bytes = 0;  // that a holder can map; 0: fenced
  };

  // pmem_hardware.cc: what is there
  Result<std::vector<Device>> look() TERRACE_REQUIRES(kernel_mutex_);
  Status publish() TERRACE_REQUIRES(kernel_mutex_);  // looks, and answers from that from now on
  void restore() TERRACE_REQUIRES(kernel_mutex_);
  // `users`: also who uses what is not ours, which is looked for in all processes.
  SeenDevice describe(const Device& device, bool users) const;
  std::string contents(const Device& device, bool users) const;
  void add_problems(std::vector<SeenDevice>& seen) const TERRACE_REQUIRES(mutex_);
  void keep_unseen(std::vector<SeenDevice>& seen, std::map<std::string, TierAttributes>& attributes,
                   std::map<std::string, Object>& objects) const TERRACE_REQUIRES(mutex_);
  Status all_seen() const TERRACE_REQUIRES(kernel_mutex_);
  Result<Device> find_device(const std::string& serial) TERRACE_REQUIRES(kernel_mutex_);
  Result<PmemNamespace> find_namespace(const std::string& uuid) TERRACE_REQUIRES(kernel_mutex_);
  // The object of that name in an adopted region; nullopt: there is none.
  Result<std::optional<Object>> find(const std::string& name) TERRACE_REQUIRES(kernel_mutex_);
  std::map<std::string, Object> objects_of(const std::vector<Device>& devices) const;
  // Whether that label is a lease's of ours on that device: another manager's may be called the same.
  bool is_known(const std::string& label, const std::string& serial) const;
  // No lease has it that this process knows: an adoption was cut off or refused, or the store is an older copy.
  bool may_be_somebodys(const std::string& name, const std::string& serial) const;
  bool is_adopted(const std::string& serial) const;
  Status may_claim(const Device& device) const;
  void claim_tracked(const std::string& serial);  // where it may
  Result<std::string> device_of(const std::string& name, const std::vector<Extent>& extents) const;
  bool on_lost_device(const std::string& name) const;

  // pmem.cc
  Result<PmemNamespace> make_namespace(const Device& device, const std::string& name, uint64_t bytes)
      TERRACE_REQUIRES(kernel_mutex_);
  Status finish_namespace(const std::string& uuid, const std::string& name) TERRACE_REQUIRES(kernel_mutex_);
  Status destroy_namespace(const PmemNamespace& space) TERRACE_REQUIRES(kernel_mutex_);
  void give_back_tail(const std::string& name, uint64_t keep_bytes) TERRACE_REQUIRES(kernel_mutex_);
  // Without it: erases what is not known to be erased.
  Status prepare(const PmemNamespace& space, const std::vector<ByteRange>& dirty);

  // pmem_region.cc
  // `waits`: for the kernel's drivers, without the mutex meanwhile.
  Probed probe(const CxlRegion& made, bool waits) TERRACE_REQUIRES(kernel_mutex_);
  Probed probe_region(const PmemRegion& region) TERRACE_REQUIRES(kernel_mutex_);
  Probed probe_volatile(const CxlRegion& made, bool waits) TERRACE_REQUIRES(kernel_mutex_);
  Probed check_device(const PmemNamespace& space) TERRACE_REQUIRES(kernel_mutex_);
  void measure(const Device& device) TERRACE_REQUIRES(kernel_mutex_);
  // Without it, of a device that was adopted by a manager that measured nothing: on what was just erased.
  void measure_erased(const std::string& serial, int fd, ByteRange erased);
  Status empty_of_users(const Device& device) const;
  Status unused_volatile(const std::string& serial) TERRACE_REQUIRES(kernel_mutex_);

  // pmem_pins.cc: pages that somebody holds
  Status learn_pins() TERRACE_REQUIRES(kernel_mutex_);
  void learn_pins(Device device) TERRACE_REQUIRES(kernel_mutex_);
  Status learn_by(const std::string& serial, const PmemNamespace& space) TERRACE_REQUIRES(kernel_mutex_);
  std::vector<KeptMemory> kept_in(const std::string& serial, const PmemNamespace& space) const;
  // Takes the device away from whoever may have it, with pins counted.
  Status take_away(const std::string& serial, const PmemNamespace& space) TERRACE_REQUIRES(kernel_mutex_);
  void keep_pages(const std::string& serial, const PmemNamespace& space, int64_t pins)
      TERRACE_REQUIRES(kernel_mutex_);
  Status look_at_kept(const std::string& serial, const PmemNamespace& space, const KeptMemory& memory) const
      TERRACE_REQUIRES(kernel_mutex_);
  // Once nobody holds a page of it: it is disabled, and kept no more. `space` is as it is afterwards.
  // Errors    busy   somebody does, or nobody knows
  Status reclaim(const std::string& serial, PmemNamespace& space) TERRACE_REQUIRES(kernel_mutex_);
  // What no lease has any more and was kept. Whether there was any.
  bool remove_ended(const Device& device) TERRACE_REQUIRES(kernel_mutex_);
  Status remove_foreign(const Device& device) TERRACE_REQUIRES(kernel_mutex_);
  // Of a new one: that the kernel gave it nothing that is kept, as it would if somebody else removed a namespace.
  Status check_not_kept(const std::string& serial, const PmemNamespace& space) const
      TERRACE_REQUIRES(kernel_mutex_);

  PmemKernel& kernel_;
  const PmemOptions options_;
  DaxMemoryRecord record_;
  KeptPages pages_;  // after record_

  Mutex composing_
      TERRACE_ACQUIRED_BEFORE(kernel_mutex_);  // one at a time composes regions and takes them apart
  Mutex kernel_mutex_ TERRACE_ACQUIRED_BEFORE(mutex_);
  RegionMaker maker_ TERRACE_GUARDED_BY(kernel_mutex_);
  std::map<std::string, ErasedRanges> erased_
      TERRACE_GUARDED_BY(kernel_mutex_);  // by serial; physical addresses
  std::map<std::string, uint64_t> erased_from_bytes_
      TERRACE_GUARDED_BY(kernel_mutex_);  // by object: erased from there to its end
  std::map<uint64_t, os::MemorySpeed> probed_
      TERRACE_GUARDED_BY(kernel_mutex_);  // by a region's start: how fast it was when it was tried
  std::string fingerprint_ TERRACE_GUARDED_BY(kernel_mutex_);
  uint64_t looked_ns_ TERRACE_GUARDED_BY(kernel_mutex_) = 0;
  uint64_t restored_ns_ TERRACE_GUARDED_BY(kernel_mutex_) = 0;
  std::string unseen_ TERRACE_GUARDED_BY(
      kernel_mutex_);  // by the last look(): a region that is there and could not be looked at
  unsigned looks_ TERRACE_GUARDED_BY(kernel_mutex_) = 0;  // complete ones since something changed
  bool restore_due_ TERRACE_GUARDED_BY(kernel_mutex_) = true;

  mutable Mutex mutex_;
  std::vector<SeenDevice> devices_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, TierAttributes> attributes_
      TERRACE_GUARDED_BY(mutex_);  // by serial: what the firmware says
  std::map<std::string, uint64_t> region_bytes_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, Object> objects_ TERRACE_GUARDED_BY(mutex_);
  std::map<DeviceId, KnownDevice> known_devices_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, KnownObject> known_objects_ TERRACE_GUARDED_BY(mutex_);
  std::set<std::string> preparing_
      TERRACE_GUARDED_BY(mutex_);  // carved, and not erased yet: nobody may open them
  std::vector<RegionProblem> problems_ TERRACE_GUARDED_BY(mutex_);
  std::optional<StoreClaim> claim_ TERRACE_GUARDED_BY(mutex_);  // holds for regions that come later, too
  bool stale_ TERRACE_GUARDED_BY(mutex_) = true;                // look, although the fingerprint is the same
};

}  // namespace terrace::daemon
