// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/backup/store_copy_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "core/base/unique_fd.h"
#include "daemon/store/backup/hosts_part.h"
#include "daemon/store/database.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_copy = "store copy";

Status sync_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() || ::fsync(file.get()) != 0) return os_error(errno, where_copy, "cannot sync " + path);
  return {};
}

// A database whose seal says that commits may lie in a journal is a piece of a store.
Status check_whole(const std::string& path, const StoreSeal& seal) {
  if (!seal.journal) return {};
  return Error{
      .code = ErrorCode::corrupt,
      .where = where_copy,
      .detail = path +
                " is the database of a store that was open when it was copied: its newest commits lie "
                "in the journal beside the original. Make a backup with `terrace state backup`, or copy "
                "the file of a stopped terraced"};
}

StoreContents contents_of(const StoredImage& stored, const std::string& path) {
  struct stat status {};
  const bool known = ::stat(path.c_str(), &status) == 0;
  return {.id = {stored.seal.store_high, stored.seal.store_id},
          .sequence = stored.seal.sequence,
          .bytes = known ? static_cast<uint64_t>(status.st_size) : 0,
          .leases = stored.image.leases.size(),
          .devices = stored.image.devices.size(),
          .pools = stored.image.pools.size()};
}

}  // namespace

void remove_database(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) ::unlink((path + suffix).c_str());
}

Result<StoreContents> inspect_copy(const std::string& path, const StoreOptions& options) {
  TERRACE_RETURN_IF_ERROR(check_store_file(path));
  TERRACE_ASSIGN_OR_RETURN(const HostsPart hosts, take_hosts(path));
  Database database(path, options);
  TERRACE_ASSIGN_OR_RETURN(const StoredImage stored, database.begin_open());
  TERRACE_RETURN_IF_ERROR(check_whole(path, stored.seal));
  StoreContents contents = contents_of(stored, path);
  contents.bytes += hosts.bytes;
  return contents;
}

Result<StoreContents> seal_copy(const std::string& path, const StoreOptions& options) {
  TERRACE_RETURN_IF_ERROR(check_store_file(path));
  {
    Database database(path, options);
    TERRACE_ASSIGN_OR_RETURN(StoredImage stored, database.begin_open());
    Delta delta;
    delta.meta = stored.image.meta;
    delta.meta->restored = true;
    TERRACE_RETURN_IF_ERROR(database.finish_open(delta, {.sequence = stored.seal.sequence, .journal = false}));
    database.close(true);
  }
  TERRACE_RETURN_IF_ERROR(sync_file(path));
  TERRACE_ASSIGN_OR_RETURN(const StoreContents contents, inspect_copy(path, options));
  for (const char* suffix : {"-wal", "-shm"}) ::unlink((path + suffix).c_str());  // of the look; empty
  return contents;
}

Status copy_file_bytes(const std::string& from, const std::string& to) {
  const UniqueFd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!source.valid() || ::fstat(source.get(), &status) != 0)
    return os_error(errno, where_copy, "cannot read " + from);
  if (!S_ISREG(status.st_mode))
    return Error{
        .code = ErrorCode::invalid_argument, .where = where_copy, .detail = from + " is no regular file"};
  const UniqueFd target(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!target.valid()) return os_error(errno, where_copy, "cannot make the file " + to);
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t n = ::read(source.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(errno, where_copy, "cannot read " + from);
    if (n == 0) break;
    for (ssize_t written = 0; written < n;) {
      const ssize_t m = ::write(target.get(), buffer.data() + written, static_cast<size_t>(n - written));
      if (m < 0 && errno == EINTR) continue;
      if (m <= 0) return os_error(m == 0 ? ENOSPC : errno, where_copy, "cannot write " + to);
      written += m;
    }
  }
  if (::fsync(target.get()) != 0) return os_error(errno, where_copy, "cannot sync " + to);
  return {};
}

}  // namespace terrace::daemon
