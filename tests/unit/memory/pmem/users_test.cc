// SPDX-License-Identifier: Apache-2.0
// Who uses a device, on machines made of files, and where looking fails.
#include "daemon/memory/pmem/pmem_users.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

namespace fs = std::filesystem;

class Machine {
 public:
  Machine() {
    char path[] = "/tmp/t-users-XXXXXX";
    REQUIRE(::mkdtemp(path) != nullptr);
    root_ = path;
    fs::create_directories(root_ + "/proc");
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << '\n';
  }
  void process(int pid, const std::string& name) const {
    write("/proc/" + std::to_string(pid) + "/comm", name);
    write("/proc/" + std::to_string(pid) + "/maps", "7f00-7f01 r-xp 00000000 00:00 1 /lib/libc.so");
    fs::create_directories(root_ + "/proc/" + std::to_string(pid) + "/fd");
  }
  void opens(int pid, const std::string& device) const {
    fs::create_symlink(device, root_ + "/proc/" + std::to_string(pid) + "/fd/3");
  }
  void dax(const std::string& name, const std::string& address, const std::string& driver) const {
    const std::string folder = "/sys/bus/dax/devices/" + name;
    write(folder + "/resource", address);
    write(folder + "/target_node", "1");
    if (!driver.empty()) fs::create_symlink("../../drivers/" + driver, root_ + folder + "/driver");
  }

 private:
  std::string root_;
};

// No descriptor can be opened while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("users: of a region's dax devices, by the addresses they lie at") {
  const Machine machine;
  machine.dax("dax0.0", "0x100000000", "device_dax");
  machine.dax("dax0.1", "0x110000000", "device_dax");
  machine.dax("dax1.0", "0x200000000", "device_dax");
  machine.process(12, "vllm");
  machine.process(13, "sleep");
  CHECK(dax_users(4 * gib, gib, machine.root())->empty());
  machine.opens(12, "/dev/dax0.1");
  machine.opens(13, "/dev/dax1.0");
  CHECK(*dax_users(4 * gib, gib, machine.root()) == "dax0.1: process 12 (vllm)");
  machine.write("/proc/12/maps", "7f00-7f01 rw-s 00000000 00:06 7 /dev/dax0.0");
  CHECK(*dax_users(4 * gib, gib, machine.root()) == "dax0.0: process 12 (vllm), dax0.1: process 12 (vllm)");
  CHECK(dax_users(6 * gib, gib, machine.root())->empty());
}

TEST_CASE("users: memory of the kernel's own is in use, whoever has it") {
  const Machine machine;
  machine.dax("dax0.0", "0x100000000", "kmem");
  CHECK(*dax_users(4 * gib, gib, machine.root()) == "dax0.0: the kernel, as memory of node 1");
}

TEST_CASE("users: a machine without dax devices has none in use") {
  const Machine machine;
  CHECK(dax_users(0, UINT64_MAX, machine.root())->empty());
}

TEST_CASE("users: what cannot be looked at is not unused") {
  const Machine machine;
  machine.dax("dax0.0", "0x100000000", "device_dax");
  machine.process(12, "vllm");
  machine.opens(12, "/dev/dax0.0");
  PmemNamespace space;
  space.device = "/dev/dax0.0";
  CHECK(*pmem_users(space, machine.root()) == "process 12 (vllm)");
  const NoDescriptors none;
  const auto dax = dax_users(4 * gib, gib, machine.root());
  const auto pmem = pmem_users(space, machine.root());
  REQUIRE(!dax.ok());
  CHECK(dax.error().os_errno == EMFILE);
  REQUIRE(!pmem.ok());
  CHECK(pmem.error().os_errno == EMFILE);
}
