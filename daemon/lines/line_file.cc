// SPDX-License-Identifier: Apache-2.0
#include "daemon/lines/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "LineFile";
constexpr unsigned rotated_max = 9999;

}  // namespace

LineFile::LineFile(LineFileOptions options)
    : options_(std::move(options)),
      queue_({.name = options_.path,
              .lines = options_.lines,
              .meanwhile = options_.meanwhile,
              .waiting_bytes_max = options_.waiting_bytes_max,
              .retry_ms = options_.retry_ms},
             [this](std::string& lines) { return write(lines); }) {}

Status LineFile::open() {
  file_ = UniqueFd(
      ::open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file_.valid()) return os_error(errno, where, "cannot open " + options_.what + " " + options_.path);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    file_ = UniqueFd();
    return os_error(EINVAL, where, options_.what + " " + options_.path + " is no regular file");
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
  return {};
}

Status LineFile::rotate() {
  for (unsigned n = 1; n <= rotated_max; ++n) {
    std::string number = std::to_string(n);
    number.insert(0, 4 - number.size(), '0');
    const std::string to = options_.path + "." + number;
    if (::link(options_.path.c_str(), to.c_str()) == 0) {  // never over one that is there
      if (::unlink(options_.path.c_str()) != 0) return os_error(errno, where, "cannot rename " + options_.path);
      return open();
    }
    if (errno != EEXIST) return os_error(errno, where, "cannot rename " + options_.path + " to " + to);
  }
  return os_error(EEXIST, where, options_.path + " has too many older files beside it; take some away");
}

Status LineFile::write(std::string& lines) {
  struct stat ours {
  }, theirs{};
  const bool same = file_.valid() && ::fstat(file_.get(), &ours) == 0 &&
                    ::stat(options_.path.c_str(), &theirs) == 0 && ours.st_ino == theirs.st_ino &&
                    ours.st_dev == theirs.st_dev;
  if (!same) TERRACE_RETURN_IF_ERROR(open());
  if (bytes_ != 0 && bytes_ + lines.size() > options_.rotate_bytes) {
    if (Status rotated = rotate(); !rotated.ok()) {
      log::warn("{}; it grows on", rotated.error().to_string());
      if (!file_.valid()) TERRACE_RETURN_IF_ERROR(open());
    }
  }
  const uint64_t before = bytes_;
  size_t done = 0;
  while (done < lines.size()) {
    const ssize_t wrote = ::write(file_.get(), lines.data() + done, lines.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  const int failed = done < lines.size() ? (errno != 0 ? errno : EIO) : 0;
  if (failed == 0 && ::fdatasync(file_.get()) == 0) {
    bytes_ += lines.size();
    lines.clear();
    return {};
  }
  const int cause = failed != 0 ? failed : errno;
  // What is written is written again: no half of a line stays.
  if (::ftruncate(file_.get(), static_cast<off_t>(before)) != 0) bytes_ = before + done;
  return os_error(cause, where, "cannot write " + options_.what + " " + options_.path);
}

}  // namespace terrace::daemon
