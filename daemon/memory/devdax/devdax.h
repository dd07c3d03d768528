// SPDX-License-Identifier: Apache-2.0
// The devdax backend: memory of dynamic DAX regions (soft-reserved memory, volatile CXL regions). A device of
// the manager is a region; a lease is a dax device of its own with exactly the lease's extents as its ranges,
// whose descriptor the holder gets.
//
//   carve   create -> align -> one range an extent, in their order -> enable; a failed step undoes all
//   fence   disable (old mappings give SIGBUS) -> size 0 -> destroy. Never enabled again: that would make the
//           old mappings work again
//   scrub   nothing: erase() has zeroed the memory, and read a sample back, through a device of the manager. It
//           exists for one piece only, and cannot be kept for the next piece: a granule may be granted again
//           once its piece is erased
//   rebind  fence the old object, carve the new one over the same extents: the bytes stay where they are
//   resize  unsupported. A size changes only while nothing is bound, which takes every holder's mapping away,
//           and enabling the same device again would give it back to fenced holders. A program that needs more
//           memory leases another extent, or moves the lease
//
// The kernel keeps no names: an object is found again by its place (know_objects), which no two objects share.
// Any other device in an adopted region is an orphan, `devdax:orphan-dax0.3`. After a reboot no device of the
// manager is left, so every lease is lost, and its memory is erased again before the next grant.
//
// Regions that are not adopted are read and never written to. Adopting one (take_over) destroys the
// devices in it; if a process uses one of them, the region is `busy`.
//
// A hand-over that a crash cut off between its two halves has no device at all; list() reports its old object
// all the same, as the bytes are there, if it was begun in this boot (DaxMemoryRecord).
//
// A fence ends mappings, not pins (daemon/memory/pins): memory of which somebody still holds pages is kept. A device of
// the manager's own lies on it, so that the kernel has pages that the pins can end in, and each end shows in their
// counts; erase() is `busy` until all have. docs/design/0023-pinned-dax-pages.md
//
// Threads   Any. The kernel's steps follow each other (kernel_mutex_); erasing and copying run beside them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/sync/mutex.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/devdax/dax_bus.h"
#include "daemon/memory/devdax/dax_memory_record.h"
#include "daemon/memory/devdax/kept_pages.h"
#include "daemon/memory/measured_record.h"
#include "daemon/memory/pins/page_pins.h"

namespace terrace::daemon {

struct DevdaxOptions {
  std::string record_directory;  // DaxMemoryRecord; empty: known to this process only
  std::string boot_id;
  bool read_only = false;  // only looks: `terraced --fsck`
  unsigned erase_threads = 4;
  // Devices of which the firmware says nothing are measured once, into this; nullptr: not. Outlives the
  // backend.
  MeasuredRecord* measured = nullptr;
  // Sees who holds pages without a mapping; nullptr: nobody does, and memory is free once it is erased. Outlives
  // the backend.
  PagePins* pins = nullptr;
};

class DevdaxBackend final : public Backend, public SharedByHosts {
 public:
  // `bus` outlives it.
  DevdaxBackend(DaxBus& bus, DevdaxOptions options);

  std::string_view kind() const override { return kinds::devdax; }

  SharedByHosts* shared_by_hosts() override { return this; }
  std::vector<SeenDevice> discover() override;
  Status refresh() override;
  std::vector<SeenDevice> inspect() override;
  TierAttributes attributes(const std::string& serial) const override;
  void know_devices(const std::vector<KnownDevice>& devices) override;
  void know_objects(const std::vector<KnownObject>& objects) override;
  Status may_take_over(const std::string& serial) override;
  Status take_over(const std::string& serial) override;
  Status claim(const StoreClaim& claim) override;

  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  Result<uint64_t> scrub(const std::string& name) override;
  bool erases_in_place(std::string_view) const override { return true; }
  Status erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
               uint64_t length) override;
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<Extent>& extents) override;
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  // Reads the kernel's state, changes nothing.
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  Kept kept(const std::string& name, const std::vector<Extent>& extents) override;
  bool is_shared(std::string_view) const override { return true; }
  Result<Nonce> exchange(const std::string& name, const std::vector<Extent>& extents,
                         const Nonce& put) override;
  Status clean(const std::string& name, const std::vector<Extent>& extents) override;
  Status write_back(const std::string& name, const std::vector<Extent>& extents) override;
  Result<Hidden> hide(const std::string& view, const std::vector<Extent>& extents) override;
  std::vector<std::string> dax_regions() const override;
  std::string describe_memory() const override;
  bool huge_pages(std::string_view) const override { return true; }

 private:
  struct Object {
    std::string serial;
    std::vector<DaxRange> ranges;
    uint64_t bytes = 0;
    std::string device;  // the kernel's name; empty: not known, or fenced
    uint64_t order = 0;  // in which they were told
    std::vector<Extent> extents = {};
  };
  // Whether another store's leases may be on the region.
  Status may_claim(const DaxRegion& region) const;
  // Where extents lie: one region, and ranges in it.
  struct Place {
    std::string serial;
    std::vector<DaxRange> ranges;
    uint64_t bytes = 0;
  };

  // devdax_devices.cc: what there is
  Result<DaxRegion> look_at(const std::string& serial);                 // now, with its devices
  std::optional<DaxRegion> region_of(const std::string& serial) const;  // as it was seen last, without devices
  bool adopted(const std::string& serial) const;
  void place_objects();
  // `holders`: as far as they are known.
  SeenDevice seen(const DaxRegion& region, const std::vector<DaxHolder>& holders) const;
  std::vector<DaxDevice> foreign_devices_in(const DaxRegion& region) const;
  Status unused(const std::string& serial, const std::vector<DaxDevice>& strangers) const;
  bool to_measure(const DaxRegion& region) const;
  void measure(const DaxRegion& region) TERRACE_REQUIRES(kernel_mutex_);
  void measure_erased(const DaxRegion& region, const DaxDevice& device);
  bool is_object(const std::string& serial, const DaxDevice& device) const;

  // devdax.cc: objects
  Result<Place> locate(const std::string& name, const std::vector<Extent>& extents, const char* where) const;
  std::optional<Object> find(const std::string& name) const;
  Result<DaxDevice> make_for(const std::string& name, const Place& place) TERRACE_REQUIRES(kernel_mutex_);
  // A device of the manager's own, which list() does not show.
  Result<DaxDevice> make_own(const DaxRegion& region, const std::vector<DaxRange>& ranges)
      TERRACE_REQUIRES(kernel_mutex_);
  Status dismantle_own(const DaxRegion& region, const DaxDevice& device) TERRACE_REQUIRES(kernel_mutex_);
  void set_device(const std::string& name, const std::string& device);
  Result<DaxDevice> device_of(const std::string& name) const;
  Status erase_ranges(const DaxDevice& device, const std::vector<DaxRange>& parts);
  // devdax_shared.cc: does something with a device of the manager's own over these ranges
  Status with_own(const DaxRegion& region, const std::vector<DaxRange>& ranges,
                  const std::function<Status(const DaxDevice&)>& work);

  // devdax_kernel.cc: steps
  Result<DaxDevice> make(const DaxRegion& region, const std::vector<DaxRange>& ranges)
      TERRACE_REQUIRES(kernel_mutex_);
  Status build(const std::string& device, const DaxRegion& region, const std::vector<DaxRange>& ranges)
      TERRACE_REQUIRES(kernel_mutex_);
  // `had`: somebody may have had it, and may hold pages of it.
  enum class Had : uint8_t { nobody, maybe };
  Status dismantle(const DaxRegion& region, const DaxDevice& device, Had had) TERRACE_REQUIRES(kernel_mutex_);
  Status make_room(const DaxRegion& region, const std::vector<DaxRange>& ranges)
      TERRACE_REQUIRES(kernel_mutex_);
  Result<DaxDevice> make_with_room(const DaxRegion& region, const std::vector<DaxRange>& ranges)
      TERRACE_REQUIRES(kernel_mutex_);
  Status fence_object(const std::string& name, const Object& object) TERRACE_REQUIRES(kernel_mutex_);
  Status fence_orphan(const std::string& device) TERRACE_REQUIRES(kernel_mutex_);

  // devdax_pins.cc: pages that somebody holds
  void learn_pins(const DaxRegion& region, DaxRange free) TERRACE_REQUIRES(kernel_mutex_);
  void keep_pages(const DaxRegion& region, const std::vector<DaxRange>& ranges, int64_t pins)
      TERRACE_REQUIRES(kernel_mutex_);
  bool is_kept(const std::string& serial, const DaxDevice& device) const;
  Status reclaim(const DaxRegion& region, const std::vector<DaxRange>& ranges) TERRACE_REQUIRES(kernel_mutex_);
  Status reclaim_one(const DaxRegion& region, const KeptMemory& memory) TERRACE_REQUIRES(kernel_mutex_);
  Result<std::optional<DaxDevice>> keeper_of(const DaxRegion& region, const KeptMemory& memory)
      TERRACE_REQUIRES(kernel_mutex_);
  Status look_at_kept(const KeptMemory& memory, const std::optional<DaxDevice>& keeper,
                      const std::string& serial) TERRACE_REQUIRES(kernel_mutex_);

  DaxBus& bus_;
  const DevdaxOptions options_;
  DaxMemoryRecord record_;
  KeptPages pages_;                                             // after record_
  std::optional<StoreClaim> claim_ TERRACE_GUARDED_BY(mutex_);  // holds for devices that are adopted later, too

  Mutex kernel_mutex_ TERRACE_ACQUIRED_BEFORE(mutex_);  // the steps at the kernel, one after the other
  mutable Mutex mutex_;
  std::vector<SeenDevice> seen_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, TierAttributes> firmware_
      TERRACE_GUARDED_BY(mutex_);  // by serial: what the firmware says
  std::map<DeviceId, KnownDevice> devices_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, DaxRegion> regions_
      TERRACE_GUARDED_BY(mutex_);  // by serial, without their devices, as seen last
  std::map<std::string, Object> objects_ TERRACE_GUARDED_BY(mutex_);
  std::set<std::string> own_
      TERRACE_GUARDED_BY(mutex_);  // dax devices that live for one piece of erasing or for measuring
  uint64_t next_order_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::daemon
