// SPDX-License-Identifier: Apache-2.0
#include "core/os/memory_map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <utility>

#include "core/base/units.h"

namespace terrace::os {
namespace {

int protection_flags(Protection protection) {
  switch (protection) {
    case Protection::none: return PROT_NONE;
    case Protection::read_only: return PROT_READ;
    case Protection::read_write: return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

Status check_part(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes, const char* where) {
  const uint64_t page = page_bytes();
  const bool inside =
      length_bytes != 0 && offset_bytes <= range.size() && length_bytes <= range.size() - offset_bytes;
  if (inside && offset_bytes % page == 0 && length_bytes % page == 0) return {};
  return Error{ErrorCode::invalid_argument, 0, where,
               std::to_string(length_bytes) + " bytes at offset " + std::to_string(offset_bytes) +
                   " are not whole pages inside a range of " + format_size(range.size())};
}

Status map_fixed(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes, int protection,
                 int flags, int fd, uint64_t file_offset_bytes, const char* where) {
  TERRACE_RETURN_IF_ERROR(check_part(range, offset_bytes, length_bytes, where));
  if (file_offset_bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max()))
    return Error{ErrorCode::invalid_argument, 0, where, "the file offset is too large"};
  void* mapped = ::mmap(range.data() + offset_bytes, length_bytes, protection, flags | MAP_FIXED, fd,
                        static_cast<off_t>(file_offset_bytes));
  if (mapped != MAP_FAILED) return {};
  return os_error(errno, where, "cannot map " + format_size(length_bytes));
}

}  // namespace

MemoryMap::MemoryMap(MemoryMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MemoryMap& MemoryMap::operator=(MemoryMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MemoryMap::~MemoryMap() {
  if (size_bytes_ != 0) ::munmap(data_, size_bytes_);
}

Result<MemoryMap> MemoryMap::map(uint64_t bytes, uint64_t alignment_bytes, Protection protection,
                                 const char* where) {
  const uint64_t page = page_bytes();
  if (bytes == 0 || bytes % page != 0 || !is_power_of_two(alignment_bytes) || alignment_bytes < page ||
      bytes > std::numeric_limits<uint64_t>::max() - alignment_bytes) {
    return Error{ErrorCode::invalid_argument, 0, where,
                 std::to_string(bytes) + " bytes aligned to " + std::to_string(alignment_bytes) +
                     " is no range: whole pages and a power of two are needed"};
  }
  // Takes up to one alignment more than asked for, then gives back what lies outside the aligned part.
  const uint64_t taken = alignment_bytes > page ? bytes + alignment_bytes - page : bytes;
  void* address =
      ::mmap(nullptr, taken, protection_flags(protection), MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return os_error(errno, where, "no free address range of " + format_size(bytes));
  auto* start = static_cast<std::byte*>(address);
  const uint64_t misalignment = reinterpret_cast<uintptr_t>(start) & (alignment_bytes - 1);
  const uint64_t lead = misalignment == 0 ? 0 : alignment_bytes - misalignment;
  if (lead != 0) ::munmap(start, lead);
  if (taken - lead > bytes) ::munmap(start + lead + bytes, taken - lead - bytes);
  return MemoryMap(start + lead, bytes);
}

Result<MemoryMap> MemoryMap::reserve(uint64_t bytes, uint64_t alignment_bytes) {
  return map(bytes, alignment_bytes, Protection::none, "os::MemoryMap::reserve");
}

Result<MemoryMap> MemoryMap::anonymous(uint64_t bytes, uint64_t alignment_bytes) {
  return map(bytes, alignment_bytes, Protection::read_write, "os::MemoryMap::anonymous");
}

Status map_anonymous_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes) {
  return map_fixed(range, offset_bytes, length_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, "os::map_anonymous_at");
}

Status map_file_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes, int fd,
                   uint64_t file_offset_bytes, Protection protection) {
  return map_fixed(range, offset_bytes, length_bytes, protection_flags(protection), MAP_SHARED, fd,
                   file_offset_bytes, "os::map_file_at");
}

Status unmap_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes) {
  return map_fixed(range, offset_bytes, length_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0, "os::unmap_at");
}

Status discard_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes) {
  constexpr const char* where = "os::discard_at";
  TERRACE_RETURN_IF_ERROR(check_part(range, offset_bytes, length_bytes, where));
  std::byte* start = range.data() + offset_bytes;
  // Shared pages live in their file, which only MADV_REMOVE empties; it refuses private ones.
  if (::madvise(start, length_bytes, MADV_REMOVE) == 0) return {};
  if (errno == EINVAL && ::madvise(start, length_bytes, MADV_DONTNEED) == 0) return {};
  return os_error(errno, where, "cannot give back " + format_size(length_bytes));
}

Result<UniqueFd> make_memory_file(const char* name, uint64_t bytes) {
  constexpr const char* where = "os::make_memory_file";
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return os_error(errno, where, "cannot make a memory file");
  if (bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max()))
    return Error{ErrorCode::invalid_argument, 0, where, "the memory file would be too large"};
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    return os_error(errno, where, "cannot size a memory file to " + format_size(bytes));
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return os_error(errno, where, "cannot seal a memory file");
  return file;
}

// A file without a name on a mount without a place: both go with the last descriptor. Invalid: not allowed
// here.
static UniqueFd make_file_on_huge_tmpfs() {
  UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid() || ::fsconfig(context.get(), FSCONFIG_SET_STRING, "huge", "always", 0) != 0 ||
      ::fsconfig(context.get(), FSCONFIG_SET_STRING, "size", "100%", 0) != 0 ||
      ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return {};
  UniqueFd mount(
      ::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (!mount.valid()) return {};
  return UniqueFd(::openat(mount.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

Result<UniqueFd> make_huge_memory_file(const char* name, uint64_t bytes, bool* huge) {
  UniqueFd file = make_file_on_huge_tmpfs();
  *huge = file.valid() && bytes <= static_cast<uint64_t>(std::numeric_limits<off_t>::max()) &&
          ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0;
  if (*huge) return file;
  return make_memory_file(name, bytes);
}

uint64_t page_bytes() {
  static const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

}  // namespace terrace::os
