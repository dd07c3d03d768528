// terrace: the operator's and user's command line. Builds the parser, parses, lets the verb's callback run.
#include <exception>

#include "cli/terminal/verb.h"
#include "core/base/failpoint.h"

namespace terrace::cli {
namespace {

// --json counts for errors of the command line itself too, so it is looked for before anything is parsed.
bool asks_for_json(const std::vector<std::string>& arguments) {
  for (const std::string& word : arguments) {
    if (word == "--") return false;
    if (word == "--json") return true;
  }
  return false;
}

int run(int argc, char** argv) {
  Context context;
  const CommandLine line = build_parser(context);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    print_text(line.root().help());
    return exit_usage;
  }
  context.json = asks_for_json(arguments);
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
