// SPDX-License-Identifier: Apache-2.0
// Lines on their way out of the manager (the audit log, events): written by a thread of its own, so that nobody waits for
// a disk or for a logging service.
//
// Place     LineFile, AuditSyslog and EventJournal are made of one each.
// Threads   append() and left_out() from one thread; neither waits. `write` is called by this one's own thread.
//
// What cannot be written waits, within a bound, and is tried again; lines left out beyond the bound are counted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "core/base/result.h"
#include "core/base/sync/mutex.h"

namespace terrace::daemon {

struct LineQueueOptions {
  std::string name;            // of where it goes, for the log
  std::string lines;           // what they are: "entries of the audit log"
  std::string meanwhile = {};  // where they are while they wait: ", and are in the store"
  uint64_t waiting_bytes_max = 16ull << 20;
  uint64_t retry_ms = 1000;
};

class LineQueue {
 public:
  // Writes `lines` and takes from their front what is written; with an error the rest is tried again.
  using Write = std::function<Status(std::string& lines)>;

  LineQueue(LineQueueOptions options, Write write);
  ~LineQueue();  // writes what waits, once
  LineQueue(const LineQueue&) = delete;
  LineQueue& operator=(const LineQueue&) = delete;

  // `count` lines, or pieces of another form that `write` knows.
  void append(const std::string& lines, size_t count);

  // How many lines were left out, in all.
  uint64_t left_out();

 private:
  void run();

  const LineQueueOptions options_;
  const Write write_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::string waiting_ TERRACE_GUARDED_BY(mutex_);
  uint64_t left_out_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_told_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool ending_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::daemon
