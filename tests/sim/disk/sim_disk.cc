// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/disk/sim_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/check.h"

namespace terrace::sim {
namespace {

constexpr size_t sector = 512;

SimDisk* in_use = nullptr;

// The kernel's own calls: the ones with these names come back here.
ssize_t kernel_write(int fd, const void* data, size_t bytes, off_t at) {
  return ::syscall(SYS_pwrite64, fd, data, bytes, at);
}
int kernel_open(const char* path, int flags, mode_t mode) {
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

std::string new_folder() {
  const bool memory = std::filesystem::is_directory("/dev/shm");
  std::string folder =
      (memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/terrace-sim-XXXXXX";
  TERRACE_CHECK(::mkdtemp(folder.data()) != nullptr, "a folder for the simulated disk can be made");
  return folder;
}

int failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

SimDisk::SimDisk(Prng& prng, Faults faults)
    : prng_(prng), faults_(std::move(faults)), folder_(new_folder()), history_(1) {
  TERRACE_CHECK(in_use == nullptr, "one simulated disk is in use at a time");
  in_use = this;
}

SimDisk::~SimDisk() {
  in_use = nullptr;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

SimDisk* SimDisk::of(int fd) {
  return in_use != nullptr && in_use->files_of_.contains(fd) ? in_use : nullptr;
}

SimDisk* SimDisk::of(const char* path) {
  const bool inside =
      in_use != nullptr && std::strncmp(path, in_use->folder_.c_str(), in_use->folder_.size()) == 0;
  return inside ? in_use : nullptr;
}

bool SimDisk::outlives_call() {
  if (dead_) return false;
  if (calls_left_ != UINT64_MAX && calls_left_-- == 0) dead_ = true;
  return !dead_;
}

// --- names ------------------------------------------------------------------------------------------

int SimDisk::open(const char* path, int flags, mode_t mode) {
  if (folder_ == path) {
    const int fd = kernel_open(path, flags, mode);
    if (fd >= 0) files_of_[fd] = nullptr;
    return fd;
  }
  const std::string name = name_of(path);
  const bool known = names_.contains(name);
  if (!known && (flags & O_CREAT) != 0 && !outlives_call()) return failed(EIO);
  const int fd = kernel_open(path, flags & ~O_DIRECT, mode);
  if (fd < 0) return fd;
  if (!known) {
    names_[name] = std::make_shared<File>();
    changed_names();
  }
  files_of_[fd] = names_[name];
  return fd;
}

int SimDisk::rename(const char* from, const char* to) {
  if (!outlives_call()) return failed(EIO);
  if (::syscall(SYS_rename, from, to) != 0) return -1;
  names_[name_of(to)] = std::exchange(names_[name_of(from)], nullptr);
  names_.erase(name_of(from));
  changed_names();
  return 0;
}

int SimDisk::unlink(const char* path) {
  if (dead_) return failed(EIO);
  if (!names_.contains(name_of(path))) return failed(ENOENT);
  if (!outlives_call()) return failed(EIO);
  if (::syscall(SYS_unlink, path) != 0) return -1;
  names_.erase(name_of(path));
  changed_names();
  return 0;
}

// --- contents ---------------------------------------------------------------------------------------

SimDisk::Bytes SimDisk::read(int fd) const {
  struct stat status {};
  TERRACE_CHECK(::fstat(fd, &status) == 0, "a file of the simulated disk can be looked at");
  Bytes bytes(static_cast<size_t>(status.st_size));
  const ssize_t n = ::syscall(SYS_pread64, fd, bytes.data(), bytes.size(), 0);
  TERRACE_CHECK(n == static_cast<ssize_t>(bytes.size()), "a file of the simulated disk can be read");
  return bytes;
}

SimDisk::Bytes SimDisk::read(const std::string& name) const {
  const int fd = kernel_open((folder_ + "/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0);
  Bytes bytes = read(fd);
  (void)::syscall(SYS_close, fd);
  return bytes;
}

void SimDisk::mapped(int fd) {
  if (const auto& file = files_of_.at(fd)) file->mapped = true;
}

ssize_t SimDisk::write(int fd, const void* data, size_t bytes, off_t at) {
  if (dead_) return failed(EIO);
  struct stat status {};
  if (::fstat(fd, &status) != 0) return -1;
  if (at + static_cast<off_t>(bytes) > status.st_size && faults_.full()) return failed(ENOSPC);
  const int error = outlives_call() ? faults_.of_write() : EIO;
  if (error != 0) bytes = prng_.below(bytes);  // some of it may have come through
  const ssize_t n = bytes == 0 ? 0 : kernel_write(fd, data, bytes, at);
  File& file = *files_of_.at(fd);
  const auto first = static_cast<uint64_t>(at);
  for (uint64_t place = first / sector; place * sector < first + bytes; ++place) file.dirty.insert(place);
  return error != 0 ? failed(error) : n;
}

int SimDisk::truncate(int fd, off_t bytes) {
  if (!outlives_call()) return failed(EIO);
  File& file = *files_of_.at(fd);
  const uint64_t end = read(fd).size();
  for (uint64_t place = static_cast<uint64_t>(bytes) / sector; place * sector < end; ++place)
    file.dirty.insert(place);
  return static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}

SimDisk::Bytes SimDisk::settled(const File& file, const Bytes& cached) {
  Bytes disk = file.durable;
  if (cached.size() != disk.size() && prng_.chance(1, 2)) disk.resize(cached.size());
  for (size_t at = 0; at < std::min(disk.size(), cached.size()); at += sector) {
    const size_t bytes = std::min({sector, disk.size() - at, cached.size() - at});
    const bool unsure = file.mapped || file.dirty.contains(at / sector);
    if (!unsure || std::memcmp(disk.data() + at, cached.data() + at, bytes) == 0) continue;
    if (prng_.chance(1, 2)) std::memcpy(disk.data() + at, cached.data() + at, bytes);
  }
  return disk;
}

int SimDisk::sync(int fd) {
  if (dead_) return failed(EIO);
  const int error = outlives_call() ? faults_.of_sync() : EIO;
  if (faults_.skips_sync()) return error != 0 ? failed(error) : 0;
  const std::shared_ptr<File> file = files_of_.at(fd);
  if (file == nullptr) {
    if (error != 0) return failed(error);
    history_.assign(1, names_);
    return 0;
  }
  if (error != 0 && dead_) return failed(error);  // what was dirty stays so
  const Bytes cached = read(fd);
  if (error != 0) {
    file->durable = settled(*file, cached);
    file->lost = true;
  } else if (file->mapped || file->durable.size() != cached.size()) {
    // Behind a sync that failed, what was lost then is still not there.
    Bytes disk = std::move(file->durable);
    const size_t before = disk.size();
    disk.resize(cached.size());
    for (size_t at = 0; at < cached.size(); at += sector) {
      if (!file->mapped && at + sector <= before && !file->dirty.contains(at / sector)) continue;
      std::memcpy(disk.data() + at, cached.data() + at, std::min(sector, cached.size() - at));
    }
    file->durable = std::move(disk);
  } else {
    for (const uint64_t place : file->dirty) {
      const size_t at = place * sector;
      if (at < cached.size())
        std::memcpy(file->durable.data() + at, cached.data() + at, std::min(sector, cached.size() - at));
    }
  }
  file->dirty.clear();
  return error != 0 ? failed(error) : 0;
}

void SimDisk::drop_cache(int fd) {
  const std::shared_ptr<File> file = files_of_.at(fd);
  if (file == nullptr || !file->lost || file->mapped) return;
  for (size_t at = 0; at < file->durable.size(); at += sector) {
    if (file->dirty.contains(at / sector)) continue;
    const size_t bytes = std::min(sector, file->durable.size() - at);
    const std::string path = "/proc/self/fd/" + std::to_string(fd);  // it may be open for reading alone
    const int writable = kernel_open(path.c_str(), O_RDWR | O_CLOEXEC, 0);
    (void)kernel_write(writable, file->durable.data() + at, bytes, static_cast<off_t>(at));
    (void)::syscall(SYS_close, writable);
  }
}

void SimDisk::restart(bool power_lost) {
  files_of_.clear();
  dead_ = false;
  calls_left_ = UINT64_MAX;
  if (!power_lost) return;
  std::map<const File*, Bytes> contents;
  for (const auto& [name, file] : names_) contents[file.get()] = settled(*file, read(name));
  for (const auto& [name, file] : names_) (void)::syscall(SYS_unlink, (folder_ + "/" + name).c_str());
  names_ = history_[prng_.below(history_.size())];
  history_.assign(1, names_);
  for (const auto& [name, file] : names_) {
    if (const auto at = contents.find(file.get()); at != contents.end()) file->durable = at->second;
    file->dirty.clear();
    file->mapped = file->lost = false;
    const int fd = kernel_open((folder_ + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const ssize_t n =
        file->durable.empty() ? 0 : kernel_write(fd, file->durable.data(), file->durable.size(), 0);
    TERRACE_CHECK(n == static_cast<ssize_t>(file->durable.size()),
                  "a file of the simulated disk can be written");
    (void)::syscall(SYS_close, fd);
  }
}

}  // namespace terrace::sim
