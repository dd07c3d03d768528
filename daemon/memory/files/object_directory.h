// SPDX-License-Identifier: Apache-2.0
// The private directory in which a backend keeps its objects: found or made, checked, locked, and removed
// again. The emulated backend has one, the numa backend one for each memory node, mounted with that node's
// memory only. It must be on tmpfs: an object on a disk would be neither memory nor erased by truncation alone.
//
//   root      a tmpfs of our own mounted on <directory> (default <runtime_directory>/<name>), of the size of
//             all its devices, nosuid,nodev,noexec, 0700. One that is there already is used again: its
//             objects belong to leases that outlived the daemon
//   others    /dev/shm/terrace-<uid>-<hash of the runtime directory>[-<name>]; small pages and any node's
//             memory, as only root can mount
//
// Huge pages: an object is a whole number of 2 MiB granules and is reserved at once, so huge=always wastes
// no byte and gives every granule one page-table entry. within_size would give the same for whole objects
// and costs a look at the file's size at each allocation; advise would depend on each holder's madvise. Both
// can be chosen.
//
// Whose it is: the file `store-id` says which store's objects are in it (docs/formats/store_id.md). It is there,
// whole and synced, before the first object, and goes with the directory.
//
// Threads   One.
// Safety    No link is followed at the directory itself; it must belong to this user and be closed to
//           others, so that no other user can have prepared it; path_access.h lets single users pass through. The folders above it are trusted: /dev/shm is
//           sticky, and the maker of the runtime directory has checked that.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/memory/backend.h"

namespace terrace::daemon {

// never: only what the file system's own setting gives.
enum class HugePages : uint8_t { always, within_size, advise, never };

// The mount option's word: "always", ...
const char* huge_pages_word(HugePages huge_pages);

struct ObjectDirectoryOptions {
  std::string directory;          // empty: chosen as above
  std::string runtime_directory;  // names the daemon; absolute
  std::string name = "objects";   // tells a daemon's directories apart
  uint64_t bytes = 0;             // all devices together
  // Beyond the devices: for hand-overs, and where the mount's size does not follow the leases (mount_size.h) for
  // what holders grow their files by before carving for others is refused.
  uint64_t slack_bytes = uint64_t{64} << 20;
  int node = -1;      // a tmpfs that is mounted takes its memory from there only; -1: anywhere
  bool mount = true;  // whether root mounts a tmpfs; otherwise the directory must be on one
  HugePages huge_pages = HugePages::always;
};

class ObjectDirectory {
 public:
  ObjectDirectory() = default;

  // Errors    permission_denied  the directory is another user's, open to others, or a link
  //           busy               another daemon uses it; names it
  //           unsupported        it is on no tmpfs and none can be mounted; says what to do
  static Result<ObjectDirectory> prepare(const ObjectDirectoryOptions& options);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  // In words: which tmpfs, how large, and its huge pages or why there are none.
  const std::string& description() const { return description_; }
  bool huge_pages() const { return huge_pages_; }
  // A tmpfs for these objects alone, whose size is this daemon's to change.
  bool own_mount() const { return own_mount_; }
  uint64_t bytes_max() const { return bytes_max_; }

  // Writes down whose the directory is, as Backend::claim(); `objects`: how many are in it.
  Status claim(const StoreClaim& claim, size_t objects) const;

  // For devices that were added since, as at prepare(). A directory that is not ours to mount is as large as it
  // is.
  Status enlarge(const ObjectDirectoryOptions& options);

  // The clean end without leases: unmounts what we mounted and removes the directory. Lets go of it in any
  // case; what is left is found again by the next prepare().
  // Errors    busy   an object is still in it, or a holder still maps one
  Status remove();

 private:
  Status open_checked();
  Status lock() const;
  Status mount_tmpfs(const ObjectDirectoryOptions& options);
  Status fit_size(const ObjectDirectoryOptions& options);
  void describe();

  std::string path_;
  std::string description_;
  UniqueFd fd_;
  bool own_mount_ = false;
  bool huge_pages_ = false;
  uint64_t bytes_max_ = 0;  // with the slack
};

// Where prepare() puts the directory when none is configured and it cannot mount.
std::string shared_memory_directory(const std::string& runtime_directory, const std::string& name = "objects");

}  // namespace terrace::daemon
