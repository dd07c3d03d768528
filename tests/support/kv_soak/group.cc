// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kv_soak/group.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>

#include "core/base/kernel_clock.h"
#include "tests/support/kv_soak/worker.h"

namespace terrace::kv_soak {
namespace {

Error failed(std::string text) {
  return {.code = ErrorCode::unavailable, .os_errno = 0, .where = "kv_soak", .detail = std::move(text)};
}

std::string described(int status) {
  return WIFSIGNALED(status) ? "with signal " + std::to_string(WTERMSIG(status))
                             : "with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Group::Group(const Setup& setup)
    : setup_(setup), begin_ns_(monotonic_ns()), prng_(setup.seed + setup.first_host() * 1000) {
  for (uint32_t host = setup.first_host(); host < setup.end_host(); ++host)
    for (uint32_t index = 0; index < setup.workers; ++index) children_.push_back({host, index});
}

Group::~Group() {
  for (const Child& child : children_)
    if (child.pid > 0 && ::kill(child.pid, SIGKILL) == 0) ::waitpid(child.pid, nullptr, 0);
}

int Group::run() {
  Status status = begin();
  if (status.ok()) status = work();
  if (status.ok() && !lost_) status = check_what_is_left();
  if (status.ok() && ledger_->anything_wrong()) status = failed(ledger_->first_finding());
  print(status);
  return status.ok() ? 0 : 1;
}

// The first host makes the space; others wait for it.
Status Group::begin() {
  TERRACE_ASSIGN_OR_RETURN(ledger_piece_, Piece::map(setup_.ledger_file, setup_.ledger_offset, ledger_bytes));
  ledger_ = reinterpret_cast<Ledger*>(ledger_piece_.bytes().data());
  if (!setup_.in_lease()) {
    TERRACE_ASSIGN_OR_RETURN(piece_, Piece::map(setup_.file, setup_.offset, setup_.bytes));
  }
  if (setup_.first_host() == 0 && !setup_.join) {
    ledger_->run = 0;
    std::fill(ledger_piece_.bytes().begin(), ledger_piece_.bytes().end(), std::byte{0});
    TERRACE_RETURN_IF_ERROR(run_one(Role::format));
    ledger_->run = setup_.run;
  }
  while (ledger_->run != setup_.run) {
    TERRACE_RETURN_IF_ERROR(late("for host 0 to make the space"));
    ::usleep(10'000);
  }
  if (setup_.find != 0) {
    const uint64_t before = ledger_->reads(setup_.first_host());
    TERRACE_RETURN_IF_ERROR(run_one(Role::check));
    const uint64_t found = ledger_->reads(setup_.first_host()) - before;
    if (found < setup_.find) return failed("only " + std::to_string(found) + " blocks are there");
  }
  for (uint32_t host = setup_.first_host(); host < setup_.end_host(); ++host) {
    ledger_->of_hosts[host].quit = 0;
    reads_before_ += ledger_->reads(host);
  }
  return {};
}

Status Group::work() {
  for (Child& child : children_) child.pid = start(Role::work, child.host, child.index);
  const uint64_t now = monotonic_ns();
  next_kill_ns_ = now + setup_.kill_every_ms * ns_per_ms;
  next_stop_ns_ = now + setup_.stop_every_ms * ns_per_ms;
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    TERRACE_RETURN_IF_ERROR(collect());
    if (ledger_->anything_wrong()) return failed(ledger_->first_finding());
    if (lost_) return await_loss();
    if (satisfied(now_ns)) {
      mine().satisfied = 1;
      if (others_satisfied() && stopped_ == nullptr) return end_workers();
    }
    TERRACE_RETURN_IF_ERROR(
        late(mine().satisfied != 0 ? "for the other host to have seen enough" : "to have seen enough"));
    TERRACE_RETURN_IF_ERROR(stop_or_continue(now_ns));
    TERRACE_RETURN_IF_ERROR(kill_one(now_ns));
    if (setup_.progress && now_ns >= next_print_ns_) {
      next_print_ns_ = now_ns + ns_per_s;
      print({});
    }
    ::usleep(1000);
  }
}

bool Group::satisfied(uint64_t now_ns) const {
  uint64_t reads = 0;
  for (uint32_t host = setup_.first_host(); host < setup_.end_host(); ++host) reads += ledger_->reads(host);
  return !setup_.expect_loss && reads - reads_before_ >= setup_.reads && kills_ >= setup_.kills &&
         stops_ >= setup_.stops && now_ns - begin_ns_ >= setup_.seconds * ns_per_s;
}

bool Group::others_satisfied() const {
  for (uint32_t host = 0; host < setup_.hosts; ++host)
    if ((host < setup_.first_host() || host >= setup_.end_host()) && ledger_->of_hosts[host].satisfied == 0)
      return false;
  return true;
}

Status Group::late(const std::string& what) const {
  if (monotonic_ns() - begin_ns_ < setup_.limit_s * ns_per_s) return {};
  return failed(std::to_string(setup_.limit_s) + " s were not enough " + what);
}

pid_t Group::start(Role role, uint32_t host, uint32_t index) {
  const uint64_t seed = prng_.next();
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid != 0) {
    if (pid < 0) ledger_->fail(host, index, "cannot start a process");
    return pid;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  be(role, host, index, seed);
}

void Group::be(Role role, uint32_t host, uint32_t index, uint64_t seed) {
  int exit = exit_left;
  {
    Result<Attached> attached = open_memory(setup_, piece_);
    Status status = attached.ok() ? Status() : Status(attached.error());
    if (status.ok() && role == Role::format)
      status = KvSpace::format(attached->memory, {.parts = setup_.parts(),
                                                  .seats = setup_.parts(),
                                                  .block_bytes = 4 * kib,
                                                  .max_block_bytes = 32 * kib,
                                                  .pins = 64,
                                                  .coherence = setup_.coherent ? SpaceCoherence::coherent
                                                                               : SpaceCoherence::noncoherent,
                                                  .checksums = setup_.checksums});
    if (status.ok() && role != Role::format) status = attach_space(setup_, piece_, host, &*attached);
    if (!status.ok()) {
      if (!setup_.expect_loss) ledger_->fail(host, index, "start: " + status.error().to_string());
      ::_exit(exit_no_start);
    }
    if (role != Role::format) {
      Worker worker(setup_, *ledger_, std::move(*attached), host, index, seed);
      exit = role == Role::work ? worker.work() : worker.read_all();
    }
  }
  ::_exit(exit);
}

// A child that formats or checks, to its end.
Status Group::run_one(Role role) {
  const pid_t pid = start(role, setup_.first_host(), workers_max);
  int status = 0;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid) return failed("cannot start a process");
  if (status == 0) return {};
  return failed(std::string(role == Role::format ? "who formats" : "who checks") + " ended " +
                described(status) + ": " + ledger_->first_finding());
}

Status Group::note_end(Child& child, int status) {
  child.pid = 0;
  const int exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const bool by_loss =
      exit == exit_lease_ended || (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) || exit == exit_no_start;
  if (setup_.expect_loss && by_loss) {
    lost_ = true;
    return {};
  }
  if (exit != exit_left)
    return failed("worker " + std::to_string(child.index) + " of host " + std::to_string(child.host) +
                  " ended " + described(status) + ": " + ledger_->first_finding());
  if (!lost_ && ledger_->of_hosts[child.host].quit == 0) child.pid = start(Role::work, child.host, child.index);
  return {};
}

Status Group::collect() {
  for (Child& child : children_) {
    int status = 0;
    if (child.pid <= 0 || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    TERRACE_RETURN_IF_ERROR(note_end(child, status));
  }
  return {};
}

// In the middle of whatever it does; also one that is stopped.
Status Group::kill_one(uint64_t now_ns) {
  if (setup_.kill_every_ms == 0 || now_ns < next_kill_ns_) return {};
  const uint64_t every_ns = setup_.kill_every_ms * ns_per_ms;
  next_kill_ns_ = now_ns + every_ns / 2 + prng_.below(every_ns + 1);
  Child& child = children_[prng_.below(children_.size())];
  if (child.pid <= 0 || (&child == stopped_ && stops_ % 4 != 3)) return {};
  ::usleep(static_cast<useconds_t>(prng_.below(1000)));
  ::kill(child.pid, SIGKILL);
  int status = 0;
  if (::waitpid(child.pid, &status, 0) != child.pid) return failed("a worker is gone");
  if (&child == stopped_) stopped_ = nullptr;
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return note_end(child, status);
  ++kills_;
  ++mine().kills;
  child.pid = start(Role::work, child.host, child.index);
  return {};
}

Status Group::stop_or_continue(uint64_t now_ns) {
  if (stopped_ != nullptr) {
    // On a busy machine the others may not have had a turn yet.
    constexpr uint64_t patience_ns = 60 * ns_per_s;
    const bool others_read = ledger_->reads(stopped_->host) > reads_at_stop_;
    if (now_ns >= continue_at_ns_ && (others_read || now_ns >= continue_at_ns_ + patience_ns)) go_on();
    return {};
  }
  if (setup_.stop_every_ms == 0 || now_ns < next_stop_ns_) return {};
  next_stop_ns_ = now_ns + (setup_.stop_ms + setup_.stop_every_ms) * ns_per_ms;
  Child& child = children_[prng_.below(children_.size())];
  if (child.pid <= 0 || ::kill(child.pid, SIGSTOP) != 0) return {};
  stopped_ = &child;
  continue_at_ns_ = now_ns + setup_.stop_ms * ns_per_ms;
  reads_at_stop_ = ledger_->reads(child.host);
  ++stops_;
  ++mine().stops;
  return {};
}

void Group::go_on() {
  if (stopped_ == nullptr) return;
  reads_beside_stopped_ += ledger_->reads(stopped_->host) - reads_at_stop_;
  ::kill(stopped_->pid, SIGCONT);
  stopped_ = nullptr;
}

Status Group::end_workers() {
  for (uint32_t host = setup_.first_host(); host < setup_.end_host(); ++host) ledger_->of_hosts[host].quit = 1;
  while (std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.pid > 0; })) {
    TERRACE_RETURN_IF_ERROR(collect());
    TERRACE_RETURN_IF_ERROR(late("for the workers to end"));
    ::usleep(1000);
  }
  return {};
}

// Each worker hears that the lease has ended, by its next call.
Status Group::await_loss() {
  go_on();
  while (std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.pid > 0; })) {
    TERRACE_RETURN_IF_ERROR(collect());
    TERRACE_RETURN_IF_ERROR(late("for each worker to hear that the lease has ended"));
    ::usleep(1000);
  }
  return {};
}

Status Group::check_what_is_left() {
  return run_one(Role::check);
}

void Group::print(const Status& status) const {
  nlohmann::json told = {{"memory", setup_.coherent ? "coherent" : "noncoherent"},
                         {"owners", setup_.by_manager() ? "manager"
                                    : setup_.hosts == 1 ? "locks"
                                                        : "hosts"},
                         {"hosts", setup_.hosts},
                         {"kills", kills_},
                         {"stops", stops_},
                         {"reads_beside_stopped", reads_beside_stopped_},
                         {"lease_ended", lost_},
                         {"wrong", ledger_ == nullptr ? 0 : ledger_->wrong.load()},
                         {"why", status.ok() ? "" : status.error().to_string()},
                         {"seconds", static_cast<double>(monotonic_ns() - begin_ns_) / 1e9}};
  if (setup_.host) told["host"] = *setup_.host;
  uint64_t copied = 0, in_place = 0, misses = 0, puts = 0, refused = 0, erased = 0;
  for (uint32_t host = setup_.first_host(); ledger_ != nullptr && host < setup_.end_host(); ++host)
    for (const Ledger::Counts& worker : ledger_->counts[host]) {
      copied += worker.copied;
      in_place += worker.in_place;
      misses += worker.misses;
      puts += worker.puts;
      refused += worker.refused;
      erased += worker.erased;
    }
  told["reads"] = copied + in_place;  // with those before this host's power was cut
  told["in_place"] = in_place;
  told["misses"] = misses;
  told["puts"] = puts;
  told["refused"] = refused;
  told["erased"] = erased;
  std::printf("%s\n", told.dump().c_str());
  std::fflush(stdout);
}

}  // namespace terrace::kv_soak
