// SPDX-License-Identifier: Apache-2.0
#include "cli/help/shell_words.h"

#include <map>

namespace terrace::cli {

// --columns: a lease may be named by its id or its label.
const char* const live_words_script =
    "_terrace_live() {\n"
    "  local kind=$1\n"
    "  shift\n"
    "  case $kind in\n"
    "    pool) terrace \"$@\" --timeout 2s pool list -o name ;;\n"
    "    lease) terrace \"$@\" --timeout 2s lease list -o name --columns id,label ;;\n"
    "    device) terrace \"$@\" --timeout 2s device list -o name ;;\n"
    "    host) terrace \"$@\" --timeout 2s host list -o name ;;\n"
    "    tenant) terrace \"$@\" --timeout 2s lease list -o name --columns tenant | sort -u ;;\n"
    "  esac 2>/dev/null\n"
    "}\n";

ValueWords value_words(Option option) {
  static const std::map<std::string, std::string> live = {
      {"POOL", "pool"}, {"ID|LABEL", "lease"}, {"SERIAL", "device"}, {"HOST", "host"}, {"TENANT", "tenant"}};
  const std::string type = option.type();
  if (const auto found = live.find(type); found != live.end())
    return {.kind = ValueWords::Kind::live, .words = {}, .live = found->second};
  for (const char* kind : {"PATH", "FILE", "DIR"})
    if (type.find(kind) != std::string::npos) return {.kind = ValueWords::Kind::files, .words = {}, .live = ""};
  if (type.empty() || type.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-|") != std::string::npos)
    return {};
  ValueWords values{.kind = ValueWords::Kind::words, .words = {}, .live = ""};
  for (size_t begin = 0; begin <= type.size();) {
    const size_t end = std::min(type.find('|', begin), type.size());
    if (end > begin) values.words.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return values;
}

std::vector<Command> all_commands(Command root) {
  std::vector<Command> all = {root};
  for (const Command verb : root.subcommands()) {
    for (const Command below : all_commands(verb)) all.push_back(below);
  }
  return all;
}

std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace terrace::cli
