// SPDX-License-Identifier: Apache-2.0
// `terrace lease hold`: keeps a lease for scripts, until it is told to stop.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/hold/held_lease.h"
#include "cli/hold/hold_verbs.h"
#include "cli/terminal/verb.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {
namespace {

constexpr const char* hold_verb = "terrace lease hold";

struct HoldingArguments {
  HoldArguments hold;
  bool until_input_ends = false;
  uint32_t pid = 0;
};

// A line for programs: one is complete when its end is there.
void print_line(const nlohmann::json& document) {
  print_text(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  std::fflush(stdout);
}

void say_held(const Context& context, HeldLease& held) {
  Lease& lease = held.lease();
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(lease.fd());
  if (context.json) {
    print_line({{"held",
                 {{"id", lease.id().value},
                  {"label", held.label()},
                  {"bytes", lease.bytes()},
                  {"read_only", lease.access() == LeaseAccess::read_only},
                  {"pid", ::getpid()},
                  {"fd", lease.fd()},
                  {"path", path}}}});
    return;
  }
  print_text("holding " + shown_lease(lease.id(), held.label()) + ", " + format_size(lease.bytes()) + ", as " +
             path + "\n");
  std::fflush(stdout);
}

const char* word_of(LeaseState state) {
  return state == LeaseState::revoking ? "revoking" : state == LeaseState::lost ? "lost" : "live";
}

void print_notice(const LeaseNotice& notice) {
  print_line({{"notice",
               {{"id", notice.lease.value},
                {"state", word_of(notice.state)},
                {"grace_ns", notice.grace_ns},
                {"reason", notice.reason},
                {"move_requested", notice.move_requested}}}});
}

// What is read is thrown away; true: nobody writes any more.
bool input_has_ended(short events) {
  if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return false;
  char bytes[4096];
  const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof(bytes));
  return got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
}

// What tells the command to end.
struct Ends {
  int signals = -1, process = -1, input = -1;  // -1: none, which poll leaves out
};

// Until one of those, or until `other` is readable; true: `other` is. Errors: os errors.
Result<bool> wait_for_end(const Ends& ends, int other) {
  pollfd waits[] = {{.fd = ends.signals, .events = POLLIN, .revents = 0},
                    {.fd = other, .events = POLLIN, .revents = 0},
                    {.fd = ends.process, .events = POLLIN, .revents = 0},
                    {.fd = ends.input, .events = POLLIN, .revents = 0}};
  for (;;) {
    if (::poll(waits, std::size(waits), -1) < 0) {
      if (errno == EINTR) continue;
      return os_error(errno, hold_verb, "cannot wait");
    }
    if (waits[1].revents != 0) return true;
    if (waits[0].revents != 0 || waits[2].revents != 0) return false;
    if (ends.input >= 0 && input_has_ended(waits[3].revents)) return false;
  }
}

// While the lease is waited for in a queue, what tells the command to end ends the process: its place in the queue, or
// what it was granted in that moment, goes with its connection.
class EndsWhileQueued {
 public:
  explicit EndsWhileQueued(const Ends& ends) : over_(::eventfd(0, EFD_CLOEXEC)) {
    if (!over_.valid()) return;
    thread_ = std::jthread([this, ends] {
      const Result<bool> over = wait_for_end(ends, over_.get());
      if (over.ok() && !*over) std::_Exit(0);
    });
  }
  ~EndsWhileQueued() {
    const uint64_t one = 1;
    (void)!::write(over_.get(), &one, sizeof(one));
  }

 private:
  const UniqueFd over_;
  std::jthread thread_;  // joined before over_ is closed
};

Status hold(Context& context, const HoldingArguments& arguments) {
  const UniqueFd signals = ending_signals();
  const UniqueFd lost(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals.valid() || !lost.valid()) return os_error(errno, hold_verb, "cannot wait");
  UniqueFd process;
  if (arguments.pid != 0) {
    process.reset(static_cast<int>(::syscall(SYS_pidfd_open, arguments.pid, 0)));
    if (!process.valid()) {
      const int code = errno;
      return code == ESRCH
                 ? Error{.code = ErrorCode::not_found,
                         .where = hold_verb,
                         .detail = "--pid " + std::to_string(arguments.pid) + ": there is no such process"}
                 : os_error(code, hold_verb, "--pid " + std::to_string(arguments.pid));
    }
  }
  const auto told = [&context, &lost](const LeaseNotice& notice) {
    if (context.json) print_notice(notice);
    const uint64_t one = 1;
    if (notice.state == LeaseState::lost && ::write(lost.get(), &one, sizeof(one)) != sizeof(one))
      say_of_lease("cannot end by itself");
  };
  const Ends ends{.signals = signals.get(),
                  .process = process.get(),
                  .input = arguments.until_input_ends ? STDIN_FILENO : -1};
  std::optional<EndsWhileQueued> queued;
  if (arguments.hold.wait_ns != 0) queued.emplace(ends);
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<HeldLease> held,
                           HeldLease::take(context, arguments.hold, hold_verb, told));
  queued.reset();
  say_held(context, *held);
  const Result<bool> is_lost = wait_for_end(ends, lost.get());
  const Status ended = !is_lost.ok() ? Status(is_lost.error()) : *is_lost ? Status(held->loss()) : Status();
  held->give_back();
  return ended;
}

}  // namespace

void add_lease_hold_verb(Command lease, Context& context) {
  const auto arguments = std::make_shared<HoldingArguments>();
  Command verb =
      lease.add_subcommand("hold", "Keep a lease for scripts: renew it until this command is told to stop");
  verb.footer(
      "Says on stdout that it holds the lease, and a path that leads to its memory as long as it does; with "
      "--json one\n"
      "document a line, {\"held\"} first and then one {\"notice\"} for each. Ends with 0 at SIGTERM, SIGINT or "
      "SIGHUP, and\n"
      "as --stdin and --pid say; with 3 when the lease is lost.");
  arguments->hold.mode = "shared_coherent";  // it is for others that this command holds it
  add_hold_options(verb, arguments->hold);
  verb.add_flag("--stdin", arguments->until_input_ends, "Also ends when its standard input does");
  verb.add_option("--pid", arguments->pid, "Also ends when that process has")
      .in_range(uint32_t{1}, uint32_t{4194304})
      .type_name("PID");
  on_verb(verb, context, [&context, arguments] { return hold(context, *arguments); });
}

}  // namespace terrace::cli
