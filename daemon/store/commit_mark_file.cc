// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/commit_mark_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/base/crc32c.h"
#include "core/os/patient_lock.h"

namespace terrace::daemon {
namespace {

// Two slots in sectors of their own, written in turn: a torn write costs one of them, never both.
constexpr size_t slot_stride = 512;
constexpr size_t file_bytes = 2 * slot_stride;

struct Slot {
  char magic[8];
  uint64_t store_id;
  uint64_t sequence;
  uint32_t crc;  // crc32c of the 24 bytes before it
  uint32_t zero;
};
static_assert(sizeof(Slot) == 32);

constexpr char slot_magic[8] = {'T', 'R', 'C', 'M', 'A', 'R', 'K', '1'};

uint32_t slot_crc(const Slot& slot) {
  return crc32c({reinterpret_cast<const std::byte*>(&slot), offsetof(Slot, crc)});
}

bool slot_valid(const Slot& slot) {
  return std::memcmp(slot.magic, slot_magic, sizeof(slot_magic)) == 0 && slot.crc == slot_crc(slot);
}

Error corrupt(const std::string& path, const char* what) {
  return Error{.code = ErrorCode::corrupt, .where = "CommitMarkFile::open", .detail = path + " " + what};
}

}  // namespace

Result<CommitMarkFile> CommitMarkFile::open(const std::string& path, const std::string& store_path) {
  TERRACE_ASSIGN_OR_RETURN(CommitMarkFile mark, lock(path, store_path));
  TERRACE_RETURN_IF_ERROR(mark.load(path));
  return mark;
}

Result<CommitMarkFile> CommitMarkFile::lock(const std::string& path, const std::string& store_path) {
  constexpr const char* where = "CommitMarkFile::open";
  CommitMarkFile mark;
  mark.file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!mark.file_.valid()) return os_error(errno, where, "cannot open " + path);
  if (const int error = lock_patiently(mark.file_.get(), LOCK_EX); error != 0) {
    if (error != EWOULDBLOCK) return os_error(error, where, "cannot lock " + path);
    return Error{.code = ErrorCode::busy,
                 .where = where,
                 .detail = "another terraced has the store " + store_path +
                           " open; stop it, or give this one a state path of its own"};
  }
  return mark;
}

Status CommitMarkFile::load(const std::string& path) {
  TERRACE_RETURN_IF_ERROR(read(path));
  return map(path);
}

std::optional<CommitMarkFile::Mark> CommitMarkFile::peek(const std::string& path) {
  CommitMarkFile mark;
  mark.file_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!mark.file_.valid() || !mark.read(path).ok()) return std::nullopt;
  return mark.mark_;
}

Status CommitMarkFile::clear() {
  if (::ftruncate(file_.get(), 0) != 0 || ::fdatasync(file_.get()) != 0)
    return os_error(errno, "CommitMarkFile::clear", "cannot clear the mark");
  return {};
}

Status CommitMarkFile::read(const std::string& path) {
  constexpr const char* where = "CommitMarkFile::open";
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return os_error(errno, where, "cannot stat " + path);
  if (!S_ISREG(status.st_mode)) return corrupt(path, "is no regular file");
  if (status.st_size > static_cast<off_t>(file_bytes)) return corrupt(path, "is no mark of a Terrace store");
  std::array<char, file_bytes> bytes{};
  const ssize_t n = ::pread(file_.get(), bytes.data(), bytes.size(), 0);
  if (n < 0) return os_error(errno, where, "cannot read " + path);

  for (size_t i = 0; i < 2; ++i) {
    Slot slot;
    std::memcpy(&slot, bytes.data() + i * slot_stride, sizeof(slot));
    if (!slot_valid(slot)) continue;
    if (mark_.has_value() && mark_->store_id != slot.store_id)
      return corrupt(path, "holds marks of two different stores");
    mark_ = Mark{slot.store_id, std::max(slot.sequence, mark_.value_or(Mark{}).sequence)};
  }
  if (mark_.has_value()) return {};
  if (std::any_of(bytes.begin(), bytes.end(), [](char c) { return c != 0; }))
    return corrupt(path, "holds no mark that can be read");
  return {};
}

void CommitMarkFile::Unmap::operator()(char* memory) const {
  ::munmap(memory, file_bytes);
}

// Room for both slots first, so that recording never needs space on a full disk.
Status CommitMarkFile::map(const std::string& path) {
  constexpr const char* where = "CommitMarkFile::open";
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return os_error(errno, where, "cannot stat " + path);
  const std::array<char, file_bytes> zeros{};
  const auto missing = file_bytes - static_cast<size_t>(status.st_size);
  if (missing > 0 &&
      ::pwrite(file_.get(), zeros.data(), missing, status.st_size) != static_cast<ssize_t>(missing))
    return os_error(errno == 0 ? ENOSPC : errno, where, "cannot write " + path);
  void* memory = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) return os_error(errno, where, "cannot map " + path);
  memory_.reset(static_cast<char*>(memory));
  return {};
}

void CommitMarkFile::record(Mark mark) {
  Slot slot{};
  std::memcpy(slot.magic, slot_magic, sizeof(slot_magic));
  slot.store_id = mark.store_id;
  slot.sequence = mark.sequence;
  slot.crc = slot_crc(slot);
  // The process may end between any two of these stores: then this slot is not valid, and the other one is.
  std::memcpy(memory_.get() + (mark.sequence % 2) * slot_stride, &slot, sizeof(slot));
  mark_ = mark;
}

Status CommitMarkFile::sync() {
  if (::fdatasync(file_.get()) != 0) return os_error(errno, "CommitMarkFile::sync", "cannot sync the mark");
  return {};
}

}  // namespace terrace::daemon
