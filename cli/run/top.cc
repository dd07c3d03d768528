// SPDX-License-Identifier: Apache-2.0
// `terrace top`: the runs of this machine and what their memory does, again and again.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "cli/run/run_table.h"
#include "cli/run/top_scan.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/verb.h"
#include "core/base/clock.h"

namespace terrace::cli {
namespace {

struct TopArguments {
  bool once = false, processes = false, classes = false;
  std::string interval;  // empty: a second
};

// What is seen here, and what only the manager knows.
struct TopLook {
  RunScan scan;
  std::vector<ReportedRun> reported;

  std::vector<RunView> all() const {
    std::vector<RunView> views = scan.runs;
    for (const ReportedRun& run : reported) views.push_back(view_of(run));
    return views;
  }
};

TopLook look_for_runs(const Context& context) {
  return {.scan = scan_runs(RunPlaces::own()), .reported = runs_not_seen_here(context, {run_directory_prefix})};
}

nlohmann::json look_json(const TopLook& look) {
  nlohmann::json runs = nlohmann::json::array();
  for (const RunView& view : look.scan.runs) {
    nlohmann::json run = to_json(view.run);
    run["state"] = run_state_name(view.state);
    run["age_ns"] = view.age_ns;
    runs.push_back(std::move(run));
  }
  return {{"runs", runs},
          {"reported_runs", to_json(look.reported)},
          {"problems", look.scan.problems},
          {"swept", look.scan.swept}};
}

std::string no_run_text() {
  return std::string("no run ") + (::geteuid() == 0 ? "" : "of this user ") +
         "is there now; `terrace run` starts one\n";
}

TopShape shape_of(const TopArguments& arguments, const std::vector<RunView>& runs) {
  TopShape shape{.processes = arguments.processes, .classes = arguments.classes};
  for (const RunView& view : runs) shape.users = shape.users || view.run.uid != runs[0].run.uid;
  winsize window{};
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  shape.columns = !terminal                                                                ? 0
                  : ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col >= 8 ? window.ws_col
                                                                                           : 80;
  // The last line holds what the keys do.
  if (terminal && window.ws_row >= 4) shape.rows = window.ws_row - 2u;
  return shape;
}

std::string table_of(const std::vector<RunView>& runs, const TopShape& shape) {
  return runs.empty() ? no_run_text() : top_table(runs, shape);
}

Status show_once(const Context& context, const TopArguments& arguments) {
  const TopLook look = look_for_runs(context);
  if (context.json) {
    print_json(look_json(look));
    return {};
  }
  for (const std::string& problem : look.scan.problems) std::fprintf(stderr, "terrace: %s\n", problem.c_str());
  const std::vector<RunView> runs = look.all();
  TopShape shape = shape_of(arguments, runs);
  shape.rows = 0;
  print_text(table_of(runs, shape));
  return {};
}

Status print_lines(const Context& context, uint64_t interval_ns) {
  for (;;) {
    print_text(
        look_json(look_for_runs(context)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
        "\n");
    std::this_thread::sleep_for(std::chrono::nanoseconds(interval_ns));
  }
}

// The terminal while the table is on it: the other screen, no cursor, keys as they are pressed. Everything is
// as it was when this object has gone.
class Screen {
 public:
  Screen() {
    const char* terminal = std::getenv("TERM");
    moves_ = terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
    sigset_t handled;
    ::sigemptyset(&handled);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP}) ::sigaddset(&handled, number);
    ::pthread_sigmask(SIG_BLOCK, &handled, &before_);
    signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
    // In the background the terminal is somebody else's: changing it would stop this process.
    keys_ = ::isatty(STDIN_FILENO) == 1 && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp() &&
            ::tcgetattr(STDIN_FILENO, &modes_) == 0;
    enter();
  }
  ~Screen() {
    leave();
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  bool has_keys() const { return keys_; }
  void draw(const std::string& text) const { print_text(moves_ ? "\x1b[H\x1b[2J" + text : "\n" + text); }

  enum class Event : uint8_t { end, redraw, processes, classes };
  // Whatever comes first in that time.
  Event wait(uint64_t ns) {
    pollfd waits[2] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                       {.fd = keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
    if (::poll(waits, 2, static_cast<int>(std::min<uint64_t>(ns / ns_per_ms, INT32_MAX))) <= 0)
      return Event::redraw;
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGTSTP) {
        leave();
        ::kill(::getpid(), SIGSTOP);
        enter();
      } else if (info.ssi_signo != SIGWINCH) {
        return Event::end;
      }
    }
    if (waits[1].revents == 0) return Event::redraw;
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) != 1) return Event::end;  // the terminal has gone
    if (key == 'q' || key == 'Q' || key == 3 || key == 4) return Event::end;
    return key == 'p' ? Event::processes : key == 'c' ? Event::classes : Event::redraw;
  }

 private:
  void enter() {
    if (keys_) {
      termios raw = modes_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 1;
      raw.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    if (moves_) print_text("\x1b[?1049h\x1b[?25l");
  }
  void leave() {
    if (moves_) print_text("\x1b[?25h\x1b[?1049l");
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &modes_);
  }

  bool moves_ = false, keys_ = false;
  termios modes_ = {};
  sigset_t before_;
  UniqueFd signals_;
};

Status watch(const Context& context, TopArguments arguments, uint64_t interval_ns) {
  Screen screen;
  for (;;) {
    const TopLook look = look_for_runs(context);
    const std::vector<RunView> runs = look.all();
    const TopShape shape = shape_of(arguments, runs);
    std::string text = table_of(runs, shape);
    // Broken files would push the table off the screen: they are counted here and named by --once.
    std::string last = "every " + format_duration(interval_ns);
    if (!look.scan.problems.empty())
      last += "; " + count_text(look.scan.problems.size(), "problem") + ", see --once";
    if (screen.has_keys()) last += "; q ends, p processes, c classes";
    screen.draw(text + "\n" + last.substr(0, shape.columns == 0 ? last.size() : shape.columns - 1));
    switch (screen.wait(interval_ns)) {
      case Screen::Event::end: return {};
      case Screen::Event::processes: arguments.processes = !arguments.processes; break;
      case Screen::Event::classes: arguments.classes = !arguments.classes; break;
      case Screen::Event::redraw: break;
    }
  }
}

Status top(const Context& context, const TopArguments& arguments) {
  uint64_t interval_ns = ns_per_s;
  if (!arguments.interval.empty()) {
    TERRACE_ASSIGN_OR_RETURN(interval_ns, parse_interval("--interval", arguments.interval));
  }
  if (arguments.once || (context.json && arguments.interval.empty())) return show_once(context, arguments);
  if (context.json) return print_lines(context, interval_ns);
  if (::isatty(STDOUT_FILENO) != 1)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "top",
                 .detail = "standard output is no terminal; say --once for one table, or --json"};
  return watch(context, arguments, interval_ns);
}

}  // namespace

void add_top_verb(Command app, Context& context) {
  Command verb = app.add_subcommand(
      "top", "What the memory of running `terrace run`s does; with a manager those of containers, too");
  const auto arguments = std::make_shared<TopArguments>();
  verb.add_flag("--processes", arguments->processes, "A line a process below (key p)");
  verb.add_flag("--classes", arguments->classes, "Live blocks by size below (key c)");
  verb.add_flag("--once", arguments->once, "One table, then end");
  verb.add_option("--interval", arguments->interval,
                  "From 0.1 to 86400 (default 1); with --json one object a line until it is ended")
      .type_name("SECONDS");
  verb.footer(
      "DDR: in use of the budget. CXL: in use of what is leased. LIVE: the programs' blocks. HELD/LIVE: DDR,\n"
      "leases and plain memory kept for them, over that. BROKEN: the part of the free room that is not in its\n"
      "longest piece. FULL: requests for which there was no room. q or Ctrl-C ends it.");
  on_verb(verb, context, [&context, arguments] { return top(context, *arguments); });
}

}  // namespace terrace::cli
