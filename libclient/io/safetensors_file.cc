// SPDX-License-Identifier: Apache-2.0
#include "libclient/io/safetensors_file.h"

#include "libclient/io/gguf_header.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace terrace {
namespace {

Error refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "SafetensorsFile::open", .detail = std::move(detail)};
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

Status read_exactly(int fd, const std::string& path, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      return os_error(errno, "read_exactly", path + ": reading failed at byte " + std::to_string(offset));
    }
    if (count == 0) {
      return Error{
          .code = ErrorCode::io_error,
          .where = "read_exactly",
          .detail = path + ": the file ended at byte " + std::to_string(offset) + "; somebody is changing it"};
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

namespace {

// Opened and looked at, but not read.
Status open_regular(const std::string& path, SafetensorsFile& file) {
  // O_NONBLOCK: opening a FIFO must not wait; regular files ignore it.
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd.valid()) return os_error(errno, "SafetensorsFile::open", path + ": cannot be opened");
  if (::fstat(file.fd.get(), &file.status) != 0) {
    return os_error(errno, "SafetensorsFile::open", path + ": cannot be examined");
  }
  if (!S_ISREG(file.status.st_mode)) {
    return refuse(ErrorCode::invalid_argument, path + ": not a regular file; copy it to one first");
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open_any(const std::string& path) try {
  SafetensorsFile file;
  TERRACE_RETURN_IF_ERROR(open_regular(path, file));
  const auto file_bytes = static_cast<uint64_t>(file.status.st_size);
  const ReadAt read_at = [&](uint64_t offset, std::span<std::byte> bytes) {
    return read_exactly(file.fd.get(), path, offset, bytes);
  };
  std::byte first[4] = {};
  if (file_bytes >= sizeof first) TERRACE_RETURN_IF_ERROR(read_at(0, first));
  if (!is_gguf(first)) return open(path);
  TERRACE_ASSIGN_OR_RETURN(file.index, read_gguf_header(read_at, file_bytes, path));
  return file;
} catch (const std::bad_alloc&) {
  return refuse(ErrorCode::out_of_memory, path + ": no local memory for its header");
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) try {
  SafetensorsFile file;
  TERRACE_RETURN_IF_ERROR(open_regular(path, file));
  const auto file_bytes = static_cast<uint64_t>(file.status.st_size);
  if (file_bytes < 8) {
    return refuse(ErrorCode::corrupt,
                  path + ": " + std::to_string(file_bytes) + " bytes are too few for a safetensors file");
  }
  uint64_t header_bytes = 0;  // little-endian in the file, as on every machine that Terrace runs on
  TERRACE_RETURN_IF_ERROR(
      read_exactly(file.fd.get(), path, 0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes > safetensors_header_bytes_max) {
    return refuse(ErrorCode::corrupt, path + ": its first 8 bytes announce a header of " +
                                          std::to_string(header_bytes) +
                                          " bytes, the format allows 100000000; is it a safetensors file?");
  }
  if (header_bytes > file_bytes - 8) {
    return refuse(ErrorCode::corrupt, path + ": its header of " + std::to_string(header_bytes) +
                                          " bytes is longer than the file; it was cut short, copy it again");
  }
  std::vector<std::byte> header(header_bytes);
  TERRACE_RETURN_IF_ERROR(read_exactly(file.fd.get(), path, 8, header));
  TERRACE_ASSIGN_OR_RETURN(file.index, parse_safetensors_header(header, file_bytes, path));
  return file;
} catch (const std::bad_alloc&) {
  return refuse(ErrorCode::out_of_memory, path + ": no local memory for its header");
}

namespace {

Status compare_with_now(const SafetensorsFile& file, const std::string& path, bool compare_ctime) {
  struct stat now {};
  if (::fstat(file.fd.get(), &now) != 0)
    return os_error(errno, "SafetensorsFile", path + ": cannot be examined");
  if (now.st_size == file.status.st_size && same_time(now.st_mtim, file.status.st_mtim) &&
      (!compare_ctime || same_time(now.st_ctim, file.status.st_ctim))) {
    return {};
  }
  return Error{
      .code = ErrorCode::busy,
      .where = "SafetensorsFile::check_unchanged",
      .detail = path + ": the file was changed while it was read; wait for its writer, then try again"};
}

}  // namespace

// A rename or chmod changes ctime alone; it does no harm, but it cannot be told from a write with a forged
// mtime.
Status SafetensorsFile::check_unchanged(const std::string& path) const {
  return compare_with_now(*this, path, true);
}

Status SafetensorsFile::check_not_written(const std::string& path) const {
  return compare_with_now(*this, path, false);
}

Result<SafetensorsIndex> read_safetensors_index(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  return std::move(file.index);
}

}  // namespace terrace
