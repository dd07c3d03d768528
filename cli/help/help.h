// SPDX-License-Identifier: Apache-2.0
// What `terrace` says of itself: examples in each help, `terrace help`, manual pages.
//
// Place     Made from the tree of the parser, as completion.h is, so that it never falls behind it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/terminal/command_line.h"

namespace terrace::cli {

// Command lines that a user could type now, by the path of the verb that they show.
const std::vector<std::pair<std::string, std::string>>& help_examples();

// Puts the examples below each verb's help.
void add_examples(Command root);

// The manual page of a verb and all verbs below it, in the man macros: "terrace", "terrace lease".
std::string man_page(Command command);

}  // namespace terrace::cli
