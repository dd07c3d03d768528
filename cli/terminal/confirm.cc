// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/confirm.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include "core/base/clock.h"

namespace terrace::cli {

Status confirm(const Context& context, bool yes, const std::string& consequences, const std::string& question) {
  if (yes) return {};
  if (context.json || isatty(STDIN_FILENO) != 1) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "confirm",
                 .detail = question + " Nobody can be asked here; say --yes to go on"};
  }
  std::fprintf(stderr, "%s%s [y/N] ", consequences.c_str(), printable(question).c_str());
  std::fflush(stderr);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "yes" || answer == "Y" || answer == "YES") return {};
  return Error{.code = ErrorCode::cancelled, .where = "confirm", .detail = "nothing was done"};
}

void StatusLines::say(const std::string& line) {
  const uint64_t now_ns = SystemClock().now_ns();
  if (!enabled_ || line == last_ || (last_ns_ != 0 && now_ns - last_ns_ < ns_per_s)) return;
  last_ = line;
  last_ns_ = now_ns;
  std::fprintf(stderr, "%s\n", printable(line).c_str());
}

Pace::Pace(uint64_t timeout_ns) : pause_ns_(20 * ns_per_ms) {
  const uint64_t now_ns = SystemClock().now_ns();
  deadline_ns_ = timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
}

bool Pace::again() {
  const uint64_t now_ns = SystemClock().now_ns();
  if (now_ns >= deadline_ns_) return false;
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns_, deadline_ns_ - now_ns)));
  pause_ns_ = std::min(pause_ns_ * 2, ns_per_s / 2);
  return true;
}

}  // namespace terrace::cli
