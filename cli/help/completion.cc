// `terrace completion bash`: a script made from the parser's own tree, so that it never falls behind it.
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/completion.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

// The words that a value can be, "linear striped", when its type lists them ("linear|striped").
std::string value_words(Option option) {
  std::string words = option.type();
  if (words.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-|") != std::string::npos) return "";
  for (char& c : words) c = c == '|' ? ' ' : c;
  return words;
}

// What completes a value: words, files, or nothing.
std::string value_action(Option option) {
  if (const std::string words = value_words(option); !words.empty()) return "words=\"" + words + "\"";
  const std::string type = option.type();
  for (const char* kind : {"PATH", "FILE", "DIR"}) {
    if (type.find(kind) != std::string::npos) return "files=1";
  }
  return ":";
}

bool completes_files(Command verb) {
  for (const Option option : verb.options()) {
    if (option.positional() && value_action(option) == "files=1") return true;
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
      if (const std::string values = value_words(option); !values.empty()) words += values;
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
  return "# bash completion for " + name + "; made by '" + name +
         " completion bash'.\n"
         "_" +
         name +
         "() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" before=\"\" path=\"" +
         name +
         "\" words=\"\" options=\"\" files=0 value=0 i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
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
  completion.add_option("shell", *shell, "Only bash now").required().one_of({"bash"});
  completion.callback([app, &context, shell] {
    const std::string script = bash_completion(app);
    if (context.json)
      print_json({{"shell", *shell}, {"script", script}});
    else
      print_text(script);
  });
}

}  // namespace terrace::cli
