// SPDX-License-Identifier: Apache-2.0
// `terrace man`: manual pages, made from the parser's own tree.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/help/help.h"
#include "cli/terminal/output_file.h"
#include "cli/terminal/verb.h"
#include "core/version/version.h"

namespace terrace::cli {
namespace {

// Text of a page: a backslash, and a dot or quote that begins a line, are commands to troff; a hyphen is to stay one
// that can be copied.
std::string roff_text(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    const bool starts = safe.empty() || safe.back() == '\n';
    if (starts && (c == '.' || c == '\'')) safe += "\\&";
    if (c == '\\')
      safe += "\\e";
    else if (c == '-')
      safe += "\\-";
    else
      safe += c;
  }
  return safe;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string dashed(std::string path) {
  std::replace(path.begin(), path.end(), ' ', '-');
  return path;
}

std::string option_entry(Option option) {
  std::string names;
  for (const std::string& name : option.names())
    names += (names.empty() ? "" : ", ") + ("\\fB" + roff_text(name) + "\\fR");
  if (names.empty())
    names = "\\fI" + roff_text(option.type()) + "\\fR";
  else if (option.takes_value() && !option.type().empty())
    names += " \\fI" + roff_text(option.type()) + "\\fR";
  return ".TP\n" + names + "\n" + roff_text(option.description()) + "\n";
}

std::string synopsis(Command command) {
  std::string text = "\\fB" + roff_text(command.path()) + "\\fR [\\fIOPTIONS\\fR]";
  for (const Option option : command.options()) {
    if (option.positional()) text += " \\fI" + roff_text(option.type()) + "\\fR";
  }
  return text + (command.subcommands().empty() ? "" : " \\fIVERB\\fR ...") + "\n";
}

std::string options_of(Command command) {
  std::string text;
  for (const Option option : command.options()) text += option_entry(option);
  return text;
}

std::string examples_of_page(const std::string& path) {
  std::string text;
  for (const auto& [verb, line] : help_examples()) {
    if (verb == path) text += ".nf\n" + roff_text(line) + "\n.fi\n";
  }
  return text;
}

// A verb of a family, with what is below it.
void add_verb_sections(Command command, std::string& page) {
  for (const Command verb : command.subcommands()) {
    page += ".SS " + roff_text(verb.path()) + "\n" + synopsis(verb) + ".PP\n" + roff_text(verb.description()) +
            "\n" + options_of(verb);
    if (const std::string examples = examples_of_page(verb.path()); !examples.empty())
      page += ".PP\nExample:\n.RS\n" + examples + ".RE\n";
    add_verb_sections(verb, page);
  }
}

std::string root_verbs(Command root) {
  std::string text = ".SH VERBS\n";
  for (const Command verb : root.subcommands())
    text += ".TP\n\\fB" + verb.name() + "\\fR\n" + roff_text(verb.description()) + "\n";
  return text;
}

struct ManArguments {
  std::string verb, out;
};

Status write_pages(const Context& context, Command root, const std::string& directory) {
  std::vector<std::string> files;
  std::vector<Command> commands = root.subcommands();
  commands.insert(commands.begin(), root);
  for (const Command command : commands) {
    const std::string file = directory + "/" + dashed(command.path()) + ".1";
    TERRACE_RETURN_IF_ERROR(write_atomically(file, man_page(command)));
    files.push_back(file);
  }
  if (context.json)
    print_json({{"files", files}});
  else
    print_text(join(files, "\n") + "\n");
  return {};
}

}  // namespace

std::string man_page(Command command) {
  const bool root = !command.parent().has_value();
  std::string page =
      ".TH " + upper(dashed(command.path())) + " 1 \"\" \"Terrace " + version_number() + "\" \"Terrace\"\n";
  page += ".SH NAME\n" + roff_text(dashed(command.path())) + " \\- " + roff_text(command.description()) + "\n";
  page += ".SH SYNOPSIS\n" + synopsis(command);
  page += ".SH OPTIONS\n" + options_of(command);
  if (root) {
    page += root_verbs(command);
  } else if (!command.subcommands().empty()) {
    page += ".SH VERBS\n";
    add_verb_sections(command, page);
  }
  if (const std::string examples = examples_of_page(command.path()); !examples.empty())
    page += ".SH EXAMPLES\n" + examples;
  page +=
      ".SH EXIT STATUS\n"
      "0 done, 1 failed, 2 wrong command line, 3 not found (or expired, revoked), 4 not enough memory or a "
      "limit,\n"
      "5 no daemon answers, 6 not allowed, 7 exists already or busy, 8 bytes or invariants do not match.\n";
  page += ".SH SEE ALSO\n" +
          std::string(root ? "\\fBterrace\\-lease\\fR(1), \\fBterrace\\-pool\\fR(1)" : "\\fBterrace\\fR(1)") +
          "\n";
  return page;
}

void add_man_verb(Command app, Context& context) {
  const Command man = app.add_subcommand("man", "The manual page of a verb, or all of them as files");
  const auto arguments = std::make_shared<ManArguments>();
  const Option verb =
      man.add_option("verb", arguments->verb, "As 'lease'; without it that of terrace").type_name("VERB");
  man.add_option("--out", arguments->out, "Write all pages to this directory").type_name("DIR").excludes(verb);
  on_verb(man, context, [app, &context, arguments]() -> Status {
    if (!arguments->out.empty()) return write_pages(context, app, arguments->out);
    std::vector<std::string> names;
    for (const Command family : app.subcommands()) {
      names.push_back(family.name());
      if (family.name() != arguments->verb) continue;
      print_text(man_page(family));
      return {};
    }
    if (arguments->verb.empty()) {
      print_text(man_page(app));
      return {};
    }
    const std::string near = did_you_mean(arguments->verb, names);
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "man",
                 .detail = "terrace has no verb '" + arguments->verb + "'" +
                           (near.empty() ? "" : "; did you mean '" + near + "'?")};
  });
}

}  // namespace terrace::cli
