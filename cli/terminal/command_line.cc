// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

// The help shows the type of a value, and nothing of how it is checked.
constexpr const char* hidden = "";

// The verb that the words led to.
CLI::App* parsed_verb(CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string path_to(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name() : path_to(app->get_parent()) + " " + app->get_name();
}

template <typename Value>
Option option_for(CLI::App* app, std::string_view name, Value& value, std::string_view help) {
  return Option(app->add_option(std::string(name), value, std::string(help)));
}

template <typename Value>
Option in_range_of(CLI::Option* option, Value least, Value most) {
  return Option(option->check(CLI::Range(least, most).description(hidden)));
}

// CLI11 keeps what an option needs and excludes by address: its own help has them in another order each time.
class OrderedFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    for (const auto& [word, others] :
         {std::pair(" Needs:", option->get_needs()), std::pair(" Excludes:", option->get_excludes())}) {
      if (others.empty()) continue;
      std::vector<std::string> names;
      for (const CLI::Option* other : others) names.push_back(other->get_name());
      std::sort(names.begin(), names.end());
      const std::string sorted = " " + join(names, " ");
      text.replace(text.find(word) + std::string_view(word).size(), sorted.size(), sorted);
    }
    return text;
  }
};

}  // namespace

// --- Option

Option Option::required(bool required) const {
  return Option(option_->required(required));
}

Option Option::type_name(std::string_view name) const {
  return Option(option_->type_name(std::string(name)));
}

Option Option::one_of(const std::vector<std::string>& words) const {
  return Option(option_->type_name(join(words, "|"))->check(CLI::IsMember(words).description(hidden)));
}

Option Option::in_range(uint32_t least, uint32_t most) const {
  return in_range_of(option_, least, most);
}

Option Option::in_range(uint64_t least, uint64_t most) const {
  return in_range_of(option_, least, most);
}

Option Option::in_range(int64_t least, int64_t most) const {
  return in_range_of(option_, least, most);
}

Option Option::in_range(double least, double most) const {
  return in_range_of(option_, least, most);
}

Option Option::check(std::function<std::string(const std::string&)> problem_of) const {
  return Option(option_->check(std::move(problem_of), hidden));
}

Option Option::also(std::string_view word, std::string_view value) const {
  return Option(option_->transform([word = std::string(word), value = std::string(value)](
                                       std::string text) { return text == word ? value : text; },
                                   hidden));
}

Option Option::envname(std::string_view variable) const {
  return Option(option_->envname(std::string(variable)));
}

Option Option::excludes(Option other) const {
  return Option(option_->excludes(other.option_));
}

Option Option::needs(Option other) const {
  return Option(option_->needs(other.option_));
}

Option Option::allow_extra_args(bool allow) const {
  return Option(option_->allow_extra_args(allow));
}

size_t Option::count() const {
  return option_->count();
}

std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_->get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option_->get_snames()) names.push_back("-" + name);
  return names;
}

std::string Option::type() const {
  return option_->get_type_name();
}

std::string Option::description() const {
  return option_->get_description();
}

bool Option::takes_value() const {
  return option_->get_items_expected_max() > 0;
}

bool Option::positional() const {
  return option_->get_positional();
}

// --- Command

Command Command::add_subcommand(std::string_view name, std::string_view help) const {
  return Command(app_->add_subcommand(std::string(name), std::string(help)));
}

void Command::require_subcommand() const {
  app_->require_subcommand(1);
}

void Command::footer(std::string_view text) const {
  app_->footer(std::string(text));
}

void Command::callback(std::function<void()> work) const {
  app_->callback(std::move(work));
}

Option Command::add_option(std::string_view name, std::string& value, std::string_view help) const {
  return option_for(app_, name, value, help);
}

Option Command::add_option(std::string_view name, std::vector<std::string>& value,
                           std::string_view help) const {
  return option_for(app_, name, value, help);
}

Option Command::add_option(std::string_view name, uint32_t& value, std::string_view help) const {
  return option_for(app_, name, value, help);
}

Option Command::add_option(std::string_view name, uint64_t& value, std::string_view help) const {
  return option_for(app_, name, value, help);
}

Option Command::add_option(std::string_view name, int64_t& value, std::string_view help) const {
  return option_for(app_, name, value, help);
}

Option Command::add_option(std::string_view name, double& value, std::string_view help) const {
  return option_for(app_, name, value, help);
}

Option Command::add_parsed_option(std::string_view name, std::function<Status(const std::string&)> parse,
                                  std::string_view help) const {
  const auto parse_or_throw = [name = std::string(name), parse = std::move(parse)](const std::string& text) {
    if (const Status parsed = parse(text); !parsed.ok())
      throw CLI::ValidationError(name, parsed.error().detail);
  };
  return Option(app_->add_option_function<std::string>(std::string(name), parse_or_throw, std::string(help)));
}

Option Command::add_flag(std::string_view name, bool& value, std::string_view help) const {
  return Option(app_->add_flag(std::string(name), value, std::string(help)));
}

Option Command::add_flag(std::string_view name, std::string& value, std::string_view help) const {
  return Option(app_->add_flag(std::string(name), value, std::string(help)));
}

std::string Command::name() const {
  return app_->get_name();
}

std::string Command::path() const {
  return path_to(app_);
}

std::string Command::help() const {
  return app_->help(app_->get_parent() == nullptr ? "" : path_to(app_->get_parent()));
}

std::string Command::description() const {
  return app_->get_description();
}

std::string Command::footer() const {
  return app_->get_footer();
}

std::optional<Command> Command::parent() const {
  if (app_->get_parent() == nullptr) return std::nullopt;
  return Command(app_->get_parent());
}

std::vector<Command> Command::subcommands() const {
  std::vector<Command> commands;
  const std::function<bool(CLI::App*)> all;
  for (CLI::App* app : app_->get_subcommands(all)) commands.emplace_back(app);
  return commands;
}

std::vector<Option> Command::options() const {
  std::vector<Option> options;
  for (CLI::Option* option : app_->get_options()) options.emplace_back(option);
  return options;
}

std::optional<Option> Command::option(const std::string& name) const {
  CLI::Option* option = app_->get_option_no_throw(name);
  if (option == nullptr) return std::nullopt;
  return Option(option);
}

// --- CommandLine

CommandLine::CommandLine(const Texts& texts) : app_(std::make_unique<CLI::App>(texts.description, texts.name)) {
  app_->formatter(std::make_shared<OrderedFormatter>());  // subcommands inherit it
  app_->footer(texts.footer);
  app_->set_help_flag("-h,--help", "What can be said here");
  app_->set_version_flag("--version", texts.version);
  app_->require_subcommand(1);
  app_->fallthrough();  // global options may also follow the verb
}

CommandLine::~CommandLine() = default;
CommandLine::CommandLine(CommandLine&&) noexcept = default;
CommandLine& CommandLine::operator=(CommandLine&&) noexcept = default;

Command CommandLine::root() const {
  return Command(app_.get());
}

Result<std::string> CommandLine::run(std::vector<std::string> words) const {
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the end
  try {
    app_->parse(std::move(words));
    return std::string();
  } catch (const CLI::CallForHelp&) {
    return Command(parsed_verb(app_.get())).help();
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = "command line",
        .detail = std::string(error.what()) + "; see '" + path_to(parsed_verb(app_.get())) + " --help'"};
  }
}

}  // namespace terrace::cli
