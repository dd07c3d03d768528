// SPDX-License-Identifier: Apache-2.0
// A folder of real files that loses what a crash of the machine would lose. The store's own code, SQLite included, writes
// them through the calls of disk_calls.cc; what was not synced is there afterwards or not, sector by sector, as the seed says.
//
//   write              into the page cache: the file itself
//   fsync, fdatasync   the file's sectors, or the folder's names, are durable
//   the process dies   the page cache stays; the call that it died in is done in part
//   power is lost      of each sector that was not synced the old or the new; of changed names those up to some change
//   a sync fails       as if power were lost for that file, and its cache goes on as if all of it were durable
//
// Place     tests/sim/disk, below daemon/store; RealStore owns one. The files lie in memory, and calls say that they do not.
// Threads   One. One disk is in use at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/prng.h"

namespace terrace::sim {

class SimDisk {
 public:
  // What a call meets: an error number or 0, and whether nothing may get longer.
  struct Faults {
    std::function<int()> of_write, of_sync;
    std::function<bool()> full;
    std::function<bool()> skips_sync;  // a planted defect's: it says that it is durable
  };

  // An empty folder of its own, which is removed with it.
  SimDisk(Prng& prng, Faults faults);
  ~SimDisk();
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  const std::string& folder() const { return folder_; }

  // The process dies after so many further calls that change something; the one behind them is done in part.
  void die_after(uint64_t calls) { calls_left_ = calls; }
  bool dead() const { return dead_; }
  // Once everything is closed: what the next process finds.
  void restart(bool power_lost);

  // --- for disk_calls.cc: errors as the kernel's calls return them, in errno ------------------------

  static SimDisk* of(int fd);  // null: of no disk
  static SimDisk* of(const char* path);
  int open(const char* path, int flags, mode_t mode);
  void closed(int fd) { files_of_.erase(fd); }
  void mapped(int fd);  // to be written through memory
  ssize_t write(int fd, const void* data, size_t bytes, off_t at);
  int truncate(int fd, off_t bytes);
  int sync(int fd);
  int rename(const char* from, const char* to);
  int unlink(const char* path);
  void drop_cache(int fd);  // what is not dirty is read from the disk the next time

 private:
  using Bytes = std::vector<std::byte>;
  struct File {
    Bytes durable;
    std::set<uint64_t> dirty;  // sectors
    bool mapped = false;       // any sector may be dirty
    bool lost = false;         // a sync failed: the cache may have what the disk has not
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;

  std::string name_of(const char* path) const { return std::string(path).substr(folder_.size() + 1); }
  // Whether the process lives on behind this call; false in the one that it dies in, and in all later ones.
  bool outlives_call();
  Bytes read(int fd) const;
  Bytes read(const std::string& name) const;
  // What the disk has of a file whose cache has `cached`, once nothing more is written.
  Bytes settled(const File& file, const Bytes& cached);
  void changed_names() { history_.push_back(names_); }

  Prng& prng_;
  Faults faults_;
  std::string folder_;
  bool dead_ = false;
  uint64_t calls_left_ = UINT64_MAX;
  Names names_;
  std::vector<Names> history_;                     // the durable names, then those after each change
  std::map<int, std::shared_ptr<File>> files_of_;  // what is open; null: the folder
};

}  // namespace terrace::sim
