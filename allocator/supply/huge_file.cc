// SPDX-License-Identifier: Apache-2.0
#include "allocator/supply/huge_file.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace terrace::supply {
namespace {

// Of <linux/mount.h>, whose names clash with <sys/mount.h>'s in some versions of the C library.
constexpr unsigned open_cloexec = 1;    // FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
constexpr unsigned set_string = 1;      // FSCONFIG_SET_STRING
constexpr unsigned create_command = 6;  // FSCONFIG_CMD_CREATE

bool set(int context, const char* name, const char* value) {
  return ::syscall(SYS_fsconfig, context, set_string, name, value, 0) == 0;
}

}  // namespace

UniqueFd make_huge_file(uint64_t bytes) {
  const UniqueFd context(static_cast<int>(::syscall(SYS_fsopen, "tmpfs", open_cloexec)));
  if (!context.valid()) return {};
  // size=0: no limit of its own; what may be used is charged by the budget.
  if (!set(context.get(), "huge", "always") || !set(context.get(), "size", "0") ||
      !set(context.get(), "mode", "0700") ||
      ::syscall(SYS_fsconfig, context.get(), create_command, nullptr, nullptr, 0) != 0)
    return {};
  // Attached nowhere: the mount lives as long as the file.
  const UniqueFd mount(static_cast<int>(::syscall(SYS_fsmount, context.get(), open_cloexec, 0)));
  if (!mount.valid()) return {};
  UniqueFd file(::openat(mount.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid() && ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) file.reset();
  return file;
}

}  // namespace terrace::supply
