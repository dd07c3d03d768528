// SPDX-License-Identifier: Apache-2.0
// Whether the process that made a tier page still is what it was.
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/terminal/output.h"
#include "cli/tier/tier_pages.h"

namespace terrace::cli {
namespace {

std::string folder_of(const TierPlaces& places, int pid) {
  return places.proc + "/" + std::to_string(pid);
}

// Whether the process has `path` mapped. A program that took the place of the one that made the page (exec) has
// its number and its start, and nothing of its memory.
bool has_mapped(const TierPlaces& places, int pid, const std::string& path) {
  std::ifstream maps(folder_of(places, pid) + "/maps");
  if (!maps) return true;  // not ours to see: believed
  for (std::string line; std::getline(maps, line);)
    if (line.ends_with(path)) return true;
  return false;
}

struct StatLine {
  std::string name;
  std::string state;
  uint64_t threads = 0, start_ticks = 0;
};

// Fields 2, 3, 20 and 22. The name stands in parentheses and may hold anything, parentheses and line breaks
// included: it ends at the last one.
std::optional<StatLine> parse_stat(const std::string& text) {
  const size_t begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  std::istringstream rest(text.substr(end + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest),
                                        {}};  // the third is the first
  if (fields.size() < 20) return std::nullopt;
  return StatLine{.name = text.substr(begin + 1, end - begin - 1),
                  .state = fields[0],
                  .threads = std::strtoull(fields[17].c_str(), nullptr, 10),
                  .start_ticks = std::strtoull(fields[19].c_str(), nullptr, 10)};
}

}  // namespace

bool process_exists(const TierPlaces& places, int pid) {
  struct stat status {};
  return ::stat(folder_of(places, pid).c_str(), &status) == 0 || (errno != ENOENT && errno != ESRCH);
}

ProcessState process_of(const TierPlaces& places, const TierPageView& page) {
  std::ifstream file(folder_of(places, page.pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::optional<StatLine> process = parse_stat(text);
  if (!process.has_value())
    return process_exists(places, page.pid) ? ProcessState::unknown : ProcessState::gone;
  if (process->start_ticks != page.start_ticks) return ProcessState::other;
  // A leader that ended while other threads run is a zombie, too.
  const bool ended = process->state == "Z" || process->state == "X";
  if (ended && process->threads <= 1) return ProcessState::gone;
  if (printable(process->name) != page.program && !has_mapped(places, page.pid, page.path))
    return ProcessState::other;
  return process->state == "T" || process->state == "t" ? ProcessState::stopped : ProcessState::runs;
}

}  // namespace terrace::cli
