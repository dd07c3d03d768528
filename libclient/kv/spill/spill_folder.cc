// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/spill/spill_folder.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/base/signals_blocked.h"
#include "core/os/patient_lock.h"

namespace terrace::kv {
namespace {

constexpr char at_open[] = "KvSpill::open";
constexpr char map_name[] = "kv-spill.map";
constexpr char data_name[] = "kv-spill.data";

Error refuse_folder(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = at_open, .detail = "KV spill: " + std::move(detail)};
}

}  // namespace

Status give_file_length(int fd, uint64_t bytes, const std::string& name) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
    return refuse_folder(ErrorCode::limit_exceeded,
                         name + " needs " + std::to_string(bytes) +
                             " bytes, above this process's limit of file sizes (ulimit -f)");
  if (const int os_errno = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); os_errno != 0)
    return os_error(os_errno, at_open, "KV spill: no " + std::to_string(bytes) + " bytes for " + name);
  return {};
}

namespace {

Status write_all(int fd, std::span<const std::byte> bytes, uint64_t offset, const std::string& name) {
  const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (written == static_cast<ssize_t>(bytes.size())) return {};
  return os_error(written < 0 ? errno : EIO, at_open, "KV spill: " + name + " cannot be written");
}

bool same_file(int fd, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

uint64_t length_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

template <typename Header>
Header read_header(int fd) {
  Header header{};
  if (::pread(fd, &header, sizeof header, 0) != sizeof header) header = Header{};
  return header;
}

}  // namespace

Result<std::unique_ptr<SpillFolder>> SpillFolder::open(const std::string& path, const KvSpillOptions& options) {
  auto folder = std::unique_ptr<SpillFolder>(new SpillFolder);
  folder->folder_ = path;
  folder->puts_ = options.puts;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return os_error(errno, at_open, "KV spill: folder " + path + " cannot be opened; make it first");
  if (!S_ISDIR(status.st_mode)) return refuse_folder(ErrorCode::invalid_argument, path + " is no folder");
  const SignalsBlocked blocked;
  TERRACE_RETURN_IF_ERROR(folder->open_map(options));
  TERRACE_RETURN_IF_ERROR(folder->open_data(options.direct));
  return folder;
}

SpillFolder::~SpillFolder() = default;

Result<UniqueFd> SpillFolder::open_file(const std::string& name, int flags) const {
  UniqueFd file(::open(path(name).c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return os_error(errno, at_open, "KV spill: " + path(name) + " cannot be opened");
  TERRACE_RETURN_IF_ERROR(check_owner(file.get(), name));
  return file;
}

// Who may write to a file decides what is in it, and can cut it off.
Status SpillFolder::check_owner(int fd, const std::string& name) const {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return os_error(errno, at_open, "KV spill: " + path(name));
  if (!S_ISREG(status.st_mode)) return refuse_folder(ErrorCode::invalid_argument, path(name) + " is no file");
  if (status.st_uid == ::geteuid() || (::geteuid() == 0 && !puts_)) return {};
  return refuse_folder(ErrorCode::permission_denied, path(name) + " belongs to user " +
                                                         std::to_string(status.st_uid) +
                                                         "; give each user a folder of its own");
}

// Others may replace the map until it is locked and still has its name.
Status SpillFolder::open_map(const KvSpillOptions& options) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    Result<UniqueFd> file = open_file(map_name, O_RDWR);
    if (!file.ok() && file.error().code == ErrorCode::not_found && options.puts) {
      TERRACE_RETURN_IF_ERROR(make_map(options, false));
      continue;
    }
    if (!file.ok()) return file.error();
    if (const int os_errno = lock_patiently(file->get(), LOCK_SH); os_errno != 0)
      return os_errno == EWOULDBLOCK
                 ? refuse_folder(ErrorCode::busy, path(map_name) + " is being made anew; try again")
                 : os_error(os_errno, at_open, "KV spill: locking " + path(map_name));
    if (!same_file(file->get(), path(map_name))) continue;
    TERRACE_ASSIGN_OR_RETURN(geometry_, check_spill_header(read_header<layout::SpillHeader>(file->get()),
                                                           length_of(file->get()), path(map_name)));
    const bool differs = (options.bytes != 0 && options.bytes != geometry_.budget_bytes) ||
                         options.max_block_bytes > geometry_.max_block_bytes;
    if (differs && options.puts) {
      if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0)
        return refuse_folder(ErrorCode::busy,
                             folder_ + " has a budget of " + std::to_string(geometry_.budget_bytes) +
                                 " bytes and blocks of at most " + std::to_string(geometry_.max_block_bytes) +
                                 ", and others use it; say the same, or end them first");
      if (!same_file(file->get(), path(map_name))) continue;
      KvSpillOptions wanted = options;
      if (wanted.bytes == 0) wanted.bytes = geometry_.budget_bytes;
      TERRACE_RETURN_IF_ERROR(make_map(wanted, true));
      continue;
    }
    TERRACE_ASSIGN_OR_RETURN(map_memory_, os::MemoryMap::reserve(geometry_.map_bytes(), os::page_bytes()));
    TERRACE_RETURN_IF_ERROR(os::map_file_at(map_memory_.bytes(), 0, geometry_.map_bytes(), file->get(), 0,
                                            os::Protection::read_write));
    map_ = std::make_unique<SpillMap>(map_memory_.data(), geometry_);
    map_file_ = std::move(*file);
    return {};
  }
  return refuse_folder(ErrorCode::busy, path(map_name) + " is made anew all the time");
}

// Whole under another name, then under its own. `replaces`: one whose lock is held; else somebody may be faster.
Status SpillFolder::make_map(const KvSpillOptions& options, bool replaces) {
  if (options.bytes == 0)
    return refuse_folder(ErrorCode::invalid_argument,
                         folder_ + " is no spill folder yet; say how many bytes it may have");
  TERRACE_ASSIGN_OR_RETURN(SpillGeometry geometry, spill_geometry(options));
  if (::getrandom(geometry.folder_id, sizeof geometry.folder_id, 0) != sizeof geometry.folder_id)
    return os_error(errno, at_open, "KV spill: no random number");
  char name[64];
  std::snprintf(name, sizeof name, "kv-spill.%016llx.new",
                static_cast<unsigned long long>(geometry.folder_id[0]));
  const std::string made = path(name);
  Status status;
  {
    TERRACE_ASSIGN_OR_RETURN(const UniqueFd file, open_file(name, O_RDWR | O_CREAT | O_EXCL));
    status = give_file_length(file.get(), geometry.map_bytes(), made);
    const layout::SpillHeader header = spill_header(geometry);
    if (status.ok()) status = write_all(file.get(), std::as_bytes(std::span(&header, 1)), 0, made);
    if (status.ok() && ::fsync(file.get()) != 0) status = os_error(errno, at_open, "KV spill: " + made);
  }
  if (status.ok() && replaces) {
    // What the data has is nobody's from now on.
    (void)::truncate(path(data_name).c_str(), 0);
    if (::rename(made.c_str(), path(map_name).c_str()) != 0)
      status = os_error(errno, at_open, "KV spill: " + made);
  } else if (status.ok() && ::link(made.c_str(), path(map_name).c_str()) != 0 && errno != EEXIST) {
    status = os_error(errno, at_open, "KV spill: " + made);
  }
  (void)::unlink(made.c_str());
  return status;
}

Status SpillFolder::open_data(bool direct) {
  TERRACE_ASSIGN_OR_RETURN(data_, open_file(data_name, puts_ ? O_RDWR | O_CREAT : O_RDONLY));
  const MutexLock lock(mutex_);
  if (!direct) {
    direct_reason_ = "switched off by the caller";
    return {};
  }
  UniqueFd opened(
      ::open(path(data_name).c_str(), (puts_ ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC | O_NOFOLLOW));
  if (!opened.valid()) {
    direct_reason_ = std::string("the file system refuses O_DIRECT: ") + std::strerror(errno);
    return {};
  }
#if defined(STATX_DIOALIGN)
  struct statx status {};
  if (::statx(opened.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0 &&
      (status.stx_dio_offset_align == 0 || status.stx_dio_offset_align > layout::spill_page_bytes ||
       status.stx_dio_mem_align > layout::spill_page_bytes)) {
    direct_reason_ = "the file system has no O_DIRECT for blocks of 4 KiB";
    return {};
  }
#endif
  data_ = std::move(opened);
  direct_ = true;
  return {};
}

std::string SpillFolder::direct_reason() const {
  const MutexLock lock(mutex_);
  return direct_reason_;
}

void SpillFolder::give_up_direct(int os_errno) {
  const MutexLock lock(mutex_);
  if (!direct_.exchange(false)) return;
  (void)::fcntl(data_.get(), F_SETFL, ::fcntl(data_.get(), F_GETFL) & ~O_DIRECT);
  direct_reason_ = std::string("an O_DIRECT request was refused: ") + std::strerror(os_errno);
}

}  // namespace terrace::kv
