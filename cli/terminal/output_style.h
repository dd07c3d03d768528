// SPDX-License-Identifier: Apache-2.0
// How standard output looks: as which kind of text, in colours or not, how wide.
//
// Place     Below output.h. One for the process: what it is written to is the same for all that is written.
// Threads   The main thread; set before a verb works.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::cli {

enum class OutputFormat { table, wide, json, yaml, name };

struct OutputStyle {
  bool yaml = false;      // print_json() writes YAML
  bool one_line = false;  // print_json() writes a document a line, for a reader that begins before the end
  bool colour = false;    // words that mean trouble, or none, have a colour
  size_t columns = 0;     // tables are cut to so many; 0: never
};

OutputStyle& output_style();

// The words of --output, in the order of OutputFormat.
const std::vector<std::string>& output_format_words();

// Whether `text` is one of the words of --colour.
bool set_colour(std::string_view text);

// For standard output as it is: colours on a terminal that has them (NO_COLOR, TERM), and its width.
void look_at_terminal();
bool terminal_has_colours();

// `cell` with the colour of what it means, as "failed" or "in service"; unchanged where it means nothing.
std::string coloured_cell(const std::string& cell);

}  // namespace terrace::cli
