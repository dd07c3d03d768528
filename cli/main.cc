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

// The verb that the words lead to, for "see ... --help".
const CLI::App* deepest_verb(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return at;
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

void fail_usage(Context& context, std::string detail) {
  while (!detail.empty() && detail.back() == '\n') detail.pop_back();
  fail(context,
       Error{.code = ErrorCode::invalid_argument, .where = "command line", .detail = std::move(detail)});
}

int run(int argc, char** argv) {
  Context context;
  CLI::App app;
  build_parser(app, context);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    print_text(app.help());
    return exit_usage;
  }
  context.json = asks_for_json(arguments);
  if (const Status status = arm_failpoints_from_environment(); !status.ok()) {
    fail(context, status.error());
    return context.exit_code;
  }
  if (std::string text = explain_unknown_word(app, arguments); !text.empty()) {
    fail_usage(context, std::move(text));
    return context.exit_code;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* verb = deepest_verb(app);
    print_text(verb->help(verb->get_parent() == nullptr ? "" : path_of(*verb->get_parent())));
    return exit_ok;
  } catch (const CLI::CallForVersion& version) {
    print_text(std::string(version.what()) + "\n");
    return exit_ok;
  } catch (const CLI::ParseError& error) {
    fail_usage(context, std::string(error.what()) + "; see '" + path_of(*deepest_verb(app)) + " --help'");
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
