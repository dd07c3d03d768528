#include "daemon/fsck/store_copy.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "core/base/unique_fd.h"
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

Status copy_file(const std::string& from, const std::string& to) {
  const UniqueFd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!source.valid()) return os_error(errno, where, "cannot read " + from);
  const UniqueFd target(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!target.valid()) return os_error(errno, where, "cannot write the copy " + to);
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t n = ::read(source.get(), buffer.data(), buffer.size());
    if (n < 0) return os_error(errno, where, "cannot read " + from);
    if (n == 0) return {};
    if (::write(target.get(), buffer.data(), static_cast<size_t>(n)) != n)
      return os_error(errno, where, "cannot write the copy " + to + "; TMPDIR names another place for it");
  }
}

// Keeps a terraced from starting while the files are read; a store without its mark has no lock.
Result<UniqueFd> lock_out(const std::string& state_path) {
  UniqueFd mark(::open((state_path + "-mark").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!mark.valid()) {
    if (errno == ENOENT) return mark;
    return os_error(errno, where, "cannot open " + state_path + "-mark");
  }
  if (::flock(mark.get(), LOCK_SH | LOCK_NB) == 0) return mark;
  if (errno != EWOULDBLOCK) return os_error(errno, where, "cannot lock " + state_path + "-mark");
  return Error{.code = ErrorCode::busy,
               .where = where,
               .detail = "a terraced serves from " + state_path +
                         "; ask it with `terrace fsck`, or stop it first (its leases stay)"};
}

// The state file and everything beside it whose name begins with it: logs, journals, the mark.
Result<std::vector<fs::path>> files_of(const std::string& state_path) {
  const fs::path path(state_path);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const std::string base = path.filename().string();
    if (name == base || name.starts_with(base + "-")) files.push_back(at->path());
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

Result<StoredState> read_store(const std::string& state_path) {
  TERRACE_ASSIGN_OR_RETURN(const auto files, files_of(state_path));
  TERRACE_ASSIGN_OR_RETURN(const PrivateFolder folder, PrivateFolder::make());
  {
    TERRACE_ASSIGN_OR_RETURN(const UniqueFd lock, lock_out(state_path));
    for (const fs::path& file : files)
      TERRACE_RETURN_IF_ERROR(copy_file(file.string(), folder.path() + "/" + file.filename().string()));
  }
  const std::string copy = folder.path() + "/" + fs::path(state_path).filename().string();
  const auto in_words = [&](Error error) {
    for (size_t at; (at = error.detail.find(folder.path() + "/")) != std::string::npos;)
      error.detail.replace(at, folder.path().size() + 1, fs::path(state_path).parent_path().string() + "/");
    return error;
  };
  auto store = open_store(copy);
  if (!store.ok()) return in_words(store.error());
  auto image = (*store)->load();
  if (!image.ok()) return in_words(image.error());
  return StoredState{(*store)->id(), std::move(*image)};
}

}  // namespace terrace::daemon
