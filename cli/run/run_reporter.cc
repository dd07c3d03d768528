// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_reporter.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "allocator/supply/proc.h"
#include "cli/run/run_figures.h"
#include "cli/run/run_table.h"
#include "cli/run/top_scan.h"
#include "cli/terminal/output.h"
#include "cli/terminal/output_file.h"
#include "cli/tier/tier_map.h"
#include "core/base/kernel_clock.h"

namespace terrace::cli {
namespace {

constexpr const char* run_where = "terrace run";
constexpr uint64_t show_interval_ns = ns_per_s;
// Processes that are shown one by one; the rest is in the sums.
constexpr size_t shown_processes_max = 256;

std::string text_of(const RunDocument& run, int indent) {
  return to_json(run).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// The user's own directory, which nobody else may write to. Empty: there is none to be had.
std::string own_run_directory() {
  const std::string path = run_directory_prefix + std::to_string(::geteuid());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return {};
  struct stat about {};
  const bool usable = ::lstat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode) &&
                      about.st_uid == ::geteuid() && (about.st_mode & 077) == 0;
  return usable ? path : std::string();
}

// What the engine of a process says in its tier page; empty: it says nothing.
std::string engine_reason(pid_t pid) {
  const auto range = heap_range_of(pid);
  return range.has_value() ? range->reason : std::string();
}

std::string still_reason(const supply::ProcessReport& process, const RunDocument& run) {
  const size_t children =
      process.migration == supply::MigrationState::forked ? supply::descendants(process.pid).size() : 0;
  switch (process.migration) {
    case supply::MigrationState::running: return engine_reason(process.pid);  // of a pause, or lost memory
    case supply::MigrationState::forked:
      return children == 0
                 ? "its memory is private since a fork and is being folded back"
                 : "its memory is private since a fork, until its " +
                       (children == 1 ? "child ends or becomes another program"
                                      : std::to_string(children) + " children end or become other programs");
    case supply::MigrationState::stopped: {
      std::string reason = supply::end_reason_text(process.end_reason);
      if (reason.empty()) reason = engine_reason(process.pid);
      return reason.empty() ? "its engine ended or could not start (standard error says why)" : reason;
    }
    case supply::MigrationState::not_started: break;
  }
  if (process.forked_child) return "a forked child: its memory is private to it";
  if (!run.obstacle.empty()) return run.obstacle;
  if (process.memory.leased_bytes == 0) return "it has no lease: all it has is in DDR";
  return process.can_start ? "its engine has not started yet"
                           : "its window cannot move (ulimit -v, or a file of its DDR part cannot be had)";
}

// What is shown: those that run, the largest first.
void keep_largest(RunDocument* run) {
  std::vector<supply::ProcessReport>& all = run->report.processes;
  std::erase_if(all, [](const supply::ProcessReport& one) { return !one.running; });
  run->report.processes_left_out = 0;
  if (all.size() <= shown_processes_max) return;
  std::stable_sort(all.begin(), all.end(), [](const auto& one, const auto& other) {
    return one.memory.live_bytes() > other.memory.live_bytes();
  });
  run->report.processes_left_out = all.size() - shown_processes_max;
  all.resize(shown_processes_max);
}

}  // namespace

Status write_report(const std::string& path, const std::string& text) {
  struct stat about {};
  const bool there = ::stat(path.c_str(), &about) == 0;
  if (!there || S_ISREG(about.st_mode)) {
    Status written = write_atomically(path, text);
    // A file of ours in a directory that is not: written in place.
    if (written.ok() || !there || ::access(path.c_str(), W_OK) != 0) return written;
  }
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  size_t done = 0;
  while (file.valid() && done < text.size()) {
    const ssize_t got = ::write(file.get(), text.data() + done, text.size() - done);
    if (got > 0)
      done += static_cast<size_t>(got);
    else if (errno != EINTR)
      break;
  }
  if (done != text.size()) return os_error(errno, run_where, "cannot write " + path);
  return {};
}

RunReporter::RunReporter(supply::Broker& broker, RunReporterOptions options)
    : broker_(broker), options_(std::move(options)), started_ns_(boot_ns()) {
  options_.facts.pid = ::getpid();
  options_.facts.uid = ::geteuid();
  options_.facts.start_ticks = start_ticks_of("/proc", ::getpid());
  const std::string directory = options_.directory.empty() ? own_run_directory() : options_.directory;
  if (!directory.empty()) path_ = directory + "/" + std::to_string(::getpid());
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error&) {
    path_.clear();
  }
}

RunReporter::~RunReporter() {
  stop();
}

void RunReporter::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (!thread_.joinable()) return;
  thread_.join();
  if (!path_.empty()) ::unlink(path_.c_str());
}

void RunReporter::ask() {
  {
    MutexLock lock(mutex_);
    asked_ = true;
  }
  wake_.notify_all();
}

RunDocument RunReporter::look() {
  RunDocument run = options_.facts;
  run.report = broker_.report();
  for (supply::ProcessReport& process : run.report.processes)
    if (process.running) process.why_still = still_reason(process, run);
  run.written_ns = boot_ns();
  run.elapsed_ns = run.written_ns - started_ns_;
  return run;
}

void RunReporter::show(const RunDocument& run) {
  if (path_.empty()) return;
  RunDocument shown = run;
  keep_largest(&shown);
  // Hidden until it is whole; a leftover of a supervisor that was killed meanwhile is overwritten or swept.
  const std::string text = text_of(shown, -1), beside = path_ + ".new";
  const UniqueFd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return;
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(beside.c_str(), path_.c_str()) != 0)
    ::unlink(beside.c_str());
}

void RunReporter::loop() {
  uint64_t next_show_ns = 0;
  uint64_t next_file_ns = options_.interval_ns == 0 ? UINT64_MAX : started_ns_ + options_.interval_ns;
  bool said = false;
  for (;;) {
    bool asked = false;
    {
      MutexLock lock(mutex_);
      const uint64_t now = boot_ns(), next = std::min(next_show_ns, next_file_ns);
      wake_.wait_for(mutex_, std::chrono::nanoseconds(next > now ? next - now : 0),
                     [this]() TERRACE_REQUIRES(mutex_) { return asked_ || stopping_; });
      if (stopping_) return;
      asked = std::exchange(asked_, false);
    }
    RunDocument run = look();
    if (has_before_) set_rates(before_, &run);
    if (run.written_ns >= next_show_ns) {
      show(run);
      if (options_.tell) options_.tell(run, false);
      before_ = run;
      has_before_ = true;
      next_show_ns = run.written_ns + show_interval_ns;
    }
    const bool due = run.written_ns >= next_file_ns;
    if (due) next_file_ns = run.written_ns + options_.interval_ns;
    if (asked && options_.stats_file.empty()) {
      const std::string table = run_summary(run);
      std::fputs(table.c_str(), stderr);
    } else if (asked || due) {
      const Status written = write_report(options_.stats_file, text_of(run, 2));
      if (!written.ok() && (asked || !said))
        std::fprintf(stderr, "terrace: %s\n", written.error().to_string().c_str());
      said = !written.ok();
    }
  }
}

Status RunReporter::finish(int exit_code) {
  stop();
  if (options_.stats_file.empty() && !options_.tell) return {};
  RunDocument run = look();
  if (options_.tell) options_.tell(run, true);
  if (options_.stats_file.empty()) return {};
  run.running = false;
  run.exit_code = exit_code;
  return write_report(options_.stats_file, text_of(run, 2));
}

}  // namespace terrace::cli
