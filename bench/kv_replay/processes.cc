// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_replay/processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

Error failed(ErrorCode code, std::string text) {
  return {code, 0, "workers", std::move(text)};
}

// The longest time for which the trace asks for nothing.
uint64_t longest_pause_ns(SharedRun& run) {
  if (run.settings().speed <= 0) return 0;
  double longest_ms = 0, last_ms = 0;
  for (uint64_t number = 0; number < run.control().requests; ++number) {
    const auto at_ms = static_cast<double>(run.request(number).timestamp_ms);
    longest_ms = std::max(longest_ms, at_ms - last_ms);
    last_ms = at_ms;
  }
  return static_cast<uint64_t>(longest_ms / run.settings().speed * 1e6);
}

}  // namespace

Workers::Workers(SharedRun& run, uint64_t seed, uint64_t stuck_after_ns)
    : run_(run),
      prng_(seed),
      stuck_after_ns_(stuck_after_ns + longest_pause_ns(run)),
      pids_(run.settings().workers, 0) {}

Workers::~Workers() {
  for (const pid_t pid : pids_)
    if (pid > 0 && ::kill(pid, SIGKILL) == 0) ::waitpid(pid, nullptr, 0);
}

Status Workers::start_all() {
  for (uint32_t number = 0; number < pids_.size(); ++number) TERRACE_RETURN_IF_ERROR(start(number));
  last_progress_ns_ = monotonic_ns();
  while (run_.control().ready < pids_.size()) {
    TERRACE_RETURN_IF_ERROR(check_progress(run_.control().ready));
    const Result<bool> any = collect();
    if (!any.ok()) return any.error();
    ::usleep(1000);
  }
  return {};
}

Result<uint64_t> Workers::run_all(uint64_t kill_every) {
  uint64_t kills = 0;
  uint64_t next = prng_.between(kill_every / 2, kill_every);
  last_progress_ns_ = monotonic_ns();
  for (;;) {
    run_.control().gate = kill_every == 0 ? UINT64_MAX : next + kill_every / 2;
    TERRACE_RETURN_IF_ERROR(check_progress(run_.control().done_requests));
    TERRACE_ASSIGN_OR_RETURN(const bool any, collect());
    if (!any) return kills;
    ::usleep(static_cast<useconds_t>(prng_.between(200, 2000)));
    if (kill_every == 0 || run_.control().done_requests < next) continue;
    next += prng_.between(kill_every / 2, kill_every + kill_every / 2);
    TERRACE_ASSIGN_OR_RETURN(const bool killed, kill_one());
    if (killed) ++kills;
  }
}

Status Workers::check_progress(uint64_t done) {
  if (was_interrupted()) return failed(ErrorCode::cancelled, "interrupted");
  const uint64_t now = monotonic_ns();
  if (done != last_done_) {
    last_done_ = done;
    last_progress_ns_ = now;
  }
  if (now - last_progress_ns_ < stuck_after_ns_) return {};
  return failed(ErrorCode::unavailable, "they have stood still for " +
                                            std::to_string(stuck_after_ns_ / ns_per_s) +
                                            " s: " + std::to_string(run_.control().ready) + " got ready, " +
                                            std::to_string(run_.control().done_requests) + " of " +
                                            std::to_string(run_.control().requests) + " requests were served");
}

Status Workers::start(uint32_t number) {
  const std::string words[] = {"--worker", std::to_string(number), "--shared-fd", std::to_string(run_.fd())};
  const pid_t pid = ::fork();
  if (pid < 0) return failed(ErrorCode::unavailable, "no process can be started");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execl("/proc/self/exe", "bench_kv", words[0].c_str(), words[1].c_str(), words[2].c_str(),
            words[3].c_str(), nullptr);
    ::_exit(127);
  }
  pids_[number] = pid;
  return {};
}

// Notes who ended; false: nobody is left.
Result<bool> Workers::collect() {
  bool any = false;
  for (pid_t& pid : pids_) {
    int status = 0;
    if (pid <= 0) continue;
    if (::waitpid(pid, &status, WNOHANG) != pid) {
      any = true;
      continue;
    }
    pid = 0;
    if (status != 0)
      return failed(ErrorCode::unavailable, "one ended by itself, with wait status " + std::to_string(status));
  }
  return any;
}

Result<bool> Workers::kill_one() {
  const auto number = static_cast<uint32_t>(prng_.below(pids_.size()));
  if (pids_[number] == 0) return false;  // has nothing left to do
  ::kill(pids_[number], SIGKILL);
  int status = 0;
  ::waitpid(pids_[number], &status, 0);
  pids_[number] = 0;
  if (!WIFSIGNALED(status)) return false;  // it was faster
  TERRACE_RETURN_IF_ERROR(start(number));
  return true;
}

}  // namespace terrace::bench
