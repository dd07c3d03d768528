// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/journal/journal_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

constexpr char record_magic[8] = {'T', 'R', 'C', 'J', 'R', 'E', 'C', '1'};
constexpr char segment_magic[8] = {'T', 'R', 'C', 'J', 'S', 'E', 'G', '\n'};
constexpr uint32_t segment_version = 1;
constexpr uint64_t disk_block_bytes = 4096;
constexpr uint64_t memory_block_bytes = 64;
constexpr uint64_t segment_bytes_max = uint64_t{1} << 30;

// The start of a segment; the rest of its first 4096 bytes is zero. Written once.
struct SegmentHeader {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // crc32c of this header without its crc
  uint64_t store_id;
  uint64_t bytes;  // of the whole file
  uint64_t block_bytes;
};
static_assert(sizeof(SegmentHeader) == 40);

// The crc of a header that has its own in bytes 12 to 15, and of what follows it.
uint32_t crc_around(const std::byte* header, size_t header_bytes, std::span<const std::byte> rest = {}) {
  uint32_t crc = crc32c({header, 12});
  crc = crc32c({header + 16, header_bytes - 16}, crc);
  return crc32c(rest, crc);
}
static_assert(offsetof(RecordHeader, crc) == 12 && offsetof(SegmentHeader, crc) == 12);

Error segment_error(ErrorCode code, const std::string& path, const char* what) {
  return Error{.code = code, .where = "JournalSegment", .detail = path + " " + what};
}

// Whole blocks, and room for at least one record.
uint64_t file_bytes(uint64_t wanted) {
  return std::clamp(wanted / disk_block_bytes * disk_block_bytes, 2 * disk_block_bytes, segment_bytes_max);
}

bool lies_in_memory(int file) {
  struct statfs status {};
  if (::fstatfs(file, &status) != 0) return false;
  const auto type = static_cast<uint64_t>(status.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

Status write_zeros(int file, uint64_t from, uint64_t to, const std::string& path) {
  const std::vector<char> zeros(std::min<uint64_t>(to - from, 1 << 20));
  while (from < to) {
    const ssize_t n =
        ::pwrite(file, zeros.data(), std::min<uint64_t>(zeros.size(), to - from), static_cast<off_t>(from));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return os_error(n == 0 ? ENOSPC : errno, "JournalSegment", "cannot make the journal " + path);
    from += static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace

void seal_record(ByteBuffer& record, uint64_t store_id, uint64_t sequence) {
  RecordHeader header{};
  std::memcpy(header.magic, record_magic, sizeof(record_magic));
  header.payload_bytes = static_cast<uint32_t>(record.size() - sizeof(header));
  header.store_id = store_id;
  header.sequence = sequence;
  std::memcpy(record.data(), &header, sizeof(header));
  header.crc = crc_around(record.data(), sizeof(header),
                          {record.data() + sizeof(header), record.size() - sizeof(header)});
  std::memcpy(record.data(), &header, sizeof(header));
}

std::optional<FoundRecord> find_record(std::span<const std::byte> bytes, uint64_t store_id) {
  RecordHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, record_magic, sizeof(record_magic)) != 0 || header.store_id != store_id)
    return std::nullopt;
  if (header.payload_bytes > bytes.size() - sizeof(header)) return std::nullopt;
  const auto payload = bytes.subspan(sizeof(header), header.payload_bytes);
  if (header.crc != crc_around(bytes.data(), sizeof(header), payload)) return std::nullopt;
  return FoundRecord{header.sequence, payload};
}

std::vector<FoundRecord> find_records(std::span<const std::byte> file, uint64_t store_id) {
  std::vector<FoundRecord> records;
  for (size_t at = JournalSegment::header_bytes; at < file.size();) {
    const auto found = find_record(file.subspan(at), store_id);
    if (found.has_value()) records.push_back(*found);
    const size_t bytes = found.has_value() ? sizeof(RecordHeader) + found->payload.size() : 1;
    at += (bytes + memory_block_bytes - 1) / memory_block_bytes * memory_block_bytes;
  }
  return records;
}

std::optional<uint64_t> store_of_segment(std::span<const std::byte> file) {
  SegmentHeader header{};
  if (file.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, file.data(), sizeof(header));
  const bool whole = std::memcmp(header.magic, segment_magic, sizeof(segment_magic)) == 0 &&
                     header.crc == crc_around(file.data(), sizeof(header));
  return whole ? std::optional(header.store_id) : std::nullopt;
}

Result<JournalSegment> JournalSegment::create(const std::string& path, uint64_t bytes, uint64_t store_id) {
  constexpr const char* where = "JournalSegment::create";
  const std::string fresh = path + "-new";
  ::unlink(fresh.c_str());
  UniqueFd file(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return os_error(errno, where, "cannot create " + fresh);
  bytes = file_bytes(bytes);
  SegmentHeader header{};
  std::memcpy(header.magic, segment_magic, sizeof(segment_magic));
  header.version = segment_version;
  header.store_id = store_id;
  header.bytes = bytes;
  header.block_bytes = lies_in_memory(file.get()) ? memory_block_bytes : disk_block_bytes;
  header.crc = crc_around(reinterpret_cast<const std::byte*>(&header), sizeof(header));
  Status made = write_zeros(file.get(), 0, bytes, path);
  if (made.ok() && ::pwrite(file.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)))
    made = os_error(EIO, where, "cannot write " + fresh);
  if (made.ok() && ::fsync(file.get()) != 0) made = os_error(errno, where, "cannot sync " + fresh);
  if (made.ok() && ::rename(fresh.c_str(), path.c_str()) != 0)
    made = os_error(errno, where, "cannot rename " + fresh + " to " + path);
  if (!made.ok()) {
    ::unlink(fresh.c_str());
    return made.error();
  }
  TERRACE_RETURN_IF_ERROR(sync_folder_of(path));
  TERRACE_ASSIGN_OR_RETURN(std::optional<JournalSegment> segment, open(path, store_id));
  if (!segment.has_value()) return segment_error(ErrorCode::io_error, path, "vanished while it was made");
  return std::move(*segment);
}

Result<std::optional<JournalSegment>> JournalSegment::open(const std::string& path, uint64_t store_id) {
  JournalSegment segment;
  segment.path_ = path;
  segment.store_id_ = store_id;
  segment.file_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!segment.file_.valid()) {
    if (errno == ENOENT) return std::optional<JournalSegment>();
    return os_error(errno, "JournalSegment::open", "cannot open " + path);
  }
  TERRACE_RETURN_IF_ERROR(segment.read_header());
  segment.in_memory_ = lies_in_memory(segment.file_.get());
  TERRACE_RETURN_IF_ERROR(segment.use_direct_io());
  return std::optional<JournalSegment>(std::move(segment));
}

Status JournalSegment::read_header() {
  SegmentHeader header{};
  const ssize_t n = ::pread(file_.get(), &header, sizeof(header), 0);
  if (n < 0) return os_error(errno, "JournalSegment::open", "cannot read " + path_);
  if (n != static_cast<ssize_t>(sizeof(header)) ||
      std::memcmp(header.magic, segment_magic, sizeof(segment_magic)) != 0)
    return segment_error(ErrorCode::corrupt, path_,
                         "is no journal of a Terrace store, or its header is damaged");
  if (header.crc != crc_around(reinterpret_cast<const std::byte*>(&header), sizeof(header)))
    return segment_error(ErrorCode::corrupt, path_, "has a damaged header");
  if (header.version > segment_version)
    return segment_error(ErrorCode::version_mismatch, path_, "was written by a newer terraced; run that one");
  if (header.store_id != store_id_)
    return segment_error(ErrorCode::corrupt, path_,
                         "belongs to another store; to go on without it, move it away");
  const bool plausible = header.version == segment_version && header.bytes <= segment_bytes_max &&
                         header.bytes % disk_block_bytes == 0 && header.bytes >= 2 * disk_block_bytes &&
                         (header.block_bytes == disk_block_bytes || header.block_bytes == memory_block_bytes);
  if (!plausible) return segment_error(ErrorCode::corrupt, path_, "has an impossible header");
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0)
    return os_error(errno, "JournalSegment::open", "cannot stat " + path_);
  if (!S_ISREG(status.st_mode)) return segment_error(ErrorCode::corrupt, path_, "is no regular file");
  if (static_cast<uint64_t>(status.st_size) != header.bytes)
    return segment_error(ErrorCode::corrupt, path_, "does not have the length that it was made with");
  bytes_ = header.bytes;
  block_bytes_ = header.block_bytes;
  return {};
}

// Around the page cache where the file system can: an append is then one write to the disk rather than a copy,
// a search for dirty pages and a write, and what is read back later is what the disk has.
Status JournalSegment::use_direct_io() {
  if (in_memory_ || block_bytes_ != disk_block_bytes) return {};
  UniqueFd direct(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_DIRECT));
  if (!direct.valid()) return {};
  ByteBuffer probe;
  probe.resize(disk_block_bytes);
  if (::pread(direct.get(), probe.data(), probe.size(), 0) != static_cast<ssize_t>(probe.size())) return {};
  file_ = std::move(direct);
  return {};
}

bool JournalSegment::made_for(uint64_t bytes) const {
  return bytes_ == file_bytes(bytes) && block_bytes_ == (in_memory_ ? memory_block_bytes : disk_block_bytes);
}

Status JournalSegment::append(ByteBuffer& record, uint64_t sequence) {
  record.resize(padded(record.size()));
  const ssize_t n = ::pwrite(file_.get(), record.data(), record.size(), static_cast<off_t>(end_));
  if (n != static_cast<ssize_t>(record.size()))
    return os_error(n < 0 ? errno : EIO, "JournalSegment::append", "cannot write to the journal " + path_);
  end_ += record.size();
  newest_ = sequence;
  return {};
}

Status JournalSegment::sync() {
  if (::fdatasync(file_.get()) != 0)
    return os_error(errno, "JournalSegment::sync", "cannot sync the journal " + path_);
  return {};
}

Result<std::vector<FoundRecord>> JournalSegment::read(std::vector<std::byte>& memory, bool all) const {
  constexpr const char* where = "JournalSegment::read";
  // Through the page cache, which direct writes keep honest; dropped first, so that the disk itself answers.
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return os_error(errno, where, "cannot open " + path_);
  struct stat opened {
  }, read{};
  if (::fstat(file_.get(), &opened) != 0 || ::fstat(file.get(), &read) != 0)
    return os_error(errno, where, "cannot stat " + path_);
  if (opened.st_ino != read.st_ino || opened.st_dev != read.st_dev)
    return segment_error(ErrorCode::io_error, path_, "was exchanged while it was in use");
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  const uint64_t end = all ? bytes_ : end_;
  memory.resize(end);
  for (uint64_t at = 0; at < end;) {
    const ssize_t n = ::pread(file.get(), memory.data() + at, end - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return os_error(n == 0 ? EIO : errno, where, "cannot read the journal " + path_);
    at += static_cast<uint64_t>(n);
  }
  std::vector<FoundRecord> records;
  for (uint64_t at = header_bytes; at < end;) {
    const auto found = find_record(std::span<const std::byte>(memory).subspan(at), store_id_);
    if (found.has_value()) records.push_back(*found);
    at += found.has_value() ? padded(sizeof(RecordHeader) + found->payload.size()) : block_bytes_;
  }
  return records;
}

}  // namespace terrace::daemon
