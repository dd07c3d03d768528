// SPDX-License-Identifier: Apache-2.0
// Tells about a run while it runs: to `terrace top` each second, to the file of --stats at an interval, when
// SIGUSR1 asks, and at the end.
//
// Place     cli/run/run.cc makes one beside the Broker. A run shows a file in its user's directory below
//           /dev/shm, replaced whole each second: a reader of it cannot disturb the run.
// Threads   One of its own, so that a slow file never keeps the supervisor from its duties. ask() from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "allocator/supply/broker.h"
#include "cli/run/run_report.h"
#include "cli/show/reported_runs.h"
#include "core/base/sync/mutex.h"

namespace terrace::cli {

struct RunReporterOptions {
  RunDocument facts;         // all but the report and times
  std::string stats_file;    // empty: ask() prints a table on stderr
  uint64_t interval_ns = 0;  // 0: the file is written when asked, and at the end
  std::string directory;     // empty: the user's own; for tests another
  // Called each second, and with `last` at the end: tells the manager.
  std::function<void(const RunDocument&, bool last)> tell;
};

class RunReporter {
 public:
  // `broker` outlives it. Without a thread (ulimit -u) only finish() does something.
  RunReporter(supply::Broker& broker, RunReporterOptions options);
  ~RunReporter();  // nothing is shown any more
  RunReporter(const RunReporter&) = delete;
  RunReporter& operator=(const RunReporter&) = delete;

  // Writes the file now, or a table to stderr. Returns at once.
  void ask();
  // The last numbers: writes the file, if there is one.
  // Errors    of writing it
  Status finish(int exit_code);

 private:
  void loop();
  void stop();
  RunDocument look();
  void show(const RunDocument& run);

  supply::Broker& broker_;
  RunReporterOptions options_;
  uint64_t started_ns_;
  std::string path_;  // shown there; empty: it cannot be
  RunDocument before_;
  bool has_before_ = false;

  Mutex mutex_;
  ConditionVariable wake_;
  bool asked_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Replaces a file whole, where it is one; writes into what is none (a pipe, a terminal).
Status write_report(const std::string& path, const std::string& text);

}  // namespace terrace::cli
