// The bash completion script of a parser.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace terrace::cli {

// A self-contained script (bash 4 or newer, no bash-completion package needed) that completes every verb and
// option of `app`, option values where their type lists them ("a|b|c"), and files where it says PATH, FILE or
// DIR.
std::string bash_completion(const CLI::App& app);

}  // namespace terrace::cli
