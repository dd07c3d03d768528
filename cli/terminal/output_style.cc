// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/output_style.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace terrace::cli {
namespace {

constexpr std::string_view red = "31", yellow = "33", green = "32";

struct Meaning {
  std::string_view word, colour;
};

constexpr std::array<Meaning, 26> meanings = {{
    {"in service", green}, {"active", green},    {"connected", green},  {"healthy", green},
    {"valid", green},      {"verified", green},  {"pass", green},       {"draining", yellow},
    {"revoking", yellow},  {"fencing", yellow},  {"scrubbing", yellow}, {"transferring", yellow},
    {"waiting", yellow},   {"trusting", yellow}, {"away", yellow},      {"warning", yellow},
    {"paused", yellow},    {"lapsed", yellow},   {"failed", red},       {"absent", red},
    {"quarantined", red},  {"revoked", red},     {"expired", red},      {"self-fenced", red},
    {"critical", red},     {"device lost", red},
}};

// "draining, absent" is what its worst part is.
std::string_view colour_of(std::string_view cell) {
  if (cell.ends_with(", absent")) return red;
  const std::string_view first = cell.substr(0, cell.find(','));
  const auto found =
      std::find_if(meanings.begin(), meanings.end(), [&](const Meaning& one) { return one.word == first; });
  return found == meanings.end() ? std::string_view() : found->colour;
}

}  // namespace

OutputStyle& output_style() {
  static OutputStyle style;
  return style;
}

const std::vector<std::string>& output_format_words() {
  static const std::vector<std::string> words = {"table", "wide", "json", "yaml", "name"};
  return words;
}

bool terminal_has_colours() {
  const char* none = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  if (none != nullptr && *none != '\0') return false;
  return ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

bool set_colour(std::string_view text) {
  if (text == "auto")
    output_style().colour = terminal_has_colours();
  else if (text == "always")
    output_style().colour = true;
  else if (text == "never")
    output_style().colour = false;
  else
    return false;
  return true;
}

void look_at_terminal() {
  output_style().colour = terminal_has_colours();
  winsize window{};
  const bool known = ::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0;
  output_style().columns = known ? window.ws_col : 0;
}

std::string coloured_cell(const std::string& cell) {
  const std::string_view colour = output_style().colour ? colour_of(cell) : std::string_view();
  return colour.empty() ? cell : "\x1b[" + std::string(colour) + "m" + cell + "\x1b[0m";
}

}  // namespace terrace::cli
