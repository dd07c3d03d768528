// SPDX-License-Identifier: Apache-2.0
// The command line of one call of `terrace`: for main(). Completion and help describe all of it (cli/terminal/verb.h).
#pragma once

#include <string>
#include <vector>

#include "cli/terminal/verb.h"

namespace terrace::cli {

// As build_parser(), but of the verbs only those that these words can mean: to describe all of them is most of what a
// short command costs. All of them where the words ask for help, or name no verb.
//
// Ownership  `context` is referred to for as long as the command line is used.
// Threads    One at a time.
CommandLine build_parser_for(Context& context, const std::vector<std::string>& arguments);

}  // namespace terrace::cli
