// SPDX-License-Identifier: Apache-2.0
// Asking before something that cannot be taken back, and lines that say how a long command stands.
#pragma once

#include <cstdint>
#include <string>

#include "cli/terminal/output.h"
#include "core/base/result.h"

namespace terrace::cli {

// Shows `consequences` (lines) and asks `question` on the terminal, unless `yes`. "y" or "yes" is consent.
// Errors    cancelled         anything else was answered
//           invalid_argument  there is nobody to ask (--json, or standard input is no terminal): --yes is
//           needed
Status confirm(const Context& context, bool yes, const std::string& consequences, const std::string& question);

// What a command that waits says on stderr: a line when it differs from the last one, at most one a second;
// nothing with --json.
class StatusLines {
 public:
  explicit StatusLines(const Context& context) : enabled_(!context.json) {}
  void say(const std::string& line);

 private:
  bool enabled_;
  std::string last_;
  uint64_t last_ns_ = 0;
};

// The rhythm of a command that looks again until something is done.
class Pace {
 public:
  explicit Pace(uint64_t timeout_ns);
  // Waits a little, longer each time up to half a second. False once the time is over.
  bool again();

 private:
  uint64_t deadline_ns_;
  uint64_t pause_ns_;
};

}  // namespace terrace::cli
