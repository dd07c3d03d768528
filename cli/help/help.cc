// SPDX-License-Identifier: Apache-2.0
// The examples below each help, and `terrace help`.
#include "cli/help/help.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/terminal/verb.h"
#include "core/version/build_info.h"

namespace terrace::cli {
namespace {

// Walks down the verbs that the words name.
Result<Command> find_verb(Command root, const std::vector<std::string>& words) {
  Command at = root;
  for (const std::string& word : words) {
    const std::vector<Command> verbs = at.subcommands();
    std::vector<std::string> names;
    bool found = false;
    for (const Command verb : verbs) {
      names.push_back(verb.name());
      if (verb.name() != word) continue;
      at = verb;
      found = true;
      break;
    }
    if (found) continue;
    const std::string near = did_you_mean(word, names);
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "help",
                 .detail = "'" + at.path() + "' has no verb '" + word + "'" +
                           (near.empty() ? "" : "; did you mean '" + near + "'?")};
  }
  return at;
}

std::string examples_of(const std::string& path) {
  std::string text;
  for (const auto& [verb, line] : help_examples())
    if (verb == path) text += "  " + line + "\n";
  return text;
}

void add_examples_below(Command command) {
  const std::string examples = examples_of(command.path());
  if (!examples.empty()) {
    const std::string before = command.footer();
    command.footer("Examples:\n" + examples + (before.empty() ? "" : "\n" + before));
  }
  for (const Command verb : command.subcommands()) add_examples_below(verb);
}

}  // namespace

void add_examples(Command root) {
  add_examples_below(root);
}

// "0.3.0 (1a2b3c4d5e6f, release)" in its parts.
void add_version_verb(Command app, Context& context) {
  const Command version = app.add_subcommand("version", "The version, with the commit and the kind of build");
  on_verb(version, context, [&context]() -> Status {
    const std::string all = version_and_build();
    if (!context.json) {
      print_text("terrace " + all + "\n");
      return {};
    }
    const size_t open = all.find(" ("), comma = all.rfind(", ");
    const bool whole = open != std::string::npos && comma != std::string::npos && open + 2 <= comma;
    print_json({{"version", all.substr(0, open)},
                {"commit", whole ? all.substr(open + 2, comma - open - 2) : ""},
                {"build", whole ? all.substr(comma + 2, all.size() - comma - 3) : ""}});
    return {};
  });
}

void add_help_verb(Command app, Context& context) {
  const Command help = app.add_subcommand("help", "The help of a verb, with examples");
  const auto words = std::make_shared<std::vector<std::string>>();
  help.add_option("verb", *words, "As 'lease grant'; without it the help of all").type_name("VERB");
  on_verb(help, context, [app, &context, words]() -> Status {
    TERRACE_ASSIGN_OR_RETURN(const Command verb, find_verb(app, *words));
    if (context.json)
      print_json({{"verb", verb.path()}, {"help", verb.help()}});
    else
      print_text(verb.help());
    return {};
  });
}

}  // namespace terrace::cli
