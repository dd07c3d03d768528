// SPDX-License-Identifier: Apache-2.0
// Verbs, options and what their values may be, as `terrace` declares and parses them.
//
// Place     Between the verbs and CLI11, whose headers and templates cost more to compile than most verbs: only
//           command_line.cc includes them.
// Ownership A CommandLine owns all of it; Command and Option only refer to it, and are as short-lived.
// Threads   The main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace terrace::cli {

// An option, a flag, or a positional argument. What changes it returns it, for the next change.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required(bool required = true) const;
  // What the help shows of the value, and what completes it: "N", "FILE", "a|b".
  Option type_name(std::string_view name) const;
  // Another value is a usage error; the words are the value's type, too.
  Option one_of(const std::vector<std::string>& words) const;
  Option in_range(uint32_t least, uint32_t most) const;
  Option in_range(uint64_t least, uint64_t most) const;
  Option in_range(int64_t least, int64_t most) const;
  Option in_range(double least, double most) const;
  // `problem_of` says what is wrong with a value, or "".
  Option check(std::function<std::string(const std::string&)> problem_of) const;
  // `word` stands for `value`.
  Option also(std::string_view word, std::string_view value) const;
  // Where the value comes from when the command line has none.
  Option envname(std::string_view variable) const;
  Option excludes(Option other) const;
  Option needs(Option other) const;
  // Of an option with many values: whether one may have several of them behind it.
  Option allow_extra_args(bool allow) const;

  // How often it was said.
  size_t count() const;

  std::vector<std::string> names() const;  // "--size", "-s"; none of a positional argument
  std::string type() const;
  std::string description() const;
  bool takes_value() const;
  bool positional() const;

 private:
  CLI::Option* option_;
};

// A verb, or the whole program.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(std::string_view name, std::string_view help) const;
  void require_subcommand() const;
  void footer(std::string_view text) const;
  // What the verb does, once all of the command line has been read.
  void callback(std::function<void()> work) const;

  // `name`: "--size" or "-s,--size" for an option, "size" for a positional argument. The value is written to
  // `value`, which must stay where it is.
  Option add_option(std::string_view name, std::string& value, std::string_view help) const;
  Option add_option(std::string_view name, std::vector<std::string>& value, std::string_view help) const;
  Option add_option(std::string_view name, uint32_t& value, std::string_view help) const;
  Option add_option(std::string_view name, uint64_t& value, std::string_view help) const;
  Option add_option(std::string_view name, int64_t& value, std::string_view help) const;
  Option add_option(std::string_view name, double& value, std::string_view help) const;
  // `parse` gets the value; what it refuses is a usage error with the detail of its error.
  Option add_parsed_option(std::string_view name, std::function<Status(const std::string&)> parse,
                           std::string_view help) const;
  Option add_flag(std::string_view name, bool& value, std::string_view help) const;
  // "--watch{1}": the text between the braces where no value follows a '='.
  Option add_flag(std::string_view name, std::string& value, std::string_view help) const;

  std::string name() const;
  std::string path() const;  // "terrace lease grant"
  std::string help() const;  // as --help prints it
  std::string description() const;
  std::string footer() const;
  std::optional<Command> parent() const;
  std::vector<Command> subcommands() const;
  std::vector<Option> options() const;
  // Its own option of that name ("--size").
  std::optional<Option> option(const std::string& name) const;

 private:
  CLI::App* app_;
};

class CommandLine {
 public:
  struct Texts {
    std::string name, description, version, footer;
  };
  explicit CommandLine(const Texts& texts);
  ~CommandLine();
  CommandLine(CommandLine&&) noexcept;
  CommandLine& operator=(CommandLine&&) noexcept;

  Command root() const;

  // Parses the words behind the program's name, and lets the callback of the verb work.
  // Returns   what --help or --version print; "" when a verb has worked
  // Errors    invalid_argument   what is wrong, and whose --help says more
  Result<std::string> run(std::vector<std::string> words) const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace terrace::cli
