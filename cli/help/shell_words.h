// SPDX-License-Identifier: Apache-2.0
// What completes a command line, for every shell's script.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal/command_line.h"

namespace terrace::cli {

// How the value of an option, or a positional argument, is completed.
struct ValueWords {
  enum class Kind { nothing, words, files, live } kind = Kind::nothing;
  std::vector<std::string> words;  // those that it can be
  std::string live;  // "pool", "lease", "device", "host", "tenant": asked for by live_words_script
};

ValueWords value_words(Option option);

// A shell function "_terrace_live KIND [--socket PATH]", in words that bash, zsh and POSIX shells share.
extern const char* const live_words_script;

// The command and all below it, parents first.
std::vector<Command> all_commands(Command root);

std::string single_quoted(const std::string& text);

}  // namespace terrace::cli
