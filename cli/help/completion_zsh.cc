// SPDX-License-Identifier: Apache-2.0
#include "cli/help/completion.h"
#include "cli/help/shell_words.h"
#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

// What offers the words of a value.
std::string zsh_action(const ValueWords& values) {
  std::string quoted;
  for (const std::string& word : values.words) quoted += " " + single_quoted(word);
  switch (values.kind) {
    case ValueWords::Kind::nothing: return ":";
    case ValueWords::Kind::files: return "_files";
    case ValueWords::Kind::words: return "compadd --" + quoted;
    case ValueWords::Kind::live: return "compadd -- $(_terrace_live " + values.live + " \"${socket[@]}\")";
  }
  return ":";
}

// The arms for options with values, and what else a verb takes.
void add_zsh_command(Command command, Command root, std::string& values, std::string& verbs) {
  const std::string path = command.path();
  std::string arm, options;
  for (const Option option : command.options()) {
    if (option.positional()) arm += "      " + zsh_action(value_words(option)) + "\n";
    for (const std::string& name : option.names()) {
      if (name.starts_with("--")) options += " " + name;
      const bool global = command.path() == root.path();
      if (option.takes_value())
        values += "    " + single_quoted(path + " " + name) + (global ? "|*" + single_quoted(" " + name) : "") +
                  ") " + zsh_action(value_words(option)) + "; return ;;\n";
    }
  }
  std::string below;
  for (const Command verb : command.subcommands()) below += " " + verb.name();
  if (!below.empty()) arm += "      compadd --" + below + "\n";
  verbs += "    " + single_quoted(path) + ")\n" + arm + "      [[ $words[CURRENT] == -* ]] && compadd --" +
           options + "\n      ;;\n";
}

}  // namespace

std::string zsh_completion(Command root) {
  std::string paths, values, verbs;
  for (const Command command : all_commands(root)) {
    if (command.parent().has_value()) paths += (paths.empty() ? "" : "|") + single_quoted(command.path());
    add_zsh_command(command, root, values, verbs);
  }
  std::string global;
  for (const Option option : root.options())
    for (const std::string& name : option.names())
      if (name.starts_with("--")) global += " " + name;
  return "#compdef terrace\n"
         "# zsh completion for terrace; made by 'terrace completion zsh'.\n" +
         std::string(live_words_script) +
         "_terrace() {\n"
         "  local at=terrace i\n"
         "  local -a socket\n"
         "  for ((i = 2; i < CURRENT; i++)); do\n"
         "    [[ $words[i] == --socket ]] && socket=(--socket $words[i+1])\n"
         "    # What follows -- is another program's command line.\n"
         "    if [[ $words[i] == -- ]]; then _files; return; fi\n"
         "    case \"$at $words[i]\" in\n"
         "      " +
         paths +
         ") at=\"$at $words[i]\" ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$at $words[CURRENT-1]\" in\n" +
         values +
         "  esac\n"
         "  case \"$at\" in\n" +
         verbs +
         "  esac\n"
         "  [[ $words[CURRENT] == -* && $at != terrace ]] && compadd --" +
         global +
         "\n"
         "}\n"
         "(( $+functions[compdef] )) && compdef _terrace terrace\n";
}

}  // namespace terrace::cli
