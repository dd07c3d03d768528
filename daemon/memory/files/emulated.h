// SPDX-License-Identifier: Apache-2.0
// The emulated backend: pool memory as files of a private tmpfs directory, one 0600 file `<name>.obj` for each
// lease, whose descriptor the holder gets. It needs no hardware and obeys the same rules as the others.
//
// A hostile holder. tmpfs files cannot be sealed, so the holder of a writable descriptor can change the length of
// that one file, before the fence, after it, and after the file was removed:
//   - on a mount of our own (root) the longer file gets no memory: the mount is as large as what was carved
//     (mount_size.h). Growing fails with ENOSPC, a store there with SIGBUS. What it gets in the moment between the
//     mount's growth and a reservation, or a fence and the mount's shrinking, is cut off by whom that leaves short
//   - a file that its holder did not let go of keeps a name after the scrub, `<name>.obj.<inode>.gone`, so that
//     it can be cut too. Others remove it once it is closed
//   - within a tmpfs that others fill too (another user's daemon), the pages count against that tmpfs. Carving
//     may then fail with capacity_exhausted until that holder is gone; list() shows the grown file
//   - growing gives fresh zeroed pages of the kernel's, never bytes of another lease; objects share no page
//   - after the fence an old mapping of pages grown again stops giving SIGBUS; it shows zeros and that holder's
//     own later stores. The lease's bytes are gone all the same, and no other holder sees them
//   - a hole that it makes in its own file is room for whoever grows next: its own later stores may fail
//   - shrinking its own file takes its own memory away (SIGBUS)
// scrub() truncates again right before it removes the file, and reports io_error (the manager quarantines)
// when a holder grows the file faster than that. A read-only descriptor can be neither mapped writable nor
// resized. A holder with the daemon's own uid, or root, can open the file again through /proc/self/fd: keep
// tenants on other uids when isolation matters.
//
// The hand-over (rebind) copies from the end of `from` to its beginning, a piece at a time, and cuts `from` off
// behind each piece: extra memory is one piece, and a holder's access to copied bytes gives SIGBUS at once
// instead of zeros. `to` is as long as the lease plus the bytes to come, so its size records the progress:
// each cut is recorded there (one ftruncate) before it is made. Hence, with a crash anywhere,
//   - each piece is whole in `to` when its size says so, and else whole in `from`
//   - `from`'s holder cannot change the record: it reaches only `from`. Growing that again, during the
//     hand-over or between a crash and the redo, shows it new pages, which are not copied
//   - its stores to a part that was not copied yet may arrive; later stores are lost
//   - shrinking `from` early destroys its own bytes: they arrive as zeros, or the rebind ends as `corrupt`
// On return `from` has neither size nor name, and `to`, a file of its own, exactly the lease's size.
//
// Speed. Objects are ordinary memory of this machine, from any node. So no node is named, and a sample of other
// such memory is measured, not of the mount's, which leases may need.
//
// Hot-unplug without hardware: while a file `<name>.unplugged` lies in the object directory, discover() does
// not show the device `<name>`. Its objects stay as they are.
//
// Threads   carve, fence, scrub and open on one object follow each other, on different objects they may run on
//           any threads at once. resize may meet a fence of the same object: that stays fenced. rebind, copy
//           and list run on the worker thread.
#pragma once

#include <sys/stat.h>

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/limits.h"
#include "core/base/sync/mutex.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/files/descriptor_cache.h"
#include "daemon/memory/files/mount_size.h"
#include "daemon/memory/files/object_directory.h"
#include "daemon/memory/measured_record.h"

namespace terrace::daemon {

struct EmulatedDevice {
  std::string name;  // its serial is "emu:<name>"
  uint64_t size_bytes = 0;

  bool operator==(const EmulatedDevice&) const = default;
};

// Where the memory of objects must come from, for whoever keeps objects as files but not of any memory. The
// calls surround each piece of memory that is reserved.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Pages of this part of an object, which has none of them yet, will come from there.
  virtual Status bind(int fd, uint64_t offset, uint64_t bytes) = 0;
  // Whether there is so much now. Asked for each piece, at most room_step_bytes at once.
  // Errors    capacity_exhausted
  virtual Status room(uint64_t bytes) = 0;
  // Whether these pages are where they should be.
  virtual Status verify(int fd, uint64_t offset, uint64_t bytes) = 0;

  static constexpr uint64_t room_step_bytes = uint64_t{256} << 20;
};

struct EmulatedOptions {
  std::vector<EmulatedDevice> devices;
  uint64_t granule_bytes = limits::granule_bytes;
  // Whether memory is taken from the machine when it is granted. false lets a pool be larger than the machine,
  // for trials of scale: memory is taken when it is touched, and a holder gets SIGBUS where none is left.
  bool reserve = true;
  // How fast the memory of this machine is, of which emulated devices are made, is measured once a device is
  // adopted, into this; nullptr: not. Outlives the backend.
  MeasuredRecord* measured = nullptr;
  // Whom to ask for memory, and whether what was got is right; outlives the backend. nullptr: the mount alone.
  MemorySource* source = nullptr;
};

// Whether `name` can name an object: letters, digits and "-_.", not beginning with '.' or '-', at most
// limits::name_bytes_max long. Nothing that leads out of the directory passes.
bool valid_object_name(std::string_view name);

class EmulatedBackend final : public Backend {
 public:
  // Takes the prepared directory over.
  EmulatedBackend(ObjectDirectory directory, EmulatedOptions options);

  std::string_view kind() const override { return kinds::emulated; }
  std::vector<SeenDevice> discover() override;
  TierAttributes attributes(const std::string& serial) const override;
  Status refresh() override;
  void know_devices(const std::vector<KnownDevice>& devices) override;
  // Corrects what objects found at the start may have: their holders may have changed their length.
  void know_objects(const std::vector<KnownObject>& objects) override;
  Status take_over(const std::string& serial) override;
  Status claim(const StoreClaim& claim) override;
  Status hand_out(const std::string& name) override;
  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  // Returns the size that the object was carved, resized or fenced with; 0 where that was forgotten since.
  Result<uint64_t> scrub(const std::string& name) override;
  // A holder that grew its object is no hindrance: it is cut or filled up to `to_bytes`. One that shrank it
  // below both sizes, and a fence, are `busy`.
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<Extent>& extents) override;
  // list() and usage() show an unfinished `to` longer than its lease.
  // Errors    capacity_exhausted   not one page of the mount is free; both stay as they are, do it again later
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  // The same from an object of another directory.
  Status copy_from(const EmulatedBackend& source, const std::string& from, const std::string& to,
                   uint64_t bytes);
  bool quick(std::string_view name, uint64_t bytes) const override;
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  std::string describe_memory() const override;
  bool huge_pages(std::string_view) const override { return directory_.huge_pages(); }

  Status enlarge_directory(const ObjectDirectoryOptions& options);
  // Whether holders cannot have more memory than was carved.
  bool bounds_holders() const { return size_.active(); }
  // Room in the directory for a file that is no object; 0 ends it.
  void allow_beside(uint64_t bytes);
  // The clean end, when no lease is left: ObjectDirectory::remove().
  Status remove_directory();

 private:
  Status check_bytes(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents,
                     const char* where) const;
  Result<UniqueFd> open_object(const std::string& name, int flags, struct stat& status) const;
  Status reserve(int fd, const std::string& name, uint64_t bytes);
  Status take_memory(int fd, int mode, uint64_t offset, uint64_t bytes);
  Status set_size(int fd, const std::string& name, uint64_t from_bytes, uint64_t to_bytes);
  Result<bool> unlink_if_empty(UniqueFd& fd, const std::string& name);
  Status resize_file(int fd, const std::string& name, uint64_t from_bytes, uint64_t to_bytes);
  Result<UniqueFd> open_target(const std::string& to, uint64_t bytes, uint64_t& missing) const;
  Status hand_over(const UniqueFd& from, const UniqueFd& to, const std::string& from_name,
                   const std::string& to_name, uint64_t bytes, uint64_t missing);
  Status cut(int fd, const std::string& name, uint64_t bytes);
  Mutex& size_lock(const std::string& name);
  void start_size();
  bool cut_back();
  // After a reservation that found no room, for the `tries`th time: whether to try again.
  bool makes_room(int tries);
  bool cut_file(const char* file, const std::string& name, uint64_t allowed);
  int remove_file(const std::string& name);
  bool held_elsewhere(const std::string& file) const;
  void remove_gone(size_t files_max);
  template <typename Each>
  void each_file(const Each& each) const;

  ObjectDirectory directory_;
  EmulatedOptions options_;
  std::vector<SeenDevice> devices_;
  Mutex adopted_mutex_;
  std::vector<std::string> adopted_ TERRACE_GUARDED_BY(adopted_mutex_);  // serials
  bool umask_hinders_ = false;  // files are not made with all of mode 0600
  DescriptorCache descriptors_;
  // Between looking at an object's size and changing it: nothing may grow what another thread just fenced.
  std::array<Mutex, 64> size_locks_;
  MountSize size_;
  std::map<std::string, uint64_t> found_at_start_;  // their memory; know_objects() has not named them yet
  Mutex gone_mutex_;
  std::deque<std::string> gone_
      TERRACE_GUARDED_BY(gone_mutex_);  // files of scrubbed objects that somebody had open, the oldest first
};

}  // namespace terrace::daemon
