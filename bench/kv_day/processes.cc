// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_day/processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/kv_replay/interrupts.h"

namespace terrace::bench::day {
namespace {

Error failed(ErrorCode code, std::string text) {
  return {code, 0, "engines", std::move(text)};
}

}  // namespace

uint64_t reads_of(const Control& control) {
  uint64_t reads = 0;
  for (const EngineCounts& engine : control.engines) reads += engine.copied + engine.in_place;
  return reads;
}

Processes::Processes(const Shared& shared, Course course)
    : shared_(shared),
      control_(shared.control()),
      course_(std::move(course)),
      prng_(course_.seed),
      upgraded_(program_),
      pids_(shared.settings().engines, 0) {}

Processes::~Processes() {
  for (const pid_t pid : pids_)
    if (pid > 0 && ::kill(pid, SIGKILL) == 0) ::waitpid(pid, nullptr, 0);
}

Status Processes::start(uint32_t engine, const std::string& program) {
  const uint32_t process = control_.processes++;
  if (process >= processes_max) return failed(ErrorCode::unavailable, "too many were killed for one run");
  const std::string words[] = {"--engine",    std::to_string(engine),      "--process", std::to_string(process),
                               "--shared-fd", std::to_string(shared_.fd())};
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) return failed(ErrorCode::unavailable, "no process can be started");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::execl(program.c_str(), "bench_day", words[0].c_str(), words[1].c_str(), words[2].c_str(),
            words[3].c_str(), words[4].c_str(), words[5].c_str(), nullptr);
    ::_exit(127);
  }
  pids_[engine] = pid;
  return {};
}

Status Processes::start_all() {
  for (uint32_t engine = 0; engine < pids_.size(); ++engine) TERRACE_RETURN_IF_ERROR(start(engine, program_));
  last_progress_ns_ = monotonic_ns();
  while (control_.ready < pids_.size()) {
    TERRACE_RETURN_IF_ERROR(check_progress(control_.ready));
    const Result<bool> any = collect();
    if (!any.ok()) return any.error();
    ::usleep(1000);
  }
  return {};
}

Result<Happened> Processes::run() {
  control_.gate = course_.upgrade_at != 0 ? course_.upgrade_at + pids_.size() : UINT64_MAX;
  begin_ns_ = last_progress_ns_ = monotonic_ns();
  next_kill_ns_ = begin_ns_ + course_.kill_every_ns;
  control_.go = 1;
  for (;;) {
    TERRACE_RETURN_IF_ERROR(check_progress(control_.done_requests));
    TERRACE_ASSIGN_OR_RETURN(const bool any, collect());
    const uint64_t now = monotonic_ns();
    happened_.seconds = static_cast<double>(now - begin_ns_) / 1e9;
    if (!any && control_.stop == 0 && control_.done_requests < control_.end_request)
      return failed(ErrorCode::unavailable, "engines ended with " +
                                                std::to_string(control_.done_requests.load()) +
                                                " requests served: is --next a bench_day?");
    if (!any) return happened_;
    if (!happened_.upgraded && course_.upgrade_at != 0 && control_.done_requests >= course_.upgrade_at)
      TERRACE_RETURN_IF_ERROR(upgrade());
    TERRACE_RETURN_IF_ERROR(kill_one_when_due(now));
    stop_when_enough(now);
    ::usleep(1000);
  }
}

// In the middle of whatever it does. The others go on at once, and need no word from it.
Status Processes::upgrade() {
  TERRACE_ASSIGN_OR_RETURN(const bool killed, kill(0));
  if (!killed) return failed(ErrorCode::unavailable, "engine 0 ended before its upgrade");
  upgraded_ = course_.next_program;
  control_.successor = control_.processes + 1;
  happened_.upgraded = true;
  control_.gate = UINT64_MAX;
  return start(0, upgraded_);
}

Status Processes::kill_one_when_due(uint64_t now) {
  if (course_.kill_every_ns == 0 || now < next_kill_ns_ || control_.stop != 0) return {};
  next_kill_ns_ = now + course_.kill_every_ns / 2 + prng_.below(course_.kill_every_ns + 1);
  const auto engine = static_cast<uint32_t>(prng_.below(pids_.size()));
  TERRACE_ASSIGN_OR_RETURN(const bool killed, kill(engine));
  if (!killed) return {};  // it has nothing left to do
  return start(engine, engine == 0 ? upgraded_ : program_);
}

Result<bool> Processes::kill(uint32_t engine) {
  if (pids_[engine] == 0) return false;
  ::kill(pids_[engine], SIGKILL);
  int status = 0;
  ::waitpid(pids_[engine], &status, 0);
  pids_[engine] = 0;
  if (!WIFSIGNALED(status)) return false;  // it was faster
  ++happened_.kills;
  return true;
}

void Processes::stop_when_enough(uint64_t now) {
  const bool late = course_.seconds_max != 0 && now - begin_ns_ > course_.seconds_max * ns_per_s;
  if (late || (course_.reads != 0 && reads_of(control_) >= course_.reads)) control_.stop = 1;
}

// Notes who ended; false: nobody is left.
Result<bool> Processes::collect() {
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

Status Processes::check_progress(uint64_t done) {
  if (was_interrupted()) return failed(ErrorCode::cancelled, "interrupted");
  const uint64_t now = monotonic_ns();
  if (done != last_done_) {
    last_done_ = done;
    last_progress_ns_ = now;
  }
  if (now - last_progress_ns_ < course_.stuck_after_ns) return {};
  return failed(ErrorCode::unavailable,
                "they have stood still for " + std::to_string(course_.stuck_after_ns / ns_per_s) +
                    " s: " + std::to_string(control_.ready.load()) + " got ready, " +
                    std::to_string(control_.done_requests.load()) + " requests were served");
}

}  // namespace terrace::bench::day
