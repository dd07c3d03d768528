// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/files/emulated.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>

#include "core/base/failpoint.h"
#include "core/base/units.h"
#include "daemon/memory/files/object_file.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view suffix = ".obj";

// The sticky bit of an object's file, which means nothing to the kernel: nobody was given it since it was carved.
// Set when the file is made, taken away before the first holder gets it, so that a file in doubt (an older
// Terrace's, a hand-over's target) counts as somebody's.
constexpr mode_t never_handed_out = S_ISVTX;
constexpr std::string_view unplugged_suffix = ".unplugged";

// How often scrub() truncates a file that its holder grows again before it gives up.
constexpr int scrub_attempts = 64;

// Of a reservation that others race for: one huge page.
constexpr uint64_t contended_step_bytes = 2 * mib;

// Measured: carving 2 MiB takes 10 us and fencing it 7 us as one huge page, 507 us and 205 us in 4 KiB pages.
constexpr uint64_t quick_bytes_huge = 32 * mib;
constexpr uint64_t quick_bytes_small = 256 * kib;

ObservedObject observed(const std::string& name, const struct stat& status) {
  return {.name = name,
          .bytes = static_cast<uint64_t>(status.st_size),
          .allocated = static_cast<uint64_t>(status.st_blocks) * 512,
          .handed_out = (status.st_mode & never_handed_out) == 0};
}

Error busy_size(const std::string& name, uint64_t now, uint64_t from_bytes, uint64_t to_bytes) {
  return Error{.code = ErrorCode::busy,
               .where = "EmulatedBackend::resize",
               .detail = "object " + name + " has " + std::to_string(now) + " bytes, neither the " +
                         std::to_string(from_bytes) + " it should have nor the " + std::to_string(to_bytes) +
                         " it should get: " + (now == 0 ? "it was fenced" : "its holder cut it")};
}

// `what` could not be done, and the error says why.
Error about(Error error, const std::string& what) {
  error.detail = error.detail.empty() ? what : what + ": " + error.detail;
  return error;
}

os::MemorySpeed measure_machine(bool huge_pages) {
  void* const at =
      ::mmap(nullptr, os::measured_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return {};
  if (huge_pages) (void)::madvise(at, os::measured_bytes, MADV_HUGEPAGE);
  std::memset(at, 1, os::measured_bytes);  // else all of it is the kernel's one page of zeros
  const os::MemorySpeed speed = os::measure_memory({static_cast<const std::byte*>(at), os::measured_bytes});
  ::munmap(at, os::measured_bytes);
  return speed;
}

// Whether this process makes files without part of mode 0600. Only a read of the umask.
bool umask_takes_from_owner() {
  const mode_t mask = ::umask(0077);
  ::umask(mask);
  return (mask & 0600) != 0;
}

}  // namespace

std::string object_file(const std::string& name) {
  return name + std::string(suffix);
}

Error bad_object_name(const std::string& name, const char* where) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = where,
               .detail = "'" + name + "' cannot name a memory object"};
}

Error memory_error(int os_errno, const char* where, std::string detail) {
  Error error = os_error(os_errno, where, std::move(detail));
  if (error.code == ErrorCode::out_of_memory) error.code = ErrorCode::capacity_exhausted;
  return error;
}

bool valid_object_name(std::string_view name) {
  if (name.empty() || name.size() > limits::name_bytes_max || name[0] == '.' || name[0] == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

EmulatedBackend::EmulatedBackend(ObjectDirectory directory, EmulatedOptions options)
    : directory_(std::move(directory)), options_(std::move(options)), umask_hinders_(umask_takes_from_owner()) {
  start_size();
  for (const EmulatedDevice& device : options_.devices) {
    devices_.push_back({.serial = "emu:" + device.name,
                        .backend = std::string(kind()),
                        .capacity_bytes = device.size_bytes,
                        .granule_bytes = options_.granule_bytes,
                        .detail = "emulated: " + describe_memory()});
  }
}

bool unplugged(int directory, const std::string& device) {
  const std::string mark = device + std::string(unplugged_suffix);
  return ::faccessat(directory, mark.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

std::vector<SeenDevice> EmulatedBackend::discover() {
  std::vector<SeenDevice> seen;
  seen.reserve(devices_.size());
  for (size_t i = 0; i < devices_.size(); ++i)
    if (!unplugged(directory_.fd(), options_.devices[i].name)) seen.push_back(devices_[i]);
  return seen;
}

TierAttributes EmulatedBackend::attributes(const std::string& serial) const {
  for (const SeenDevice& device : devices_) {
    if (device.serial != serial) continue;
    return with_measured_speed({.isolation = Isolation::file}, options_.measured, serial,
                               device.capacity_bytes);
  }
  return {};
}

void EmulatedBackend::know_devices(const std::vector<KnownDevice>& devices) {
  const MutexLock lock(adopted_mutex_);
  adopted_.clear();
  for (const KnownDevice& device : devices) adopted_.push_back(device.serial);
}

// Devices that were adopted by a manager that measured nothing.
Status EmulatedBackend::refresh() {
  if (options_.measured == nullptr) return {};
  std::vector<std::string> adopted;
  {
    const MutexLock lock(adopted_mutex_);
    adopted = adopted_;
  }
  for (const std::string& serial : adopted)
    if (attributes(serial).source == AttributesSource::none) (void)take_over(serial);
  return {};
}

Status EmulatedBackend::take_over(const std::string& serial) {
  for (const SeenDevice& device : devices_)
    if (device.serial == serial && options_.measured != nullptr)
      options_.measured->set(serial, device.capacity_bytes, measure_machine(directory_.huge_pages()));
  return {};
}

bool EmulatedBackend::quick(std::string_view, uint64_t bytes) const {
  return bytes <= (directory_.huge_pages() ? quick_bytes_huge : quick_bytes_small);
}

Mutex& EmulatedBackend::size_lock(const std::string& name) {
  return size_locks_[std::hash<std::string>()(name) % size_locks_.size()];
}

Status EmulatedBackend::check_bytes(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents,
                                    const char* where) const {
  if (!valid_object_name(name)) return bad_object_name(name, where);
  uint64_t granules = 0;
  for (const Extent& extent : extents) granules += extent.granules;
  // INT64_MAX is the kernel's bound on a file, half of it rebind's; the quotient avoids an overflow of the
  // product.
  if (bytes == 0 || bytes > INT64_MAX / 2 || bytes % options_.granule_bytes != 0 ||
      bytes / options_.granule_bytes != granules) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = name + ": " + std::to_string(bytes) + " bytes are not the " +
                           std::to_string(granules) + " granules of its extents"};
  }
  return {};
}

Status EmulatedBackend::claim(const StoreClaim& claim) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<ObservedObject> objects, list());
  // A holder may have taken what little is left for the mark.
  allow_beside(options_.granule_bytes);
  Status claimed = directory_.claim(claim, objects.size());
  for (int tries = 0; !claimed.ok() && claimed.error().os_errno == ENOSPC && makes_room(tries); ++tries)
    claimed = directory_.claim(claim, objects.size());
  allow_beside(0);
  return claimed;
}

// Two system calls on tmpfs: less than a microsecond beside the commit of the grant.
Status EmulatedBackend::hand_out(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::hand_out";
  if (!valid_object_name(name)) return bad_object_name(name, where);
  const std::string file = object_file(name);
  struct stat status {};
  if (::fstatat(directory_.fd(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return os_error(errno, where, "cannot look at object " + name);
  if (!S_ISREG(status.st_mode) || (status.st_mode & never_handed_out) == 0) return {};
  if (::fchmodat(directory_.fd(), file.c_str(), 0600, 0) != 0)
    return os_error(errno, where, "cannot mark object " + name + " as handed out");
  return {};
}

Status EmulatedBackend::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  constexpr const char* where = "EmulatedBackend::carve";
  TERRACE_RETURN_IF_ERROR(check_bytes(name, bytes, extents, where));
  if (const int code = TERRACE_FAILPOINT(carve_before_create); code != 0)
    return memory_error(code, where, "cannot create object " + name);
  const std::string file = object_file(name);
  UniqueFd fd(::openat(directory_.fd(), file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0600 | never_handed_out));
  if (!fd.valid()) return memory_error(errno, where, "cannot create object " + name);
  size_.set(name, bytes);
  Status reserved = reserve(fd.get(), name, bytes);
  if (!reserved.ok()) {
    ::unlinkat(directory_.fd(), file.c_str(), 0);
    fd.reset();  // its memory goes with it, and the mount shrinks after that
    size_.forget(name);
    return reserved;
  }
  descriptors_.put(name, {std::move(fd), bytes});
  return {};
}

Status EmulatedBackend::reserve(int fd, const std::string& name, uint64_t bytes) {
  constexpr const char* where = "EmulatedBackend::carve";
  const auto cannot = [&](int code) {
    return memory_error(code, where, "cannot reserve " + format_size(bytes) + " for object " + name);
  };
  if (const int code = TERRACE_FAILPOINT(carve_after_create); code != 0) return cannot(code);
  if (umask_hinders_ && ::fchmod(fd, 0600 | never_handed_out) != 0) return cannot(errno);
  // The size comes first: the kernel puts huge pages beyond it on a list of those it may split.
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return cannot(errno);
  if (options_.reserve)
    if (Status taken = take_memory(fd, 0, 0, bytes); !taken.ok())
      return about(std::move(taken).error(), "cannot reserve " + format_size(bytes) + " for object " + name);
  if (options_.source != nullptr)
    if (Status verified = options_.source->verify(fd, 0, bytes); !verified.ok())
      return about(std::move(verified).error(), "object " + name + " was not made");
  if (const int code = TERRACE_FAILPOINT(carve_after_reserve); code != 0) return cannot(code);
  return {};
}

// Reserves a part of a file that has no memory yet. What was got before a failure is the caller's to give back.
Status EmulatedBackend::take_memory(int fd, int mode, uint64_t offset, uint64_t bytes) {
  MemorySource* source = options_.source;
  if (source != nullptr) TERRACE_RETURN_IF_ERROR(source->bind(fd, offset, bytes));
  const uint64_t end = offset + bytes;
  uint64_t step = source == nullptr ? bytes : MemorySource::room_step_bytes;
  for (int tries = 0; offset < end;) {
    const uint64_t piece = std::min(step, end - offset);
    if (source != nullptr) TERRACE_RETURN_IF_ERROR(source->room(piece));
    // tmpfs gives back all of a call that fails or that a signal interrupts, so that starting over is right.
    if (::fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(piece)) == 0) {
      offset += piece;
      tries = 0;
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (error != ENOSPC || !makes_room(tries++)) return memory_error(error, "EmulatedBackend::take_memory", "");
    // Somebody takes room at the same time: what is got in a small step is kept, while a large one loses all of it.
    step = std::min(step, contended_step_bytes);
  }
  return {};
}

Result<UniqueFd> EmulatedBackend::open_object(const std::string& name, int flags, struct stat& status) const {
  constexpr const char* where = "EmulatedBackend::open";
  if (!valid_object_name(name)) return bad_object_name(name, where);
  UniqueFd fd(
      ::openat(directory_.fd(), object_file(name).c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return os_error(errno, where, "cannot open object " + name);
  if (::fstat(fd.get(), &status) != 0) return os_error(errno, where, "cannot look at object " + name);
  if (!S_ISREG(status.st_mode)) {
    return Error{
        .code = ErrorCode::corrupt, .where = where, .detail = "object " + name + " is no regular file"};
  }
  return fd;
}

Result<UniqueFd> EmulatedBackend::open(const std::string& name, ObjectAccess access) {
  if (access == ObjectAccess::read_write)
    if (UniqueFd kept = descriptors_.share(name); kept.valid()) return kept;
  struct stat status {};
  return open_object(name, access == ObjectAccess::read_write ? O_RDWR : O_RDONLY, status);
}

Status EmulatedBackend::fence(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::fence";
  if (const int code = TERRACE_FAILPOINT(fence_before_truncate); code != 0)
    return os_error(code, where, "cannot fence object " + name);
  DescriptorCache::Entry entry = descriptors_.take(name);
  if (!entry.fd.valid()) {
    struct stat status {};
    Result<UniqueFd> fd = open_object(name, O_RDWR, status);
    if (!fd.ok()) return fd.error().code == ErrorCode::not_found ? Status() : Status(fd.error());
    entry = {std::move(fd).value(), static_cast<uint64_t>(status.st_size)};
  }
  {
    const MutexLock lock(size_lock(name));
    if (::ftruncate(entry.fd.get(), 0) != 0) return os_error(errno, where, "cannot fence object " + name);
  }
  size_.set(name, 0);
  descriptors_.put(name, std::move(entry));
  if (const int code = TERRACE_FAILPOINT(fence_after_truncate); code != 0)
    return os_error(code, where, "cannot confirm the fence of object " + name);
  return {};
}

Result<uint64_t> EmulatedBackend::scrub(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::scrub";
  DescriptorCache::Entry entry = descriptors_.take(name);
  if (!entry.fd.valid()) {
    struct stat status {};
    Result<UniqueFd> fd = open_object(name, O_RDWR, status);
    if (!fd.ok()) {
      if (fd.error().code == ErrorCode::not_found) return uint64_t{0};
      Error error = fd.error();
      if (error.code != ErrorCode::invalid_argument) error.code = ErrorCode::io_error;
      return error;
    }
    entry = {std::move(fd).value(), static_cast<uint64_t>(status.st_size)};
  }
  for (int attempt = 0; attempt < scrub_attempts; ++attempt) {
    TERRACE_ASSIGN_OR_RETURN(const bool removed, unlink_if_empty(entry.fd, name));
    if (!removed) {
      if (::ftruncate(entry.fd.get(), 0) != 0)
        return Error{ErrorCode::io_error, errno, where, "cannot truncate object " + name};
      size_.set(name, 0);
      continue;
    }
    size_.forget(name);
    if (const int code = TERRACE_FAILPOINT(scrub_after_unlink); code != 0)
      return Error{ErrorCode::io_error, code, where, "cannot confirm the scrub of object " + name};
    return entry.bytes;
  }
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "a holder of the fenced object " + name +
                         " keeps growing it, so that it still holds memory; end that process"};
}

// Removes the object if it is seen without memory; what its holder does between the look and the removal stays
// its own pages. false: it holds memory.
Result<bool> EmulatedBackend::unlink_if_empty(UniqueFd& fd, const std::string& name) {
  constexpr const char* where = "EmulatedBackend::scrub";
  const auto cannot = [&](const char* what, int code) {
    return Error{ErrorCode::io_error, code, where, std::string("cannot ") + what + " object " + name};
  };
  if (const int code = TERRACE_FAILPOINT(scrub_before_verify); code != 0) return cannot("verify", code);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return cannot("verify", errno);
  if (status.st_size != 0 || status.st_blocks != 0) return false;
  if (const int code = TERRACE_FAILPOINT(scrub_before_unlink); code != 0) return cannot("remove", code);
  fd.reset();  // else this process would count as one that has it open
  if (const int code = remove_file(name); code != 0) return cannot("remove", code);
  return true;
}

Status EmulatedBackend::resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                               const std::vector<Extent>& extents) {
  constexpr const char* where = "EmulatedBackend::resize";
  TERRACE_RETURN_IF_ERROR(check_bytes(name, to_bytes, extents, where));
  if (const int code = TERRACE_FAILPOINT(resize_before_apply); code != 0)
    return memory_error(code, where, "cannot resize object " + name);
  struct stat status {};
  TERRACE_ASSIGN_OR_RETURN(UniqueFd fd, open_object(name, O_RDWR, status));
  const uint64_t before = static_cast<uint64_t>(status.st_size);
  if (before < std::min(from_bytes, to_bytes) || before == 0)
    return busy_size(name, before, from_bytes, to_bytes);
  // Beyond the end first: a failure leaves the object as it was, and a fence meanwhile finds no larger one.
  size_.raise(name, to_bytes);
  Status done = resize_file(fd.get(), name, from_bytes, to_bytes);
  size_.lower(name, done.ok() ? to_bytes : from_bytes);
  if (!done.ok()) return done;
  descriptors_.put(name, {std::move(fd), to_bytes});
  return {};
}

// The steps of a resize that change the file.
Status EmulatedBackend::resize_file(int fd, const std::string& name, uint64_t from_bytes, uint64_t to_bytes) {
  constexpr const char* where = "EmulatedBackend::resize";
  if (to_bytes > from_bytes && options_.reserve) {
    const uint64_t more = to_bytes - from_bytes;
    Status taken = take_memory(fd, FALLOC_FL_KEEP_SIZE, from_bytes, more);
    if (!taken.ok()) {
      // What it did get goes back.
      (void)!::fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, static_cast<off_t>(from_bytes),
                         static_cast<off_t>(more));
      return about(std::move(taken).error(),
                   "cannot reserve " + format_size(more) + " more for object " + name);
    }
  }
  TERRACE_RETURN_IF_ERROR(set_size(fd, name, from_bytes, to_bytes));
  if (to_bytes > from_bytes && options_.source != nullptr) {
    Status verified = options_.source->verify(fd, from_bytes, to_bytes - from_bytes);
    if (!verified.ok()) {
      (void)set_size(fd, name, to_bytes, from_bytes);
      return about(std::move(verified).error(), "object " + name + " did not grow");
    }
  }
  if (const int code = TERRACE_FAILPOINT(resize_after_apply); code != 0) {
    if (to_bytes > from_bytes) (void)set_size(fd, name, to_bytes, from_bytes);
    return memory_error(code, where, "cannot confirm the new size of object " + name);
  }
  return {};
}

// Gives an object that still has its bytes the new size, or keeps a fenced one without memory.
Status EmulatedBackend::set_size(int fd, const std::string& name, uint64_t from_bytes, uint64_t to_bytes) {
  const MutexLock lock(size_lock(name));
  struct stat status {};
  if (::fstat(fd, &status) != 0)
    return os_error(errno, "EmulatedBackend::resize", "cannot look at object " + name);
  const uint64_t now = static_cast<uint64_t>(status.st_size);
  if (now == 0 || now < std::min(from_bytes, to_bytes)) {
    // Gives back what was reserved beyond its end.
    (void)!::ftruncate(fd, static_cast<off_t>(now));
    return busy_size(name, now, from_bytes, to_bytes);
  }
  if (now != to_bytes && ::ftruncate(fd, static_cast<off_t>(to_bytes)) != 0)
    return memory_error(errno, "EmulatedBackend::resize", "cannot change the size of object " + name);
  return {};
}

Status EmulatedBackend::remove_directory() {
  descriptors_.clear();
  remove_gone(SIZE_MAX);
  // Who still has one open keeps the mount busy, name or none.
  const MutexLock lock(gone_mutex_);
  for (const std::string& file : gone_) ::unlinkat(directory_.fd(), file.c_str(), 0);
  return directory_.remove();
}

Result<std::vector<ObservedObject>> list_objects(int directory, const std::string& path) {
  constexpr const char* where = "list_objects";
  const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return os_error(errno, where, "cannot open " + path);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(copy), ::closedir);
  if (stream == nullptr) {
    const int code = errno;
    ::close(copy);
    return os_error(code, where, "cannot list " + path);
  }
  std::vector<ObservedObject> objects;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr && errno != 0) return os_error(errno, where, "cannot list " + path);
    if (entry == nullptr) break;
    const std::string_view file = entry->d_name;
    if (!file.ends_with(suffix)) continue;
    const std::string name(file.substr(0, file.size() - suffix.size()));
    struct stat status {};
    if (::fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // removed meanwhile
      return os_error(errno, where, "cannot look at object " + name);
    }
    if (!S_ISREG(status.st_mode) || !valid_object_name(name)) continue;  // none of ours
    objects.push_back(observed(name, status));
  }
  std::sort(objects.begin(), objects.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return objects;
}

Result<std::vector<ObservedObject>> EmulatedBackend::list() {
  return list_objects(directory_.fd(), directory_.path());
}

Result<ObservedObject> EmulatedBackend::usage(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::usage";
  if (!valid_object_name(name)) return bad_object_name(name, where);
  struct stat status {};
  if (::fstatat(directory_.fd(), object_file(name).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return os_error(errno, where, "cannot look at object " + name);
  return observed(name, status);
}

}  // namespace terrace::daemon
