// SPDX-License-Identifier: Apache-2.0
// The C library's calls on files, for the whole program: those on the simulated disk go there, all others to the kernel.
// The linker takes these before the library's own, for SQLite's shared library as well: the store runs as it is.
//
// Place     tests/sim/disk. In programs alone that say so (CMakeLists.txt), never in a library.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdarg>

#include "tests/sim/disk/sim_disk.h"

using terrace::sim::SimDisk;

namespace {

int open_as(const char* path, int flags, mode_t mode) {
  if (SimDisk* disk = SimDisk::of(path)) return disk->open(path, flags, mode);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

ssize_t write_as(int fd, const void* data, size_t bytes, off_t at) {
  if (SimDisk* disk = SimDisk::of(fd)) return disk->write(fd, data, bytes, at);
  return ::syscall(SYS_pwrite64, fd, data, bytes, at);
}

int truncate_as(int fd, off_t bytes) {
  if (SimDisk* disk = SimDisk::of(fd)) return disk->truncate(fd, bytes);
  return static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}

void* map_as(void* address, size_t bytes, int protection, int flags, int fd, off_t at) {
  if (SimDisk* disk = SimDisk::of(fd);
      disk != nullptr && (protection & PROT_WRITE) != 0 && (flags & MAP_SHARED) != 0)
    disk->mapped(fd);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what the kernel returns
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, at));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_as(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_as(path, flags, mode);
}

int close(int fd) {
  if (SimDisk* disk = SimDisk::of(fd)) disk->closed(fd);
  return static_cast<int>(::syscall(SYS_close, fd));
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  return write_as(fd, data, bytes, at);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t at) {
  return write_as(fd, data, bytes, at);
}

int ftruncate(int fd, off_t bytes) noexcept {
  return truncate_as(fd, bytes);
}
int ftruncate64(int fd, off_t bytes) noexcept {
  return truncate_as(fd, bytes);
}

int fsync(int fd) {
  if (SimDisk* disk = SimDisk::of(fd)) return disk->sync(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

int fdatasync(int fd) {
  if (SimDisk* disk = SimDisk::of(fd)) return disk->sync(fd);
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

int rename(const char* from, const char* to) noexcept {
  if (SimDisk* disk = SimDisk::of(from)) return disk->rename(from, to);
  return static_cast<int>(::syscall(SYS_rename, from, to));
}

int unlink(const char* path) noexcept {
  if (SimDisk* disk = SimDisk::of(path)) return disk->unlink(path);
  return static_cast<int>(::syscall(SYS_unlink, path));
}

int posix_fadvise(int fd, off_t at, off_t bytes, int advice) noexcept {
  if (SimDisk* disk = SimDisk::of(fd)) {
    if (advice == POSIX_FADV_DONTNEED) disk->drop_cache(fd);
    return 0;
  }
  return ::syscall(SYS_fadvise64, fd, at, bytes, advice) == 0 ? 0 : errno;
}

int fstatfs(int fd, struct statfs* status) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_fstatfs, fd, status));
  if (result == 0 && SimDisk::of(fd) != nullptr) status->f_type = EXT4_SUPER_MAGIC;
  return result;
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t at) noexcept {
  return map_as(address, bytes, protection, flags, fd, at);
}
void* mmap64(void* address, size_t bytes, int protection, int flags, int fd, off_t at) noexcept {
  return map_as(address, bytes, protection, flags, fd, at);
}

}  // extern "C"
