// SPDX-License-Identifier: Apache-2.0
#include "cli/run/top_scan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/terminal/output.h"
#include "cli/tier/page_directory.h"
#include "cli/tier/tier_pages.h"
#include "core/base/kernel_clock.h"

namespace terrace::cli {
namespace {

constexpr const char* top_where = "top";
// A run writes some hundred bytes a process and class.
constexpr off_t document_bytes_max = 32 << 20;
constexpr uint64_t silent_after_ns = 5 * ns_per_s;

struct ProcessStat {
  std::string state;
  uint64_t start_ticks = 0;
};

// Fields 3 and 22. The name in front of them may hold anything, parentheses included: it ends at the last one.
std::optional<ProcessStat> stat_of(const std::string& proc, int pid) {
  std::ifstream file(proc + "/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(end + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() < 20) return std::nullopt;
  return ProcessStat{.state = fields[0], .start_ticks = std::strtoull(fields[19].c_str(), nullptr, 10)};
}

bool process_exists(const std::string& proc, int pid) {
  struct stat status {};
  return ::stat((proc + "/" + std::to_string(pid)).c_str(), &status) == 0 ||
         (errno != ENOENT && errno != ESRCH);
}

// Opened without following a link or waiting for a pipe's writer.
// Errors    not_found, corrupt, as os_error
Result<std::string> read_document(const UniqueFd& directory, const std::string& path, const std::string& name,
                                  uint32_t uid) {
  const auto refused = [&](const char* why) {
    return Error{.code = ErrorCode::corrupt, .where = top_where, .detail = path + " " + why};
  };
  const UniqueFd file(::openat(directory.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() && errno == ELOOP) return refused("is a link");
  if (!file.valid()) return os_error(errno, top_where, "cannot open " + path);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return os_error(errno, top_where, "cannot look at " + path);
  if (!S_ISREG(about.st_mode) || about.st_uid != uid || about.st_nlink > 1)
    return refused("is no ordinary file of its user's");
  if (about.st_size > document_bytes_max) return refused("is longer than any run's");
  std::string text(static_cast<size_t>(about.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::pread(file.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

RunState state_of(const ProcessStat& process, uint64_t age_ns) {
  if (process.state == "T" || process.state == "t") return RunState::stopped;
  return age_ns > silent_after_ns ? RunState::silent : RunState::runs;
}

void look_at_run(const RunPlaces& places, const UniqueFd& directory, const std::string& folder,
                 const std::string& name, uint32_t uid, RunScan& scan) {
  const std::string path = folder + "/" + name;
  const bool half = name.ends_with(".new");
  const auto pid = process_number(half ? name.substr(0, name.size() - 4) : name);
  if (!pid.has_value()) return scan.problems.push_back(path + " is not named as a process");
  const auto sweep = [&] {
    if (::unlinkat(directory.get(), name.c_str(), 0) == 0) ++scan.swept;
  };
  const auto process = stat_of(places.proc, *pid);
  if (!process.has_value() && !process_exists(places.proc, *pid)) return sweep();
  if (half) return;
  const auto text = read_document(directory, path, name, uid);
  if (!text.ok()) {
    if (text.error().code != ErrorCode::not_found) scan.problems.push_back(text.error().detail);
    return;
  }
  auto run = run_from_json(*text);
  if (!run.ok()) return scan.problems.push_back(path + ": " + run.error().detail);
  if (run->pid != *pid || run->uid != uid)
    return scan.problems.push_back(path + " is of another process than its name says");
  if (process.has_value() && process->start_ticks != run->start_ticks) return sweep();
  RunView view;
  const uint64_t now = boot_ns();
  view.age_ns = now - std::min(now, run->written_ns);
  view.state = process.has_value() ? state_of(*process, view.age_ns) : RunState::runs;
  view.run = std::move(*run);
  scan.runs.push_back(std::move(view));
}

}  // namespace

RunPlaces RunPlaces::own() {
  RunPlaces places;
  if (::geteuid() != 0) places.uid = ::geteuid();
  return places;
}

RunScan scan_runs(const RunPlaces& places) {
  RunScan scan;
  look_at_files(places.prefix, places.uid, scan.problems,
                [&](const UniqueFd& directory, const std::string& path, const std::string& name, uint32_t uid) {
                  look_at_run(places, directory, path, name, uid, scan);
                });
  for (std::string& problem : scan.problems) problem = printable(problem);
  return scan;
}

uint64_t start_ticks_of(const std::string& proc, int pid) {
  const auto process = stat_of(proc, pid);
  return process.has_value() ? process->start_ticks : 0;
}

const char* run_state_name(RunState state) {
  switch (state) {
    case RunState::runs: return "runs";
    case RunState::stopped: return "stopped";
    case RunState::silent: return "silent";
    case RunState::reported: return "reported";
  }
  return "runs";
}

RunView view_of(const ReportedRun& reported) {
  RunView view;
  view.state = RunState::reported;
  view.age_ns = reported.age_ns;
  RunDocument& run = view.run;
  run.pid = static_cast<int>(reported.pid);
  run.uid = reported.uid;
  run.program = reported.program;
  run.command = reported.program + " (" + reported.tenant + " on " + reported.host + ")";
  run.ddr_budget_bytes = reported.ddr_bytes_max;
  run.report.processes_left_out = reported.processes;
  run.report.stats.ddr_used = reported.ddr_bytes;
  run.report.stats.leased_bytes = reported.leased_bytes;
  supply::MemoryReport& sum = run.report.sum;
  sum.large_bytes = reported.live_bytes;
  sum.live_cxl = reported.cxl_bytes;
  sum.plain_bytes = reported.plain_bytes;
  sum.ddr_bytes = reported.ddr_bytes;
  sum.leased_bytes = reported.leased_bytes;
  sum.promotions_per_s = reported.promotions_per_s;
  sum.demotions_per_s = reported.demotions_per_s;
  sum.copy_bytes_per_s = reported.copy_bytes_per_s;
  sum.refused = reported.refused;
  sum.fallbacks = reported.fallbacks;
  return view;
}

}  // namespace terrace::cli
