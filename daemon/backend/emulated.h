// The emulated backend: pool memory as files of a private tmpfs directory, one 0600 file `<name>.obj` for each
// lease, whose descriptor the holder gets. It needs no hardware and obeys the same rules as the others.
//
// What a hostile holder can still do. tmpfs files cannot be sealed, so who has a writable descriptor can
// change the size of that one file, before the fence, after it, and after the file was removed:
//   - growing it gives fresh zeroed pages of the kernel's, never bytes of another lease; objects share no page
//   - after the fence an old mapping that covers pages grown again stops giving SIGBUS; it shows zeros and what
//     that holder writes itself. The lease's bytes are gone all the same, and no other holder sees them
//   - the pages count against the mount's size. Carving for others may then fail with capacity_exhausted until
//     that holder is gone; list() shows the grown file while it has a name
//   - shrinking its own file takes its own memory away (SIGBUS)
// scrub() therefore truncates again right before the unlink, and reports io_error (the manager quarantines)
// when a holder grows the file faster than that. A read-only descriptor can be neither mapped writable nor
// resized. A holder with the daemon's own uid, or root, can open the file again through /proc/self/fd: keep
// tenants on other uids when isolation matters.
//
// Threads   One worker thread for carve, fence, scrub and list; open() and usage() from any.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/limits.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/object_directory.h"

namespace terrace::daemon {

struct EmulatedDevice {
  std::string name;  // its serial is "emu:<name>"
  uint64_t size_bytes = 0;

  bool operator==(const EmulatedDevice&) const = default;
};

struct EmulatedOptions {
  std::vector<EmulatedDevice> devices;
  uint64_t granule_bytes = limits::granule_bytes;
};

// Whether `name` can name an object: letters, digits and "-_.", not beginning with '.' or '-', at most
// limits::name_bytes_max long. Nothing that leads out of the directory passes.
bool valid_object_name(std::string_view name);

class EmulatedBackend final : public Backend {
 public:
  // Takes the prepared directory over.
  EmulatedBackend(ObjectDirectory directory, EmulatedOptions options);

  std::string_view kind() const override { return "emulated"; }
  std::vector<SeenDevice> discover() override;
  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  // Returns the largest size seen of the object by this process (at carve, list, fence or here); 0 when a
  // fenced object of an earlier process is scrubbed.
  Result<uint64_t> scrub(const std::string& name) override;
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  std::string describe_memory() const override { return directory_.description(); }
  bool huge_pages() const override { return directory_.huge_pages(); }

  // The clean end, when no lease is left: ObjectDirectory::remove().
  Status remove_directory() { return directory_.remove(); }

 private:
  Result<UniqueFd> open_object(const std::string& name, int flags) const;
  Status reserve(int fd, const std::string& name, uint64_t bytes) const;
  Result<bool> truncate_and_unlink(int fd, const std::string& name) const;
  void remember_size(const std::string& name, uint64_t bytes);
  uint64_t forget_size(const std::string& name);

  ObjectDirectory directory_;
  EmulatedOptions options_;
  std::mutex sizes_mutex_;
  std::map<std::string, uint64_t> sizes_;  // largest size seen, by object
};

}  // namespace terrace::daemon
