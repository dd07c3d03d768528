// Entries of the audit log on their way out of the store: written by a thread of its own, so that nobody waits for a
// disk or for a logging service.
//
// Place     AuditFile and AuditSyslog are made of one each.
// Threads   append() from one thread, and never waits. `write` is called by this one's own thread.
//
// What cannot be written waits, within a bound, and is tried again; entries left out beyond the bound are counted in the
// log.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

struct AuditQueueOptions {
  std::string name;  // of where it goes, for the log
  uint64_t waiting_bytes_max = 16ull << 20;
  uint64_t retry_ms = 1000;
};

class AuditQueue {
 public:
  // Writes `lines` and takes from their front what is written; with an error the rest is tried again.
  using Write = std::function<Status(std::string& lines)>;

  AuditQueue(AuditQueueOptions options, Write write);
  ~AuditQueue();  // writes what waits, once
  AuditQueue(const AuditQueue&) = delete;
  AuditQueue& operator=(const AuditQueue&) = delete;

  void append(const std::vector<AuditRow>& rows);

 private:
  void run();

  const AuditQueueOptions options_;
  const Write write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  uint64_t left_out_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

// `{"time_ns": ..., "actor": ..., "tenant": ..., "verb": ..., "subject": ..., "detail": ...}` and a line feed.
std::string audit_line(const AuditRow& row);

}  // namespace terrace::daemon
