// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/store_copy.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/os/patient_lock.h"
#include "daemon/fsck/check_rows.h"
#include "daemon/store/backup/store_copy_file.h"
#include "daemon/store/salvage/damaged_store.h"
#include "daemon/store/salvage/settle_rows.h"
#include "daemon/store/store.h"

namespace terrace::daemon {
namespace {

namespace fs = std::filesystem;

constexpr const char* where = "fsck";

class PrivateFolder {
 public:
  static Result<PrivateFolder> make() {
    const char* base = ::secure_getenv("TMPDIR");
    std::string path =
        (base != nullptr && base[0] == '/' ? std::string(base) : std::string("/tmp")) + "/terrace-fsck-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr)
      return os_error(errno, where, "cannot make a private folder " + path + " for a copy of the store");
    return PrivateFolder(std::move(path));
  }
  PrivateFolder(PrivateFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PrivateFolder& operator=(PrivateFolder&&) = delete;
  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Keeps a terraced from starting while the files are read; a store without its mark has no lock.
Result<UniqueFd> lock_out(const std::string& state_path) {
  UniqueFd mark(::open((state_path + "-mark").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!mark.valid()) {
    if (errno == ENOENT) return mark;
    return os_error(errno, where, "cannot open " + state_path + "-mark");
  }
  const int error = lock_patiently(mark.get(), LOCK_SH);
  if (error == 0) return mark;
  if (error != EWOULDBLOCK) return os_error(error, where, "cannot lock " + state_path + "-mark");
  return Error{.code = ErrorCode::busy,
               .where = where,
               .detail = "a terraced serves from " + state_path +
                         "; ask it with `terrace fsck`, or stop it first (its leases stay)"};
}

// The state file and everything beside it that is a part of it: logs, journals, the mark, the names of hosts.
Result<std::vector<fs::path>> files_of(const std::string& state_path) {
  const fs::path path(state_path);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const std::string base = path.filename().string();
    if (name == base || name == base + ".hosts" || name.starts_with(base + "-")) files.push_back(at->path());
  }
  if (error && error.value() != ENOENT)
    return os_error(error.value(), where, "cannot list the folder of the store, " + folder.string());
  if (files.empty()) {
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = "there is no store at " + state_path +
                           "; name it with --state or --config, or start terraced, which begins a new one"};
  }
  return files;
}

}  // namespace

namespace {

// A store that was opened from a private copy of its files.
struct CopiedStore {
  PrivateFolder folder;
  std::string original;
  std::unique_ptr<Store> store = {};

  std::string path() const { return folder.path() + "/" + fs::path(original).filename().string(); }
  Error in_words(Error error) const {
    for (size_t at; (at = error.detail.find(folder.path() + "/")) != std::string::npos;)
      error.detail.replace(at, folder.path().size() + 1, fs::path(original).parent_path().string() + "/");
    return error;
  }
};

Result<CopiedStore> copy_files(const std::string& state_path) {
  TERRACE_ASSIGN_OR_RETURN(const auto files, files_of(state_path));
  TERRACE_ASSIGN_OR_RETURN(PrivateFolder folder, PrivateFolder::make());
  CopiedStore copy{std::move(folder), state_path};
  {
    TERRACE_ASSIGN_OR_RETURN(const UniqueFd lock, lock_out(state_path));
    for (const fs::path& file : files)
      TERRACE_RETURN_IF_ERROR(
          copy_file_bytes(file.string(), copy.folder.path() + "/" + file.filename().string()));
  }
  return copy;
}

Result<CopiedStore> open_copy(const std::string& state_path) {
  TERRACE_ASSIGN_OR_RETURN(CopiedStore copy, copy_files(state_path));
  auto store = open_store(copy.path());
  if (!store.ok()) return copy.in_words(store.error());
  copy.store = std::move(*store);
  return copy;
}

}  // namespace

Result<StoredState> read_store(const std::string& state_path) {
  TERRACE_ASSIGN_OR_RETURN(const CopiedStore copy, open_copy(state_path));
  auto image = copy.store->load();
  if (!image.ok()) return copy.in_words(image.error());
  return StoredState{copy.store->id(), std::move(*image)};
}

Result<StoreBackup> back_up_stopped(const std::string& state_path) {
  TERRACE_ASSIGN_OR_RETURN(const CopiedStore copy, open_copy(state_path));
  auto made = copy.store->backup();
  if (!made.ok()) return copy.in_words(made.error());
  return made;
}

Result<SalvagedBackup> salvage_stopped(const std::string& state_path, const std::string& file) {
  TERRACE_ASSIGN_OR_RETURN(const CopiedStore copy, copy_files(state_path));
  auto read = read_damaged_store(copy.path());
  if (!read.ok()) return copy.in_words(read.error());
  settle_rows(read->image, read->lost);
  std::vector<Finding> findings;
  check_invariants(read->image, findings);
  for (const Finding& finding : findings) {
    if (finding.severity != Severity::error) continue;
    return Error{.code = ErrorCode::corrupt,
                 .where = "salvage",
                 .detail = "what is left of " + state_path + " does not fit together: " + finding.subject +
                           " " + finding.what + ". Restore a backup (terrace state restore)"};
  }
  TERRACE_RETURN_IF_ERROR(write_salvaged_store(file, *read));
  TERRACE_ASSIGN_OR_RETURN(const StoreContents contents, verify_backup(file));
  return SalvagedBackup{contents, std::move(read->lost)};
}

Result<StoreContents> verify_backup(const std::string& file) {
  TERRACE_ASSIGN_OR_RETURN(PrivateFolder folder, PrivateFolder::make());
  const std::string private_copy = folder.path() + "/" + fs::path(file).filename().string();
  const CopiedStore words{std::move(folder), fs::absolute(file).string()};
  TERRACE_RETURN_IF_ERROR(copy_file_bytes(file, private_copy));
  auto contents = inspect_copy(private_copy, {});
  if (!contents.ok()) {
    Error error = words.in_words(contents.error());
    if (error.detail.find(file) == std::string::npos) error.detail = file + ": " + error.detail;
    return error;
  }
  return contents;
}

}  // namespace terrace::daemon
