// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/backup/restore.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>

#include "core/base/failpoint.h"
#include "core/base/unique_fd.h"
#include "daemon/store/backup/hosts_part.h"
#include "daemon/store/backup/store_copy_file.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_restore = "restore";

// What may lie beside a store and belongs to its commits, or to its leases. The mark stays where it is: it is the lock.
constexpr std::array<const char*, 9> moved_suffixes = {
    "", "-wal", "-shm", "-journal", "-journal-a", "-journal-b", "-holders", "-consents", "-new"};

std::string prepared_path(const std::string& state_path) {
  return state_path + "-restoring";
}
// The list of further hosts that comes with the decided file. Gone once it is in its place.
std::string decided_hosts_path(const std::string& state_path) {
  return state_path + "-restored-hosts";
}
std::string decided_path(const std::string& state_path) {
  return state_path + "-restored";
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

// Named by the decided file's own time, so that whoever goes on after a crash finds the same folder.
std::string aside_folder(const std::string& state_path, const timespec& time) {
  std::tm parts{};
  ::gmtime_r(&time.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &parts);
  return state_path + ".before-restore-" + text;
}

Result<timespec> time_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return os_error(errno, where_restore, "cannot look at " + path);
  return status.st_mtim;
}

// Gives the prepared file a time whose folder nobody has, durably.
Status choose_time(const std::string& state_path) {
  const std::string path = prepared_path(state_path);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return os_error(errno, where_restore, "cannot open " + path);
  TERRACE_ASSIGN_OR_RETURN(timespec time, time_of(path));
  time.tv_nsec = 0;
  while (exists(aside_folder(state_path, time))) ++time.tv_sec;
  const timespec times[2] = {time, time};
  if (::futimens(file.get(), times) != 0 || ::fsync(file.get()) != 0)
    return os_error(errno, where_restore, "cannot sync " + path);
  return {};
}

Status move_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return os_error(errno, where_restore, "cannot rename " + from + " to " + to);
}

// The mark as it was, for whoever takes the old files back. Whole under its name, or not there.
Status keep_mark(const std::string& state_path, const std::string& kept) {
  if (exists(kept)) return {};
  ::unlink((kept + ".part").c_str());
  TERRACE_RETURN_IF_ERROR(copy_file_bytes(state_path + "-mark", kept + ".part"));
  return move_file(kept + ".part", kept);
}

// Moves what is there into `folder`; what was moved before stays there.
Status set_aside(const std::string& state_path, const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return os_error(errno, where_restore, "cannot make the folder " + folder);
  const std::string base = folder + "/" + std::filesystem::path(state_path).filename().string();
  TERRACE_RETURN_IF_ERROR(keep_mark(state_path, base + "-mark"));
  for (const char* suffix : moved_suffixes)
    if (exists(state_path + suffix)) TERRACE_RETURN_IF_ERROR(move_file(state_path + suffix, base + suffix));
  if (exists(decided_hosts_path(state_path)) && exists(hosts_path(state_path)))
    TERRACE_RETURN_IF_ERROR(move_file(hosts_path(state_path), hosts_path(base)));
  TERRACE_RETURN_IF_ERROR(sync_folder_of(base));
  return sync_folder_of(state_path);
}

bool anything_there(const std::string& state_path) {
  if (exists(decided_hosts_path(state_path)) && exists(hosts_path(state_path))) return true;
  for (const char* suffix : moved_suffixes)
    if (exists(state_path + suffix)) return true;
  return false;
}

// Durable before the decision; the folder is synced with that.
Status put_hosts(const std::string& state_path, const HostsPart& hosts) {
  if (!hosts.text.has_value()) return {};
  const std::string path = decided_hosts_path(state_path);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return os_error(errno, where_restore, "cannot make the file " + path);
  errno = ENOSPC;  // of a write that is short
  if (::write(file.get(), hosts.text->data(), hosts.text->size()) != static_cast<ssize_t>(hosts.text->size()) ||
      ::fsync(file.get()) != 0)
    return os_error(errno, where_restore, "cannot write " + path);
  return sync_folder_of(state_path);
}

Error renamed_in(Error error, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = error.detail.find(from, at)) != std::string::npos; at += to.size())
    error.detail.replace(at, from.size(), to);
  return error;
}

}  // namespace

Result<std::string> finish_restore(const std::string& state_path, CommitMarkFile& mark) {
  const std::string decided = decided_path(state_path);
  if (!exists(decided)) return std::string();
  TERRACE_ASSIGN_OR_RETURN(const timespec time, time_of(decided));
  std::string folder = aside_folder(state_path, time);
  if (anything_there(state_path)) TERRACE_RETURN_IF_ERROR(set_aside(state_path, folder));
  if (const int code = TERRACE_FAILPOINT(restore_after_aside); code != 0)
    return os_error(code, "restore_after_aside", "the restore of " + state_path + " is not finished");
  // Its number is of the store that was there.
  TERRACE_RETURN_IF_ERROR(mark.clear());
  if (const std::string hosts = decided_hosts_path(state_path); exists(hosts)) {
    TERRACE_RETURN_IF_ERROR(move_file(hosts, hosts_path(state_path)));
    TERRACE_RETURN_IF_ERROR(sync_folder_of(state_path));
  }
  TERRACE_RETURN_IF_ERROR(move_file(decided, state_path));
  TERRACE_RETURN_IF_ERROR(sync_folder_of(state_path));
  if (const int code = TERRACE_FAILPOINT(restore_after_place); code != 0)
    return os_error(code, "restore_after_place", "the restore of " + state_path + " was not confirmed");
  return exists(folder) ? folder : std::string();
}

Result<RestoredStore> restore_store(const std::string& backup, const std::string& state_path,
                                    const StoreOptions& options) {
  TERRACE_RETURN_IF_ERROR(check_store_file(backup));
  TERRACE_RETURN_IF_ERROR(make_parent_folder(state_path));
  TERRACE_ASSIGN_OR_RETURN(CommitMarkFile mark, CommitMarkFile::lock(state_path + "-mark", state_path));
  TERRACE_RETURN_IF_ERROR(finish_restore(state_path, mark));
  const std::string prepared = prepared_path(state_path);
  remove_database(prepared);
  ::unlink(decided_hosts_path(state_path).c_str());  // of a restore that was never decided
  const auto prepare = [&]() -> Result<StoreContents> {
    TERRACE_RETURN_IF_ERROR(copy_file_bytes(backup, prepared));
    TERRACE_ASSIGN_OR_RETURN(const HostsPart hosts, take_hosts(prepared));
    TERRACE_RETURN_IF_ERROR(put_hosts(state_path, hosts));
    TERRACE_ASSIGN_OR_RETURN(StoreContents contents, seal_copy(prepared, options));
    TERRACE_RETURN_IF_ERROR(choose_time(state_path));
    return contents;
  };
  Result<StoreContents> contents = prepare();
  if (!contents.ok()) {
    remove_database(prepared);
    ::unlink(decided_hosts_path(state_path).c_str());
    Error error = renamed_in(contents.error(), prepared, backup);
    if (error.detail.find(backup) == std::string::npos) error.detail = backup + ": " + error.detail;
    return error;
  }
  if (const int code = TERRACE_FAILPOINT(restore_before_switch); code != 0)
    return os_error(code, "restore_before_switch", "nothing was restored");
  TERRACE_RETURN_IF_ERROR(move_file(prepared, decided_path(state_path)));
  TERRACE_RETURN_IF_ERROR(sync_folder_of(state_path));
  if (const int code = TERRACE_FAILPOINT(restore_after_switch); code != 0)
    return os_error(code, "restore_after_switch", "the restore of " + state_path + " is not finished");
  TERRACE_ASSIGN_OR_RETURN(std::string folder, finish_restore(state_path, mark));
  return RestoredStore{*contents, std::move(folder)};
}

}  // namespace terrace::daemon
