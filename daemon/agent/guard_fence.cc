// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/guard_fence.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>

#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

constexpr const char* fence_where = "guard";

// An object file, or a bound device.
struct GuardedObject {
  std::string directory, name;
  bool is_device = false;
};

using OpenDirectory = std::unique_ptr<DIR, int (*)(DIR*)>;

Result<OpenDirectory> open_directory(const std::string& path) {
  OpenDirectory opened(::opendir(path.c_str()), ::closedir);
  if (opened == nullptr && errno != ENOENT) return os_error(errno, fence_where, "cannot read " + path);
  return opened;
}

// One of the kernel's own (kmem) has no holders to shut out.
bool is_mappable_device(const std::string& region, const std::string& name) {
  if (!name.starts_with("dax") || name.find('.') == std::string::npos) return false;
  char target[4096];
  const ssize_t length = ::readlink((region + "/" + name + "/driver").c_str(), target, sizeof(target));
  return length > 0 && std::string_view(target, static_cast<size_t>(length)).ends_with("/device_dax");
}

Status find_objects(const std::string& path, bool devices, std::vector<GuardedObject>& found) {
  TERRACE_ASSIGN_OR_RETURN(const OpenDirectory stream, open_directory(path));
  if (stream == nullptr) return {};
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (devices ? is_mappable_device(path, name) : name.ends_with(".obj"))
      found.push_back({devices ? path + "/" + name : path, name, devices});
  }
  return {};
}

Status truncate_file(const GuardedObject& object) {
  const std::string path = object.directory + "/" + object.name;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) return {};
  if (!file.valid() || ::ftruncate(file.get(), 0) != 0)
    return os_error(errno, fence_where, "cannot fence " + path);
  return {};
}

// A device that goes meanwhile is as good as unbound.
Status unbind_device(const GuardedObject& device) {
  const std::string driver = device.directory + "/driver";
  const UniqueFd file(::open((driver + "/unbind").c_str(), O_WRONLY | O_CLOEXEC));
  const bool done = file.valid() && ::write(file.get(), device.name.data(), device.name.size()) ==
                                        static_cast<ssize_t>(device.name.size());
  const int error = errno;
  char target[8];
  if (done || ::readlink(driver.c_str(), target, sizeof(target)) <= 0) return {};
  return os_error(error, fence_where, "cannot shut holders out of " + device.directory);
}

void keep_first(Status& first, Status status) {
  if (first.ok() && !status.ok()) first = std::move(status);
}

}  // namespace

Status fence_memory(const GuardedMemory& memory) {
  Status first;
  std::vector<GuardedObject> objects;
  for (const std::string& region : memory.dax_regions) keep_first(first, find_objects(region, true, objects));
  for (const std::string& one : memory.directories) keep_first(first, find_objects(one, false, objects));

  std::vector<Status> outcomes(objects.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < objects.size();)
      outcomes[i] = objects[i].is_device ? unbind_device(objects[i]) : truncate_file(objects[i]);
  };
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < std::min<size_t>(fenced_at_once_max, objects.size()); ++i)
      threads.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: fewer do it
  }
  work();
  for (std::thread& thread : threads) thread.join();
  for (Status& outcome : outcomes) keep_first(first, std::move(outcome));
  return first;
}

}  // namespace terrace::daemon
