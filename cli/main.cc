// SPDX-License-Identifier: Apache-2.0
// terrace: the operator's and user's command line. Builds the parser, parses, lets the verb's callback run.
#include <exception>

#include "cli/parser.h"
#include "core/base/failpoint.h"

namespace terrace::cli {
namespace {

// --json and --output count for errors of the command line itself too, so they are looked for before anything is
// parsed. A word that is no format is the parser's to refuse.
void look_for_format(Context& context, const std::vector<std::string>& arguments) {
  for (size_t index = 0; index < arguments.size(); ++index) {
    const std::string& word = arguments[index];
    if (word == "--") return;
    if (word == "--json") context.json = true;
    for (const std::string name : {"-o", "--output"}) {
      const bool joined = word.starts_with(name + "=");
      if (word != name && !joined) continue;
      const std::string format = joined                         ? word.substr(name.size() + 1)
                                 : index + 1 < arguments.size() ? arguments[index + 1]
                                                                : "";
      if (format == "json" || format == "yaml") (void)set_output_format(context, format).ok();
    }
  }
}

int run(int argc, char** argv) {
  Context context;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const CommandLine line = build_parser_for(context, arguments);
  if (arguments.empty()) {
    print_text(line.root().help());
    return exit_usage;
  }
  look_at_terminal();
  look_for_format(context, arguments);
  if (const Status status = arm_failpoints_from_environment(); !status.ok()) {
    fail(context, status.error());
    return context.exit_code;
  }
  if (const std::string text = explain_unknown_word(line.root(), arguments); !text.empty()) {
    fail(context, Error{.code = ErrorCode::invalid_argument, .where = "command line", .detail = text});
    return context.exit_code;
  }
  try {
    const Result<std::string> text = line.run(arguments);
    if (!text.ok())
      fail(context, text.error());
    else if (!text->empty())
      print_text(*text);
  } catch (const std::exception& exception) {
    fail(context, Error{.code = ErrorCode::internal, .where = "terrace", .detail = exception.what()});
  }
  return context.exit_code;
}

}  // namespace
}  // namespace terrace::cli

int main(int argc, char** argv) {
  return terrace::cli::run(argc, argv);
}
