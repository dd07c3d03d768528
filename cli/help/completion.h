// The bash completion script of a parser.
#pragma once

#include <string>

#include "cli/terminal/command_line.h"

namespace terrace::cli {

// A self-contained script (bash 4 or newer, no bash-completion package needed) that completes every verb and
// option of `root`, option values where their type lists them ("a|b|c"), and files where it says PATH, FILE or
// DIR.
std::string bash_completion(Command root);

}  // namespace terrace::cli
