// `terrace completion bash`: a script made from the parser's own tree, so that it never falls behind it.
#include <memory>
#include <set>

#include "cli/completion.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

// The words that a value can be, "linear striped", when its type lists them ("linear|striped").
std::string value_words(const CLI::Option& option) {
  std::string words = option.get_type_name();
  if (words.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-|") != std::string::npos) return "";
  for (char& c : words) c = c == '|' ? ' ' : c;
  return words;
}

// What completes a value: words, files, or nothing.
std::string value_action(const CLI::Option& option) {
  if (const std::string words = value_words(option); !words.empty()) return "words=\"" + words + "\"";
  const std::string type = option.get_type_name();
  for (const char* kind : {"PATH", "FILE", "DIR"}) {
    if (type.find(kind) != std::string::npos) return "files=1";
  }
  return ":";
}

bool completes_files(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_positional() && value_action(*option) == "files=1") return true;
  }
  return false;
}

struct Scripts {
  std::string verbs;   // case arms: path -> words
  std::string values;  // case arms: path and option -> how to complete its value
  std::string paths;   // every path, to recognise verbs
};

void collect(const CLI::App& app, const std::string& path, const std::string& inherited, Scripts& scripts) {
  std::string options;
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional()) {
      if (const std::string values = value_words(*option); !values.empty()) words += values;
      continue;
    }
    std::string patterns;
    for (const std::string& name : names_of(*option)) {
      // One way to say it is enough to offer: the long one.
      if (name.rfind("--", 0) == 0) options += " " + name;
      patterns += (patterns.empty() ? "" : "|") + ("\"" + path + " " + name + "\"");
      if (path == app.get_name()) patterns += "|*\" " + name + "\"";  // global options follow verbs too
    }
    if (takes_value(*option))
      scripts.values += "    " + patterns + ") " + value_action(*option) + "; value=1 ;;\n";
  }
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    words += (words.empty() ? "" : " ") + verb->get_name();
    scripts.paths +=
        "    \"" + path + " " + verb->get_name() + "\") path=\"" + path + " " + verb->get_name() + "\" ;;\n";
  }
  const std::string here = path == app.get_name() ? options : options + inherited;
  scripts.verbs += "    \"" + path + "\") words=\"" + words + "\"; options=\"" +
                   here.substr(here.empty() ? 0 : 1) + "\"" + (completes_files(app) ? "; files=1" : "") +
                   " ;;\n";
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    collect(*verb, path + " " + verb->get_name(), path == app.get_name() ? options : inherited, scripts);
  }
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  Scripts scripts;
  collect(app, app.get_name(), "", scripts);
  const std::string name = app.get_name();
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

void add_completion_verb(CLI::App& app, Context& context) {
  CLI::App* completion = app.add_subcommand("completion", "A completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "Only bash now")
      ->required()
      ->type_name("bash")
      ->check(CLI::IsMember({"bash"}).description(""));
  completion->callback([&app, &context, shell] {
    const std::string script = bash_completion(app);
    if (context.json)
      print_json({{"shell", *shell}, {"script", script}});
    else
      print_text(script);
  });
}

}  // namespace terrace::cli
