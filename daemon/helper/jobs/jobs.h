// SPDX-License-Identifier: Apache-2.0
// What a helper process can be asked to do.
//
//   doctor    looks at this machine (daemon/doctor); the answer is pack()ed
//   plan      reads a trace of requests; the answer is the document of `terrace plan --json`
//   tiersim   reads a trace of accesses; the answer is the document of `terrace tiersim --json`
//
// The last two are told NAME=VALUE: options of the command line, `name` (what the trace is called), and of tiersim
// `format`. What they say of their progress is "DONE TOTAL what", with a total of 0 where it is not known.
//
// Place     daemon/main.cc, where the first word is helper_flag -> here -> the libraries that do it.
// Threads   One.
#pragma once

#include <string>
#include <vector>

namespace terrace::daemon {

// The exit status. `words`: the job and what it is told.
int run_helper_job(const std::vector<std::string>& words);

}  // namespace terrace::daemon
