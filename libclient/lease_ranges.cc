// SPDX-License-Identifier: Apache-2.0
#include "libclient/lease_ranges.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sync/mutex.h"
#include "terrace/mapping.h"

namespace terrace {
namespace {

struct Ranges {
  struct Range {
    size_t bytes = 0;
    std::weak_ptr<Lease> lease;
  };
  Mutex mutex;
  std::map<const std::byte*, Range> by_first TERRACE_GUARDED_BY(mutex);
  std::vector<std::weak_ptr<Lease>> leases TERRACE_GUARDED_BY(mutex);
};

// Never destroyed: mappings of static objects end after it would have been.
Ranges& ranges() {
  static Ranges* const all = new Ranges;
  return *all;
}

// What the kernel says of the mapping at an address. On layered file systems it names the device of another layer
// than fstat does, so a path will do as well.
struct MappedFile {
  dev_t device = 0;
  ino_t inode = 0;
  std::string path;
};

// "7f5c00000000-7f5c00200000 rw-s 00000000 00:05 312   /dev/dax0.1"
std::optional<MappedFile> file_at(const std::byte* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    unsigned major_number = 0, minor_number = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %x:%x %lu %n", &begin, &end, &major_number, &minor_number,
                    &inode, &path) < 5)
      continue;
    if (wanted < begin || wanted >= end) continue;
    if (inode == 0) return std::nullopt;  // no file's
    return MappedFile{::makedev(major_number, minor_number), inode, line.substr(static_cast<size_t>(path))};
  }
  return std::nullopt;
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return length < 0 ? std::string() : std::string(path, static_cast<size_t>(length));
}

bool is_file(int fd, const MappedFile& mapped) {
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0 || status.st_ino != mapped.inode) return false;
  return status.st_dev == mapped.device || (!mapped.path.empty() && path_of(fd) == mapped.path);
}

std::vector<std::shared_ptr<Lease>> leases_now() {
  std::vector<std::shared_ptr<Lease>> now;
  const MutexLock lock(ranges().mutex);
  for (const std::weak_ptr<Lease>& one : ranges().leases)
    if (auto lease = one.lock()) now.push_back(std::move(lease));
  return now;
}

std::shared_ptr<Lease> lease_of_range(const std::byte* address) {
  const MutexLock lock(ranges().mutex);
  const auto behind = ranges().by_first.upper_bound(address);
  if (behind == ranges().by_first.begin()) return nullptr;
  const auto& [first, range] = *std::prev(behind);
  if (static_cast<size_t>(address - first) >= range.bytes) return nullptr;
  return range.lease.lock();
}

}  // namespace

void note_lease(std::weak_ptr<Lease> lease) {
  const MutexLock lock(ranges().mutex);
  std::erase_if(ranges().leases, [](const std::weak_ptr<Lease>& one) { return one.expired(); });
  ranges().leases.push_back(std::move(lease));
}

void note_lease_range(std::span<const std::byte> range, std::weak_ptr<Lease> lease) {
  const MutexLock lock(ranges().mutex);
  ranges().by_first.insert_or_assign(range.data(), Ranges::Range{range.size(), std::move(lease)});
}

void forget_lease_range(const std::byte* first) {
  const MutexLock lock(ranges().mutex);
  ranges().by_first.erase(first);
}

std::shared_ptr<Lease> lease_of_memory(std::span<const std::byte> memory) {
  if (memory.empty()) return nullptr;
  if (auto lease = lease_of_range(memory.data())) return lease;
  const auto leases = leases_now();  // let go of without the lock: the last of a lease may end here
  if (leases.empty()) return nullptr;
  const auto mapped = file_at(memory.data());
  if (!mapped) return nullptr;
  for (const auto& lease : leases)
    if (is_file(lease->fd(), *mapped)) return lease;
  return nullptr;
}

bool is_dax_memory(std::span<const std::byte> memory) {
  if (memory.empty()) return false;
  const auto mapped = file_at(memory.data());
  if (!mapped) return false;
  const std::string name = mapped->path.substr(mapped->path.rfind('/') + 1);
  return name.size() > 3 && name.starts_with("dax") && name[3] >= '0' && name[3] <= '9';
}

}  // namespace terrace
