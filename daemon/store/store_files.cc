// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/store_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/prng.h"
#include "daemon/store/row_writer.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_open = "open_store";
constexpr int64_t page_bytes = 4096;

Error corrupt(std::string detail) {
  return Error{.code = ErrorCode::corrupt, .where = where_open, .detail = std::move(detail)};
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Size of a regular file; -1 when there is none.
Result<int64_t> size_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return int64_t{-1};
    return os_error(errno, where_open, "cannot look at " + path);
  }
  if (!S_ISREG(status.st_mode)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where_open,
                 .detail = path + " is no regular file; the store is one, and is not reached through links"};
  }
  return static_cast<int64_t>(status.st_size);
}

// Closing a descriptor of the database would drop SQLite's locks on it, were it open in this process; the
// mark's lock says that it is not.
Result<bool> looks_like_store(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return os_error(errno, where_open, "cannot open " + path);
  unsigned char header[100] = {};
  const ssize_t n = ::pread(file.get(), header, sizeof(header), 0);
  if (n < 0) return os_error(errno, where_open, "cannot read " + path);
  if (n < static_cast<ssize_t>(sizeof(header)) || std::memcmp(header, "SQLite format 3", 16) != 0) return false;
  int64_t application_id = 0;
  for (size_t i = 68; i < 72; ++i) application_id = application_id * 256 + header[i];
  return application_id == store_application_id;
}

Status fill_fresh(const std::string& path, std::span<const Migration> migrations) {
  return fill_store_file(path, migrations, Delta{},
                         {.store_id = secure_random_u64(), .store_high = secure_random_u64()});
}

}  // namespace

Status fill_store_file(const std::string& path, std::span<const Migration> migrations, const Delta& rows,
                       StoreSeal seal) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::open(path, true));
  TERRACE_RETURN_IF_ERROR(
      connection.exec("PRAGMA page_size=4096; PRAGMA encoding='UTF-8'; BEGIN IMMEDIATE", where_open));
  const std::string set_id = "PRAGMA application_id=" + std::to_string(store_application_id);
  TERRACE_RETURN_IF_ERROR(connection.exec(set_id.c_str(), where_open));
  TERRACE_RETURN_IF_ERROR(migrate(connection, migrations, 0));
  {
    RowWriter writer;
    TERRACE_RETURN_IF_ERROR(writer.prepare(connection));
    TERRACE_RETURN_IF_ERROR(writer.write(rows, MetaRow{}, seal));
  }
  TERRACE_RETURN_IF_ERROR(connection.exec("COMMIT", where_open));
  TERRACE_ASSIGN_OR_RETURN(const std::string mode,
                           connection.query_text("PRAGMA journal_mode=WAL", where_open));
  if (mode != "wal") {
    return Error{.code = ErrorCode::unsupported,
                 .where = where_open,
                 .detail = "SQLite cannot keep a write-ahead log at " + path};
  }
  connection.keep_log(false);
  connection.close();
  return {};
}

Status make_parent_folder(const std::string& path) {
  const std::string folder = folder_of(path);
  std::string at;
  for (const auto& part : std::filesystem::path(folder)) {
    at = at.empty() ? part.string() : (std::filesystem::path(at) / part).string();
    if (::mkdir(at.c_str(), 0700) == 0) {
      TERRACE_RETURN_IF_ERROR(sync_folder_of(at));
    } else if (errno != EEXIST) {
      const int os_errno = errno;
      struct stat status {};
      if (::stat(at.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) continue;
      return os_error(os_errno, where_open, "cannot make the folder " + at + " for the store");
    }
  }
  return {};
}

Status sync_folder_of(const std::string& path) {
  const std::string folder = folder_of(path);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return os_error(errno, where_open, "cannot open the folder " + folder);
  if (::fsync(fd.get()) != 0) return os_error(errno, where_open, "cannot sync the folder " + folder);
  return {};
}

Status check_store_file(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const bool store, looks_like_store(path));
  if (!store)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where_open,
                 .detail = path + " is not a Terrace store, nor a backup of one"};
  TERRACE_ASSIGN_OR_RETURN(const int64_t bytes, size_of(path));
  if (bytes % page_bytes != 0) return corrupt(path + " ends within a page: it was cut short");
  return {};
}

Result<bool> create_if_fresh(const std::string& path, const CommitMarkFile& mark,
                             std::span<const Migration> migrations) {
  const bool existed = mark.mark().has_value();
  TERRACE_ASSIGN_OR_RETURN(const int64_t bytes, size_of(path));
  TERRACE_ASSIGN_OR_RETURN(const int64_t log_bytes, size_of(path + "-wal"));
  TERRACE_ASSIGN_OR_RETURN(const int64_t journal_bytes, size_of(path + "-journal"));
  if (journal_bytes > 0) {
    return corrupt(path +
                   "-journal lies beside the store, but a Terrace store has no rollback journal; "
                   "playing it back could undo commits. Find out who wrote it, then move it away");
  }
  if (bytes > 0) {
    TERRACE_ASSIGN_OR_RETURN(const bool store, looks_like_store(path));
    if (!store && existed) return corrupt(path + " was a Terrace store, but its header is damaged");
    if (!store) {
      return Error{.code = ErrorCode::invalid_argument,
                   .where = where_open,
                   .detail = path + " is not a Terrace store and was not touched; choose another state path"};
    }
    // SQLite takes a last page that ends early for zeros. While there is a log, that page may be in it.
    if (log_bytes <= 0 && bytes % page_bytes != 0) return corrupt(path + " ends within a page");
    if (!existed && log_bytes > 0) {
      return corrupt(path + "-mark is missing, so that nobody can tell whether the log " + path +
                     "-wal is whole. Put the mark back; or accept what the log still holds with: sqlite3 '" +
                     path + "' 'PRAGMA wal_checkpoint(TRUNCATE)'");
    }
    return false;
  }
  if (existed || log_bytes > 0) {
    return corrupt(path + (bytes == 0 ? " is empty" : " is missing") + ", but " + path +
                   (existed ? "-mark" : "-wal") +
                   " says that it held state. Put it back; or, to begin anew and give up every lease, move " +
                   path + "-mark and " + path + "-wal away");
  }

  const std::string fresh = path + "-new";
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) ::unlink((fresh + suffix).c_str());
  {
    const UniqueFd file(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return os_error(errno, where_open, "cannot create " + fresh);
  }
  Status filled = fill_fresh(fresh, migrations);
  if (!filled.ok()) {
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) ::unlink((fresh + suffix).c_str());
    return std::move(filled).error();
  }
  // Complete under another name first: a crash leaves no store or a whole one.
  const UniqueFd file(::open(fresh.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() || ::fsync(file.get()) != 0) return os_error(errno, where_open, "cannot sync " + fresh);
  if (::rename(fresh.c_str(), path.c_str()) != 0)
    return os_error(errno, where_open, "cannot rename " + fresh + " to " + path);
  TERRACE_RETURN_IF_ERROR(sync_folder_of(path));
  return true;
}

void remove_store_files(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal-a", "-journal-b", "-mark"})
    ::unlink((path + suffix).c_str());
}

}  // namespace terrace::daemon
