// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/files/mount_table.h"

#include <fstream>

namespace terrace::daemon {
namespace {

// Takes the text up to the next blank.
std::string_view take_word(std::string_view& line) {
  const size_t blank = line.find(' ');
  const std::string_view word = line.substr(0, blank);
  line.remove_prefix(blank == std::string_view::npos ? line.size() : blank + 1);
  return word;
}

// The kernel writes blank, tab, newline and backslash as three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool lies_in(std::string_view path, std::string_view point) {
  if (point == "/") return true;
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::optional<std::string> Mount::option(std::string_view key) const {
  std::string_view rest = super_options;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    if (item.size() > key.size() && item.starts_with(key) && item[key.size()] == '=')
      return std::string(item.substr(key.size() + 1));
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  return std::nullopt;
}

// "42 27 0:39 / /run/x rw,nosuid shared:3 - tmpfs terraced rw,size=4k": six fields, optional ones, a dash,
// then type, source and the options of the file system itself.
std::optional<Mount> parse_mount(std::string_view line) {
  Mount mount;
  for (int field = 0; field < 4; ++field) take_word(line);
  mount.point = unescape(take_word(line));
  const size_t dash = line.find(" - ");
  if (mount.point.empty() || mount.point[0] != '/' || dash == std::string_view::npos) return std::nullopt;
  line.remove_prefix(dash + 3);
  mount.type = take_word(line);
  mount.source = unescape(take_word(line));
  mount.super_options = take_word(line);
  if (mount.type.empty()) return std::nullopt;
  return mount;
}

std::optional<Mount> mount_of(std::string_view path, const std::vector<Mount>& mounts) {
  const Mount* best = nullptr;
  for (const Mount& mount : mounts)
    if (lies_in(path, mount.point) && (best == nullptr || mount.point.size() >= best->point.size()))
      best = &mount;
  return best == nullptr ? std::nullopt : std::optional<Mount>(*best);
}

std::optional<Mount> find_mount(std::string_view path) {
  std::vector<Mount> mounts;
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);)
    if (auto mount = parse_mount(line); mount.has_value()) mounts.push_back(std::move(*mount));
  return mount_of(path, mounts);
}

}  // namespace terrace::daemon
