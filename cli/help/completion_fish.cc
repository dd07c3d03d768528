// SPDX-License-Identifier: Apache-2.0
#include "cli/help/completion.h"
#include "cli/help/shell_words.h"
#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

// fish takes a backslash before a quote in single quotes.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "'";
}

constexpr const char* functions =
    "function __terrace_live\n"
    "    set -l words (commandline -opc)\n"
    "    set -l socket\n"
    "    if set -l at (contains -i -- --socket $words)\n"
    "        set socket --socket $words[(math $at + 1)]\n"
    "    end\n"
    "    switch $argv[1]\n"
    "        case pool\n"
    "            terrace $socket --timeout 2s pool list -o name 2>/dev/null\n"
    "        case lease\n"
    "            terrace $socket --timeout 2s lease list -o name --columns id,label 2>/dev/null | string split "
    "\\t\n"
    "        case device\n"
    "            terrace $socket --timeout 2s device list -o name 2>/dev/null\n"
    "        case host\n"
    "            terrace $socket --timeout 2s host list -o name 2>/dev/null\n"
    "        case tenant\n"
    "            terrace $socket --timeout 2s lease list -o name --columns tenant 2>/dev/null | sort -u\n"
    "    end\n"
    "end\n";

// " -x -a ..." for an option with a value; "" for a flag.
std::string fish_value(const ValueWords& values, bool takes_value) {
  switch (values.kind) {
    case ValueWords::Kind::nothing: return takes_value ? " -x" : "";
    case ValueWords::Kind::files: return " -r -F";
    case ValueWords::Kind::words: return " -x -a " + fish_quoted(join(values.words, " "));
    case ValueWords::Kind::live: return " -x -a '(__terrace_live " + values.live + ")'";
  }
  return "";
}

std::string fish_command(Command command, Command root) {
  const bool global = command.path() == root.path();
  const std::string here = "complete -c terrace -n " + fish_quoted("__terrace_at " + command.path());
  std::string text;
  for (const Command verb : command.subcommands())
    text += here + " -a " + verb.name() + " -d " + fish_quoted(verb.description()) + "\n";
  for (const Option option : command.options()) {
    const ValueWords values = value_words(option);
    if (option.positional()) {
      if (values.kind != ValueWords::Kind::nothing) {
        std::string offered = fish_value(values, true);
        text += here + (values.kind == ValueWords::Kind::files ? " -F" : offered.substr(3)) + "\n";
      }
      continue;
    }
    std::string names;
    for (const std::string& name : option.names())
      names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    text += (global ? std::string("complete -c terrace") : here) + names +
            fish_value(values, option.takes_value()) + " -d " + fish_quoted(option.description()) + "\n";
  }
  return text;
}

}  // namespace

std::string fish_completion(Command root) {
  std::string paths, commands;
  for (const Command command : all_commands(root)) {
    if (command.parent().has_value()) paths += " " + fish_quoted(command.path());
    commands += fish_command(command, root);
  }
  return "# fish completion for terrace; made by 'terrace completion fish'.\n" + std::string(functions) +
         "function __terrace_at\n"
         "    set -l at terrace\n"
         "    for word in (commandline -opc)[2..-1]\n"
         "        switch \"$at $word\"\n"
         "            case" +
         paths +
         "\n"
         "                set at \"$at $word\"\n"
         "        end\n"
         "    end\n"
         "    test \"$at\" = \"$argv\"\n"
         "end\n"
         "complete -c terrace -f\n" +
         commands;
}

}  // namespace terrace::cli
