// SPDX-License-Identifier: Apache-2.0
// How the emulated backend keeps holders to what was carved for them: the mount's size follows the objects
// (mount_size.h), who got more is cut back, and a file that is still open somewhere keeps a name until it is not.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "daemon/memory/files/emulated.h"
#include "daemon/memory/files/object_file.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view gone_suffix = ".gone";
constexpr std::string_view object_suffix = ".obj";

// How many files of scrubbed objects are looked at with each scrub. More than one, so that they get fewer.
constexpr size_t gone_looks = 2;

// What the directory's other files may have, when there is one of them.
const std::string beside_name = ".beside";

// How often a step of a reservation is tried again, and how often of these although nobody was found to have its room.
constexpr int cuts_max = 256;
constexpr int pauses_max = 100;
constexpr auto room_pause = std::chrono::microseconds(50);

uint64_t memory_of(const struct stat& status) {
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

}  // namespace

template <typename Each>
void EmulatedBackend::each_file(const Each& each) const {
  const int copy = ::openat(directory_.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(copy < 0 ? nullptr : ::fdopendir(copy), ::closedir);
  if (stream == nullptr) {
    if (copy >= 0) ::close(copy);
    return;
  }
  while (const dirent* entry = ::readdir(stream.get())) {
    struct stat status {};
    if (::fstatat(directory_.fd(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode))
      each(entry->d_name, status);
  }
}

// Objects of before may have their length, holes included, until the rows say better (know_objects). What they have of
// memory is never taken here: rows may be older than it, in a restored store, and recovery cuts where they are not.
void EmulatedBackend::start_size() {
  if (!directory_.own_mount()) return;
  std::map<std::string, uint64_t> found;
  each_file([&](std::string_view file, const struct stat& status) {
    if (file.ends_with(gone_suffix)) {
      const MutexLock lock(gone_mutex_);
      gone_.emplace_back(file);
    }
    if (!file.ends_with(object_suffix)) return;
    const std::string name(file.substr(0, file.size() - object_suffix.size()));
    // Memory beyond the end is no lease's.
    const uint64_t length = std::min(static_cast<uint64_t>(status.st_size), directory_.bytes_max());
    found[name] = length;
    if (length != 0)
      found_at_start_[name] = std::min(length, memory_of(status));  // what was fenced gets no room back
  });
  size_.start({.directory = directory_.fd(), .bytes_max = directory_.bytes_max()}, std::move(found),
              [this] { return cut_back(); });
}

void EmulatedBackend::know_objects(const std::vector<KnownObject>& objects) {
  for (const KnownObject& object : objects) {
    const auto found = found_at_start_.extract(object.name);
    if (!found.empty()) size_.set(object.name, std::max(object.bytes, found.mapped()));
  }
}

Status EmulatedBackend::enlarge_directory(const ObjectDirectoryOptions& options) {
  TERRACE_RETURN_IF_ERROR(directory_.enlarge(options));
  size_.set_bytes_max(directory_.bytes_max());
  return {};
}

void EmulatedBackend::allow_beside(uint64_t bytes) {
  if (bytes == 0) {
    size_.forget(beside_name);
  } else {
    size_.set(beside_name, bytes);
  }
}

std::string EmulatedBackend::describe_memory() const {
  return directory_.description() +
         (bounds_holders() ? "; no lease gets memory by growing its own file"
                           : "; a program can grow its lease's file, which takes from what is free");
}

bool EmulatedBackend::cut_back() {
  bool any = false;
  each_file([&](const char* file, const struct stat& status) {
    const std::string_view text = file;
    if (text.ends_with(gone_suffix)) {
      if (memory_of(status) != 0) any |= cut_file(file, "", 0);
      return;
    }
    if (!text.ends_with(object_suffix)) return;
    const std::string name(text.substr(0, text.size() - object_suffix.size()));
    const auto allowed = size_.allowed(name);
    if (allowed.has_value() && memory_of(status) > *allowed) any |= cut_file(file, name, *allowed);
  });
  return any;
}

// The mount is as large as what was carved, so that somebody has the room, or had it: who gives it back before anybody
// looks is not found, and may do so again.
bool EmulatedBackend::makes_room(int tries) {
  if (tries >= cuts_max) return false;
  if (cut_back()) return true;
  if (!bounds_holders() || tries >= pauses_max) return false;
  std::this_thread::sleep_for(room_pause);
  return true;
}

// What lies beyond the end goes as well, so that a file that is no longer than it may be is cut to its length.
bool EmulatedBackend::cut_file(const char* file, const std::string& name, uint64_t allowed) {
  const UniqueFd fd(::openat(directory_.fd(), file, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  const MutexLock lock(size_lock(name));
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || memory_of(status) <= allowed) return false;
  return ::ftruncate(fd.get(), std::min(status.st_size, static_cast<off_t>(allowed))) == 0;
}

// Removes the file of an object without memory, or keeps it under another name while somebody has it open.
int EmulatedBackend::remove_file(const std::string& name) {
  const std::string file = object_file(name);
  struct stat status {};
  if (::fstatat(directory_.fd(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? 0 : errno;
  if (bounds_holders() && held_elsewhere(file)) {
    const std::string gone = file + "." + std::to_string(status.st_ino) + std::string(gone_suffix);
    if (::renameat(directory_.fd(), file.c_str(), directory_.fd(), gone.c_str()) != 0) return errno;
    const MutexLock lock(gone_mutex_);
    gone_.push_back(gone);
  } else if (::unlinkat(directory_.fd(), file.c_str(), 0) != 0 && errno != ENOENT) {
    return errno;
  }
  remove_gone(gone_looks);
  return 0;
}

// The kernel gives a write lease only to whom nobody else has the file open for writing. A mapping counts as long
// as it is there, and so does a descriptor that is under way to its holder.
bool EmulatedBackend::held_elsewhere(const std::string& file) const {
  const UniqueFd fd(::openat(directory_.fd(), file.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  return fd.valid() && ::fcntl(fd.get(), F_SETLEASE, F_WRLCK) != 0;
}

void EmulatedBackend::remove_gone(size_t files_max) {
  const MutexLock lock(gone_mutex_);
  for (size_t look = std::min(files_max, gone_.size()); look > 0; --look) {
    std::string file = std::move(gone_.front());
    gone_.pop_front();
    if (held_elsewhere(file)) {
      gone_.push_back(std::move(file));
    } else {
      ::unlinkat(directory_.fd(), file.c_str(), 0);
    }
  }
}

}  // namespace terrace::daemon
