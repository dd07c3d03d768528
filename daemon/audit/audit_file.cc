#include "daemon/audit/audit_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "AuditFile";
constexpr unsigned rotated_max = 9999;

void add_text(std::string& line, const char* key, const std::string& text) {
  static constexpr const char* hex = "0123456789abcdef";
  line += std::string(", \"") + key + "\": \"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line += {'\\', c};
    } else if (byte < 0x20) {
      line += {'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15]};
    } else {
      line += c;
    }
  }
  line += '"';
}

}  // namespace

std::string audit_line(const AuditRow& row) {
  std::string line = "{\"time_ns\": " + std::to_string(row.wall_ns);
  add_text(line, "actor", row.actor);
  add_text(line, "tenant", row.tenant);
  add_text(line, "verb", row.verb);
  add_text(line, "subject", row.subject);
  add_text(line, "detail", row.detail);
  return line + "}\n";
}

AuditFile::AuditFile(AuditFileOptions options) : options_(std::move(options)), thread_([this] { run(); }) {}

AuditFile::~AuditFile() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void AuditFile::append(const std::vector<AuditRow>& rows) {
  std::string lines;
  for (const AuditRow& row : rows) lines += audit_line(row);
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() + lines.size() > options_.waiting_bytes_max) {
      left_out_ += rows.size();
      return;
    }
    waiting_ += lines;
  }
  changed_.notify_one();
}

void AuditFile::run() {
  std::string lines;  // taken, and not written yet
  bool failing = false;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (failing) {
      changed_.wait_for(lock, std::chrono::milliseconds(options_.retry_ms), [this] { return ending_; });
    } else {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    }
    const bool last = ending_;
    if (lines.empty() || last) lines += std::exchange(waiting_, std::string());
    const uint64_t left_out = std::exchange(left_out_, 0);
    lock.unlock();
    const Status written = lines.empty() ? Status() : write(lines);
    if (left_out != 0)
      log::error("{} entries of the audit log are not in {}: it could not be written for too long", left_out,
                 options_.path);
    if (written.ok()) {
      if (failing) log::info("{} is written again", options_.path);
      lines.clear();
    } else if (!failing) {
      log::error("{}; entries of the audit log wait for it, and are in the store", written.error().to_string());
    }
    failing = !written.ok();
    lock.lock();
    if (last) return;
  }
}

Status AuditFile::open() {
  file_ = UniqueFd(
      ::open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file_.valid()) return os_error(errno, where, "cannot open the audit file " + options_.path);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    file_ = UniqueFd();
    return os_error(EINVAL, where, "the audit file " + options_.path + " is no regular file");
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
  return {};
}

Status AuditFile::rotate() {
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

Status AuditFile::write(const std::string& lines) {
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
    return {};
  }
  const int cause = failed != 0 ? failed : errno;
  // What is written is written again: no half of a line stays.
  if (::ftruncate(file_.get(), static_cast<off_t>(before)) != 0) bytes_ = before + done;
  return os_error(cause, where, "cannot write the audit file " + options_.path);
}

}  // namespace terrace::daemon
