#include "daemon/audit/audit_queue.h"

#include <chrono>
#include <utility>

#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

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

AuditQueue::AuditQueue(AuditQueueOptions options, Write write)
    : options_(std::move(options)), write_(std::move(write)), thread_([this] { run(); }) {}

AuditQueue::~AuditQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void AuditQueue::append(const std::vector<AuditRow>& rows) {
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

void AuditQueue::run() {
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
    const Status written = lines.empty() ? Status() : write_(lines);
    if (left_out != 0)
      log::error("{} entries of the audit log are not in {}: it could not be written for too long", left_out,
                 options_.name);
    if (written.ok()) {
      if (failing) log::info("{} is written again", options_.name);
    } else if (!failing) {
      log::error("{}; entries of the audit log wait for it, and are in the store", written.error().to_string());
    }
    failing = !written.ok();
    lock.lock();
    if (last) return;
  }
}

}  // namespace terrace::daemon
