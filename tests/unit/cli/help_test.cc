// SPDX-License-Identifier: Apache-2.0
// What `terrace` says of itself: every verb has an example that the parser takes, and a manual page.
#include "cli/help/help.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <map>
#include <set>

#include "cli/help/shell_words.h"
#include "cli/parser.h"
#include "cli/terminal/verb.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

// The words of an example as a shell would split them: quotes, and what is behind a pipe or a redirection goes.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false, any = false;
  for (const char c : line) {
    if (c == '\'') {
      quoted = !quoted;
      any = true;
    } else if (!quoted && (c == '|' || c == '>')) {
      break;
    } else if (!quoted && c == ' ') {
      if (any || !word.empty()) words.push_back(word);
      word.clear();
      any = false;
    } else {
      word += c;
    }
  }
  if (any || !word.empty()) words.push_back(word);
  return words;
}

}  // namespace

TEST_CASE("Help: every verb without verbs below it has an example, and each names what there is") {
  Context context;
  const CommandLine line = build_parser(context);
  std::set<std::string> with_example;
  for (const auto& [path, example] : help_examples()) {
    CAPTURE(example);
    with_example.insert(path);
    if (example.starts_with("source ")) continue;
    std::vector<std::string> words = words_of(example);
    REQUIRE(!words.empty());
    CHECK(words[0] == "terrace");
    words.erase(words.begin());
    CHECK(explain_unknown_word(line.root(), words) == "");
    if (path != "terrace") CHECK(example.starts_with(path));
  }
  for (const Command command : all_commands(line.root())) {
    CAPTURE(command.path());
    if (command.subcommands().empty()) CHECK(with_example.contains(command.path()));
    with_example.erase(command.path());
  }
  CHECK(with_example.empty());  // of verbs that are gone
}

TEST_CASE("Help: examples are in the help, before what was below it") {
  Context context;
  const CommandLine line = build_parser(context);
  for (const Command command : all_commands(line.root())) {
    if (command.path() != "terrace lease grant") continue;
    const std::string help = command.help();
    CHECK(help.find("Examples:\n  terrace lease grant --pool") != std::string::npos);
    CHECK(help.find("Examples:") < help.find("Exit codes:"));
  }
}

TEST_CASE("Help: what excludes an option stands in the same order wherever its objects lie") {
  Context context;
  const CommandLine line = build_parser(context);
  for (const Command command : all_commands(line.root())) {
    if (command.path() != "terrace pool compact") continue;
    const std::string help = command.help();
    CHECK(help.find("--end Excludes: --dry-run --run --status --timeout --wait\n") != std::string::npos);
    CHECK(help.find("--run SIZE Excludes: --end --status\n") != std::string::npos);
  }
}

TEST_CASE("Help: a verb is described as well where only what the words can mean is") {
  Context context;
  const CommandLine whole = build_parser(context);
  const size_t root_verbs = whole.root().subcommands().size();
  size_t alone = 0;
  for (const Command verb : whole.root().subcommands()) {
    CAPTURE(verb.name());
    Context its;
    const CommandLine line =
        build_parser_for(its, {"--json", "--socket", "pool", "--output=json", verb.name(), "lease"});
    std::map<std::string, std::string> helps;
    for (const Command command : all_commands(line.root())) helps[command.path()] = command.help();
    for (const Command command : all_commands(verb)) CHECK(helps[command.path()] == command.help());
    alone += line.root().subcommands().size() <= 2;
  }
  CHECK(alone == root_verbs - 4);  // version; help, man and completion describe all of them
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{},
                                                                                     {"--help", "pool"},
                                                                                     {"-h", "pool"},
                                                                                     {"--version", "pool"},
                                                                                     {"pol", "list"},
                                                                                     {"--sock", "x", "pool"}}) {
    Context its;
    CHECK(build_parser_for(its, words).root().subcommands().size() == root_verbs);
  }
}

TEST_CASE("Manual pages: troff finds nothing to say about them") {
  Context context;
  const CommandLine line = build_parser(context);
  std::vector<Command> commands = line.root().subcommands();
  commands.push_back(line.root());
  for (const Command command : commands) {
    const std::string page = man_page(command);
    CAPTURE(command.path());
    CHECK(page.starts_with(".TH TERRACE"));
    // Every line that begins with a dot is a macro of the man package, or one of few requests.
    size_t begin = 0;
    while (begin < page.size()) {
      const size_t end = page.find('\n', begin);
      const std::string text = page.substr(begin, end - begin);
      begin = end + 1;
      if (text.empty() || text[0] != '.') continue;
      const std::string macro = text.substr(0, text.find(' '));
      const std::set<std::string> known = {".TH", ".SH", ".SS", ".TP", ".PP", ".RS", ".RE", ".nf", ".fi"};
      CAPTURE(text);
      CHECK(known.contains(macro));
    }
  }
  const std::string root = man_page(line.root());
  CHECK(root.find("\\fBlease\\fR") != std::string::npos);
  CHECK(root.find("\\-\\-socket") != std::string::npos);
}
