// SPDX-License-Identifier: Apache-2.0
#include "daemon/inventory/dax_mode.h"

#include <daxctl/libdaxctl.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <memory>

namespace terrace::inventory {
namespace {

struct ContextUnref {
  void operator()(daxctl_ctx* context) const { daxctl_unref(context); }
};
using Daxctl = std::unique_ptr<daxctl_ctx, ContextUnref>;

void silent(daxctl_ctx*, int, const char*, int, const char*, const char*, va_list) {}

Result<Daxctl> open_library() {
  daxctl_ctx* raw = nullptr;
  if (const int failed = daxctl_new(&raw); failed != 0)
    return os_error(-failed, "KernelDaxModes", "libdaxctl cannot start");
  daxctl_set_log_fn(raw, silent);
  return Daxctl(raw);
}

daxctl_dev* find(const Daxctl& context, const std::string& name) {
  daxctl_region* region = nullptr;
  daxctl_region_foreach(context.get(), region) {
    daxctl_dev* device = nullptr;
    daxctl_dev_foreach(region, device) {
      if (name == daxctl_dev_get_devname(device)) return device;
    }
  }
  return nullptr;
}

Error step_failed(int failed, const std::string& what) {
  return os_error(failed < 0 ? -failed : EIO, "KernelDaxModes::to_devdax", what);
}

// Brings back online what was taken offline before a block refused.
Status take_offline(daxctl_dev* device, daxctl_memory* memory, const std::string& name) {
  if (daxctl_memory_is_online(memory) <= 0) return {};
  const bool movable = daxctl_memory_is_movable(memory) > 0;
  const int failed = daxctl_memory_offline(memory);
  if (failed >= 0 && daxctl_memory_is_online(memory) == 0) return {};
  movable ? daxctl_memory_online(memory) : daxctl_memory_online_no_movable(memory);
  Error error{
      .code = ErrorCode::busy,
      .os_errno = failed < 0 ? -failed : EBUSY,
      .where = "KernelDaxModes::to_devdax",
      .detail = "the memory of " + name + " cannot be taken offline: pages on node " +
                std::to_string(daxctl_dev_get_target_node(device)) +
                " have nowhere else to go, or must not move; end the programs that have them, then again"};
  if (failed == -EACCES || failed == -EPERM) error.code = ErrorCode::permission_denied;
  return error;
}

}  // namespace

Status KernelDaxModes::to_devdax(const std::string& name) {
  {
    TERRACE_ASSIGN_OR_RETURN(const Daxctl context, open_library());
    daxctl_dev* device = find(context, name);
    if (device == nullptr)
      return Error{.code = ErrorCode::not_found,
                   .where = "KernelDaxModes::to_devdax",
                   .detail = "no dax device " + name};
    if (daxctl_memory* memory = daxctl_dev_get_memory(device); memory != nullptr)
      TERRACE_RETURN_IF_ERROR(take_offline(device, memory, name));
    if (daxctl_dev_is_enabled(device) != 0)
      if (const int failed = daxctl_dev_disable(device); failed < 0)
        return step_failed(failed, name + " cannot be taken from the kernel's memory driver");
    if (const int failed = daxctl_dev_enable_devdax(device); failed < 0)
      return step_failed(failed, "device_dax does not take " + name + " (is the module loaded?)");
  }
  // Looked at afresh: the library remembers what it did, not what the kernel made of it.
  TERRACE_ASSIGN_OR_RETURN(const Daxctl after, open_library());
  daxctl_dev* device = find(after, name);
  if (device == nullptr || daxctl_dev_get_memory(device) != nullptr || daxctl_dev_is_enabled(device) == 0)
    return step_failed(0, name + " is still not in devdax mode, although no step failed; 'dmesg' may say why");
  return {};
}

}  // namespace terrace::inventory
