// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/numa/system_ram_kernel.h"

#include <daxctl/libdaxctl.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "core/os/node_attributes.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "RamKernel";
constexpr const char* auto_online_file = "/sys/devices/system/memory/auto_online_blocks";
constexpr size_t users_named_max = 3;

struct DaxctlUnref {
  void operator()(daxctl_ctx* context) const { daxctl_unref(context); }
};
using Context = std::unique_ptr<daxctl_ctx, DaxctlUnref>;

// The library prints to stderr unless told otherwise.
void silent(daxctl_ctx*, int, const char*, int, const char*, const char*, va_list) {}

Context new_context() {
  daxctl_ctx* raw = nullptr;
  if (daxctl_new(&raw) != 0) return nullptr;
  daxctl_set_log_fn(raw, silent);
  return Context(raw);
}

daxctl_dev* find_device(daxctl_ctx* context, const std::string& name) {
  if (context == nullptr) return nullptr;
  daxctl_region* region = nullptr;
  daxctl_region_foreach(context, region) {
    daxctl_dev* device = nullptr;
    daxctl_dev_foreach(region, device) {
      if (name == daxctl_dev_get_devname(device)) return device;
    }
  }
  return nullptr;
}

Error kernel_error(int code, const std::string& what) {
  Error error = os_error(code, where, what);
  if (code == EBUSY || code == EAGAIN || code == EINTR) error.code = ErrorCode::busy;
  if (code == ENXIO || code == ENODEV) error.code = ErrorCode::not_found;
  return error;
}

Error no_device(const std::string& name) {
  return kernel_error(ENODEV, "there is no dax device " + name);
}

RamDriver driver_of(DaxDriver driver) {
  switch (driver) {
    case DaxDriver::none: return RamDriver::none;
    case DaxDriver::device_dax: return RamDriver::device_dax;
    case DaxDriver::kmem: return RamDriver::kmem;
    case DaxDriver::other: break;
  }
  return RamDriver::other;
}

void read_blocks(daxctl_ctx* context, RamDevice& device) {
  daxctl_dev* found = find_device(context, device.name);
  daxctl_memory* memory = found == nullptr ? nullptr : daxctl_dev_get_memory(found);
  if (memory == nullptr) return;
  const int blocks = daxctl_memory_num_sections(memory);
  const int online = daxctl_memory_is_online(memory);
  device.blocks = static_cast<uint32_t>(std::max(blocks, 0));
  device.online = static_cast<uint32_t>(std::max(online, 0));
  device.movable = online > 0 && daxctl_memory_is_movable(memory) > 0;
}

uint32_t online_blocks(const std::string& name) {
  const Context context = new_context();
  RamDevice device{.name = name};
  read_blocks(context.get(), device);
  return device.online;
}

// --- a call that may never return -------------------------------------------------------------------------

// The kernel takes a block offline by moving its pages away, over and over, until that succeeds or a signal
// comes: with a page that cannot be moved, for ever. So such a call has a thread of its own, which gets that
// signal once nothing has changed for this long.
constexpr std::chrono::seconds without_progress_max{15};
constexpr std::chrono::milliseconds signal_again{100};

int interrupting_signal() {
  return SIGRTMIN + 5;
}

void interrupt_system_call(int) {}

class Interruptible {
 public:
  explicit Interruptible(std::function<int()> work) {
    static std::once_flag installed;
    std::call_once(installed, [] {
      struct sigaction action {};
      action.sa_handler = interrupt_system_call;  // without SA_RESTART
      ::sigaction(interrupting_signal(), &action, nullptr);
    });
    thread_ = std::thread([this, work = std::move(work)] {
      sigset_t set;
      ::sigemptyset(&set);
      ::sigaddset(&set, interrupting_signal());
      ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      const int outcome = work();
      const MutexLock lock(mutex_);
      outcome_ = outcome;
      done_ = true;
      changed_.notify_all();
    });
  }
  ~Interruptible() { thread_.join(); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  bool wait(std::chrono::milliseconds time) {
    MutexLock lock(mutex_);
    return changed_.wait_for(mutex_, time, [this]() TERRACE_REQUIRES(mutex_) { return done_; });
  }
  // The thread has not been joined, so that its handle is still its own.
  void interrupt() {
    while (!wait(signal_again)) ::pthread_kill(thread_.native_handle(), interrupting_signal());
  }
  int outcome() {
    const MutexLock lock(mutex_);
    return outcome_;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  bool done_ TERRACE_GUARDED_BY(mutex_) = false;
  int outcome_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

int call_while_it_progresses(std::function<int()> work, const std::function<uint64_t()>& progress) {
  using Steady = std::chrono::steady_clock;
  Interruptible call(std::move(work));
  uint64_t last = progress();
  auto last_change = Steady::now();
  while (!call.wait(std::chrono::milliseconds(500))) {
    if (const uint64_t now = progress(); now != last) {
      last = now;
      last_change = Steady::now();
    } else if (Steady::now() - last_change > without_progress_max) {
      call.interrupt();
    }
  }
  return call.outcome();
}

// Its memory blocks: `change` one of daxctl_memory_online and daxctl_memory_offline.
Status change_blocks(const std::string& name, int (*change)(daxctl_memory*), const std::string& what) {
  const Context context = new_context();
  daxctl_dev* device = find_device(context.get(), name);
  daxctl_memory* memory = device == nullptr ? nullptr : daxctl_dev_get_memory(device);
  if (memory == nullptr) return no_device(name);
  const int rc = call_while_it_progresses([=] { return change(memory); }, [&] { return online_blocks(name); });
  if (rc < 0) return kernel_error(-rc, what);
  return {};
}

}  // namespace

Result<std::vector<RamRegion>> DaxctlRamKernel::regions() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxRegion> found, bus_.regions());
  std::vector<RamRegion> regions;
  Context context;
  for (const DaxRegion& one : found) {
    RamRegion region{
        .serial = one.serial, .name = one.name, .bytes = one.bytes, .node = one.target_node, .devices = {}};
    for (const DaxDevice& device : one.devices) {
      if (device.bytes == 0) continue;
      RamDevice ram{.name = device.name, .driver = driver_of(device.driver), .bytes = device.bytes};
      if (ram.driver == RamDriver::kmem) {
        if (context == nullptr) context = new_context();
        read_blocks(context.get(), ram);
      }
      region.devices.push_back(std::move(ram));
    }
    regions.push_back(std::move(region));
  }
  return regions;
}

Status DaxctlRamKernel::fill(const RamRegion& wanted) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxRegion> found, bus_.regions());
  for (const DaxRegion& region : found) {
    if (region.serial != wanted.serial || region.devices.empty()) continue;
    const DaxDevice& first = region.devices.front();
    if (first.driver != DaxDriver::none) TERRACE_RETURN_IF_ERROR(bus_.disable(first.name));
    return bus_.add_range(first.name, region.range());
  }
  return no_device("of " + wanted.serial);
}

Status DaxctlRamKernel::disable(const std::string& name) {
  const Context context = new_context();
  daxctl_dev* device = find_device(context.get(), name);
  if (device == nullptr) return no_device(name);
  if (const int rc = daxctl_dev_disable(device); rc < 0) return kernel_error(-rc, "cannot unbind " + name);
  return {};
}

Status DaxctlRamKernel::enable_devdax(const std::string& name) {
  return bus_.enable(name);
}

Status DaxctlRamKernel::enable_ram(const std::string& name) {
  const Context context = new_context();
  daxctl_dev* device = find_device(context.get(), name);
  if (device == nullptr) return no_device(name);
  if (const int rc = daxctl_dev_enable_ram(device); rc < 0)
    return kernel_error(-rc, "cannot bind " + name + " to the kmem driver (CONFIG_DEV_DAX_KMEM)");
  return {};
}

Status DaxctlRamKernel::online_movable(const std::string& name) {
  return change_blocks(name, daxctl_memory_online, "cannot bring memory of " + name + " online");
}

Status DaxctlRamKernel::offline(const std::string& name) {
  TERRACE_RETURN_IF_ERROR(
      change_blocks(name, daxctl_memory_offline, "cannot take memory of " + name + " offline"));
  const uint32_t left = online_blocks(name);
  if (left == 0) return {};
  return kernel_error(EBUSY, std::to_string(left) + " memory blocks of " + name + " stay online");
}

bool DaxctlRamKernel::has_cpus(int node) {
  return os::node_attributes(node).has_cpus;
}

std::string DaxctlRamKernel::auto_online() {
  std::string word;
  std::ifstream(auto_online_file) >> word;
  return word;
}

Result<std::string> DaxctlRamKernel::holders(const std::string& name) {
  DaxDevice device;
  device.name = name;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxHolder> found, bus_.holders({device}));
  std::string text;
  for (size_t i = 0; i < std::min(found.size(), users_named_max); ++i)
    text += (i == 0 ? "" : ", ") + found[i].command + "[" + std::to_string(found[i].pid) + "]";
  if (found.size() > users_named_max)
    text += " and " + std::to_string(found.size() - users_named_max) + " more";
  return text;
}

std::string DaxctlRamKernel::users(int node) {
  return node_users(node);
}

// "7f0e1c000000 default anon=512 dirty=512 N0=12 N1=500 kernelpagesize_kB=4"
std::string node_users(int node, const std::string& root) {
  namespace fs = std::filesystem;
  struct User {
    uint64_t bytes = 0;
    std::string words;
  };
  std::vector<User> users;
  const std::string key = " N" + std::to_string(node) + "=";
  std::error_code failed;
  for (fs::directory_iterator at(root + "/proc", failed), end; !failed && at != end; at.increment(failed)) {
    const std::string pid = at->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    User user;
    std::ifstream maps(at->path() / "numa_maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t pages_at = line.find(key);
      if (pages_at == std::string::npos) continue;
      const size_t size_at = line.find("kernelpagesize_kB=");
      const uint64_t kilobytes =
          size_at == std::string::npos ? 4 : std::strtoull(line.c_str() + size_at + 18, nullptr, 10);
      user.bytes += std::strtoull(line.c_str() + pages_at + key.size(), nullptr, 10) * kilobytes * kib;
    }
    if (user.bytes == 0) continue;
    std::string command;
    std::ifstream comm(at->path() / "comm");
    std::getline(comm, command);
    for (char& c : command)
      if (c < ' ' || c > '~') c = '?';  // another user chose it
    user.words = command + "[" + pid + "] " + format_size(user.bytes);
    users.push_back(std::move(user));
  }
  std::sort(users.begin(), users.end(), [](const User& a, const User& b) { return a.bytes > b.bytes; });
  std::string text;
  for (size_t i = 0; i < std::min(users.size(), users_named_max); ++i)
    text += (i == 0 ? "" : ", ") + users[i].words;
  if (users.size() > users_named_max)
    text += " and " + std::to_string(users.size() - users_named_max) + " more";
  return text;
}

}  // namespace terrace::daemon
