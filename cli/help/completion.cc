// SPDX-License-Identifier: Apache-2.0
// `terrace completion bash`: a script made from the parser's own tree, so that it never falls behind it.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/help/completion.h"
#include "cli/help/shell_words.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

// What completes a value: words, files, what is live, or nothing.
std::string value_action(Option option) {
  const ValueWords values = value_words(option);
  switch (values.kind) {
    case ValueWords::Kind::nothing: return ":";
    case ValueWords::Kind::files: return "files=1";
    case ValueWords::Kind::words: return "words=\"" + join(values.words, " ") + "\"";
    case ValueWords::Kind::live: return "words=\"$(_terrace_live " + values.live + " \"${socket[@]}\")\"";
  }
  return ":";
}

bool completes_files(Command verb) {
  for (const Option option : verb.options()) {
    if (option.positional() && value_words(option).kind == ValueWords::Kind::files) return true;
  }
  return false;
}

struct Scripts {
  std::string verbs;   // case arms: path -> words
  std::string values;  // case arms: path and option -> how to complete its value
  std::string paths;   // every path, to recognise verbs
};

void collect(Command command, const std::string& path, const std::string& inherited, Scripts& scripts) {
  std::string options;
  std::string words;
  for (const Option option : command.options()) {
    if (option.names().empty()) {
      const ValueWords values = value_words(option);
      words += (words.empty() ? "" : " ") + join(values.words, " ");
      if (values.kind == ValueWords::Kind::live)
        words += " $(_terrace_live " + values.live + " \"${socket[@]}\")";
      continue;
    }
    std::string patterns;
    for (const std::string& name : option.names()) {
      // One way to say it is enough to offer: the long one.
      if (name.rfind("--", 0) == 0) options += " " + name;
      patterns += (patterns.empty() ? "" : "|") + ("\"" + path + " " + name + "\"");
      if (path == command.name()) patterns += "|*\" " + name + "\"";  // global options follow verbs too
    }
    if (option.takes_value())
      scripts.values += "    " + patterns + ") " + value_action(option) + "; value=1 ;;\n";
  }
  for (const Command verb : command.subcommands()) {
    words += (words.empty() ? "" : " ") + verb.name();
    scripts.paths += "    \"" + path + " " + verb.name() + "\") path=\"" + path + " " + verb.name() + "\" ;;\n";
  }
  const std::string here = path == command.name() ? options : options + inherited;
  scripts.verbs += "    \"" + path + "\") words=\"" + words + "\"; options=\"" +
                   here.substr(here.empty() ? 0 : 1) + "\"" + (completes_files(command) ? "; files=1" : "") +
                   " ;;\n";
  for (const Command verb : command.subcommands()) {
    collect(verb, path + " " + verb.name(), path == command.name() ? options : inherited, scripts);
  }
}

}  // namespace

std::string bash_completion(Command root) {
  Scripts scripts;
  const std::string name = root.name();
  collect(root, name, "", scripts);
  return "# bash completion for " + name + "; made by '" + name + " completion bash'.\n" + live_words_script +
         "_" + name +
         "() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" before=\"\" path=\"" +
         name +
         "\" words=\"\" options=\"\" files=0 value=0 i\n"
         "  local socket=()\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    [[ ${COMP_WORDS[i]} == --socket ]] && socket=(--socket \"${COMP_WORDS[i + 1]}\")\n"
         "    # What follows -- is another program's command line.\n"
         "    if [[ ${COMP_WORDS[i]} == -- ]]; then\n"
         "      if ((i + 1 == COMP_CWORD)); then mapfile -t COMPREPLY < <(compgen -c -- \"$current\");\n"
         "      else mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); fi\n"
         "      return\n"
         "    fi\n"
         "    case \"$path ${COMP_WORDS[i]}\" in\n" +
         scripts.paths +
         "    esac\n"
         "  done\n"
         "  before=\"${COMP_WORDS[COMP_CWORD - 1]}\"\n"
         "  case \"$path $before\" in\n" +
         scripts.values +
         "  esac\n"
         "  if ((!value)); then\n"
         "    case \"$path\" in\n" +
         scripts.verbs +
         "    esac\n"
         "    if [[ $current == -* || -z $words ]]; then words=\"$words $options\"; fi\n"
         "  fi\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "  if ((files)) && [[ $current != -* ]]; then\n"
         "    local found\n"
         "    mapfile -t found < <(compgen -f -- \"$current\")\n"
         "    COMPREPLY+=(\"${found[@]}\")\n"
         "    compopt -o filenames 2>/dev/null\n"
         "  fi\n"
         "}\n"
         "complete -F _" +
         name + " " + name + "\n";
}

void add_completion_verb(Command app, Context& context) {
  const Command completion = app.add_subcommand("completion", "A completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  completion.add_option("shell", *shell, "Whose script").required().one_of({"bash", "zsh", "fish"});
  on_verb(completion, context, [app, &context, shell]() -> Status {
    const std::string script = *shell == "bash"  ? bash_completion(app)
                               : *shell == "zsh" ? zsh_completion(app)
                                                 : fish_completion(app);
    if (context.json)
      print_json({{"shell", *shell}, {"script", script}});
    else
      print_text(script);
    return {};
  });
}

}  // namespace terrace::cli
