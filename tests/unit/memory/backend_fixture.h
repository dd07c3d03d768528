// SPDX-License-Identifier: Apache-2.0
// Shared by the backend's tests: a folder for runtime directories, a backend in it, and children that act as
// holders or as other users.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

#include "core/base/units.h"
#include "daemon/memory/files/emulated.h"

namespace terrace::daemon::test {

// A folder that others may enter, with whatever was mounted below it taken away at the end.
class RuntimeFolder {
 public:
  RuntimeFolder() {
    std::string name = "/tmp/terrace-backend-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr || ::chmod(name.c_str(), 0755) != 0) std::abort();
    path_ = name;
  }
  ~RuntimeFolder() {
    ::umount2(objects().c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    std::filesystem::remove_all(shared_memory_directory(path_), ignored);
  }
  RuntimeFolder(const RuntimeFolder&) = delete;
  RuntimeFolder& operator=(const RuntimeFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string objects() const { return path_ + "/objects"; }

  ObjectDirectoryOptions options(uint64_t bytes = 64 * mib) const {
    ObjectDirectoryOptions options;
    options.runtime_directory = path_;
    options.bytes = bytes;
    return options;
  }

 private:
  std::string path_;
};

inline std::vector<Extent> granules(uint64_t count, uint64_t first = 0) {
  return {{DeviceId{1}, first, count}};
}

inline constexpr uint64_t granule = limits::granule_bytes;

// Runs `work` in a child with SIGBUS at its default, and gives its wait status.
template <typename Work>
int run_in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGBUS, SIG_DFL);
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

inline bool exited_with(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

inline std::byte* map(int fd, uint64_t bytes, int protection = PROT_READ | PROT_WRITE) {
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

// Whose the tmpfs is that a pool's objects lie in. Where it is not ours, holders can take what is free of it, in
// root's daemon as in another user's.
enum class Tmpfs { own, others };

// A backend over two devices of 32 MiB, removed with its directory.
struct Pool {
  RuntimeFolder folder;
  std::optional<EmulatedBackend> backend;

  explicit Pool(Tmpfs tmpfs = Tmpfs::own) {
    ObjectDirectoryOptions options = folder.options();
    if (tmpfs == Tmpfs::others && ::geteuid() == 0) {
      options.directory = folder.objects();
      REQUIRE(::mkdir(options.directory.c_str(), 0700) == 0);
      REQUIRE(::mount("others", options.directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV,
                      "size=128m,mode=0700,huge=always") == 0);
    }
    auto directory = ObjectDirectory::prepare(options);
    REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
    backend.emplace(std::move(directory).value(),
                    EmulatedOptions{.devices = {{"cxl0", 32 * mib}, {"cxl1", 32 * mib}}});
  }
  std::string file(const std::string& name) const {
    const std::string mounted = folder.objects() + "/" + name;
    return std::filesystem::exists(folder.objects()) ? mounted
                                                     : shared_memory_directory(folder.path()) + "/" + name;
  }
};

inline bool all_zero(const std::byte* at, uint64_t bytes) {
  return std::all_of(at, at + bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace terrace::daemon::test
