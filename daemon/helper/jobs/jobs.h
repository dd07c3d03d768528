// What a helper process can be asked to do.
//
//   doctor   looks at this machine (daemon/doctor); the answer is pack()ed
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
