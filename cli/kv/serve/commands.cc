// SPDX-License-Identifier: Apache-2.0
// Which commands there are, and what each is given.
#include "cli/kv/serve/commands.h"

#include <algorithm>
#include <charconv>

#include "core/base/kernel_clock.h"

namespace terrace::kv_serve {
namespace {

constexpr size_t small_bytes = 16 << 10;  // below, a copy costs less than a pin
constexpr size_t shown_arguments_bytes = 128;

// As clients know it from redis.
std::string unknown_command(Commands::Arguments arguments) {
  std::string text = "ERR unknown command '" + std::string(arguments[0].substr(0, shown_arguments_bytes)) +
                     "', with args beginning with: ";
  const size_t begin = text.size();
  for (const std::string_view argument : arguments.subspan(1)) {
    if (text.size() - begin >= shown_arguments_bytes) break;
    text += "'" + std::string(argument.substr(0, shown_arguments_bytes - (text.size() - begin))) + "' ";
  }
  return text;
}

}  // namespace

struct CommandTable {
  struct Command {
    std::string_view name;                // lower case
    size_t arguments_min, arguments_max;  // with the name
    bool writes;
    Progress (Commands::*run)(Commands::Call&);
  };
  static constexpr size_t many = command_arguments_max;
  static constexpr Command all[] = {
      {"auth", 2, 3, false, &Commands::auth},
      {"client", 2, many, false, &Commands::client},
      {"command", 1, many, false, &Commands::command},
      {"config", 2, many, false, &Commands::config},
      {"dbsize", 1, 1, false, &Commands::dbsize},
      {"del", 2, many, true, &Commands::del},
      {"echo", 2, 2, false, &Commands::echo},
      {"exists", 2, many, false, &Commands::exists},
      {"flushall", 1, 2, true, &Commands::flush},
      {"flushdb", 1, 2, true, &Commands::flush},
      {"get", 2, 2, false, &Commands::get},
      {"hello", 1, many, false, &Commands::hello},
      {"info", 1, many, false, &Commands::info},
      {"keys", 2, 2, false, &Commands::keys},
      {"mget", 2, 4097, false, &Commands::mget},
      {"mset", 3, many, true, &Commands::mset},
      {"ping", 1, 2, false, &Commands::ping},
      {"pttl", 2, 2, false, &Commands::ttl},
      {"quit", 1, many, false, &Commands::quit},
      {"scan", 2, many, false, &Commands::scan},
      {"select", 2, 2, false, &Commands::select},
      {"set", 3, many, true, &Commands::set},
      {"setnx", 3, 3, true, &Commands::setnx},
      {"strlen", 2, 2, false, &Commands::strlen},
      {"ttl", 2, 2, false, &Commands::ttl},
      {"type", 2, 2, false, &Commands::type},
      {"unlink", 2, many, true, &Commands::del},
  };
};

bool same_word(std::string_view word, std::string_view lower_case) {
  return std::equal(word.begin(), word.end(), lower_case.begin(), lower_case.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

Commands::Commands(KvSpace& space, Options options, const ServerFigures& figures)
    : space_(space),
      options_(std::move(options)),
      figures_(figures),
      scan_(space, options_.name_space),
      small_(small_bytes) {}

bool Commands::storable(std::string_view key) {
  return !key.empty() && key.size() <= kv_key_bytes_max;
}

bool Commands::go_on(const Call& call) const {
  return call.replies.bytes() <= output_bytes_max && monotonic_ns() < call.until_ns;
}

Progress Commands::execute(ClientState& client, Arguments arguments, Replies& replies) {
  const std::string_view name = arguments[0];
  // A browser that was led here by a page: HTTP must not be taken for commands.
  if (same_word(name, "post") || same_word(name, "host:")) {
    client.closing = true;
    return Progress::done;
  }
  const auto command = std::find_if(std::begin(CommandTable::all), std::end(CommandTable::all),
                                    [&](const auto& one) { return same_word(name, one.name); });
  if (command == std::end(CommandTable::all)) {
    replies.error(unknown_command(arguments));
    return Progress::done;
  }
  if (arguments.size() < command->arguments_min || arguments.size() > command->arguments_max) {
    replies.error(arguments.size() > command_arguments_max
                      ? "ERR more than " + std::to_string(command->arguments_max) + " arguments"
                      : "ERR wrong number of arguments for '" + std::string(command->name) + "' command");
    return Progress::done;
  }
  if (command->writes && options_.read_only) {
    replies.error("READONLY this server only reads: it was started with --readonly");
    return Progress::done;
  }
  replies.set_resp3(client.resp3);
  Call call{client, arguments, replies, monotonic_ns() + step_ns};
  const Progress progress = (this->*command->run)(call);
  if (progress == Progress::done) {
    client.next = 0;
    client.count = 0;
  }
  return progress;
}

}  // namespace terrace::kv_serve
