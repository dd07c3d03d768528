// SPDX-License-Identifier: Apache-2.0
// The whole command line: global options, help, and what to say about a mistyped word.
#include "cli/parser.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "cli/help/help.h"
#include "core/version/build_info.h"

namespace terrace::cli {
namespace {

constexpr const char* footer =
    "Sizes are written 4096, 64M, 2GiB or 1.5G, durations 250ms, 30s, 10m, 2h or 1d.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line, 3 not found (or expired, revoked), 4 not enough "
    "memory\n"
    "or a limit, 5 no daemon answers, 6 not allowed, 7 exists already or busy, 8 bytes or invariants do not "
    "match.";

Option add_number_option(Command verb, std::string_view name, uint64_t& target, std::string_view help,
                         Result<uint64_t> (*parse)(std::string_view)) {
  const auto parse_number = [&target, parse](const std::string& text) -> Status {
    TERRACE_ASSIGN_OR_RETURN(target, parse(text));
    return {};
  };
  return verb.add_parsed_option(name, parse_number, help);
}

// Changes (insert, delete, replace, swap of neighbours) that turn one word into the other.
size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<std::vector<size_t>> cost(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t row = 0; row <= from.size(); ++row) cost[row][0] = row;
  std::iota(cost[0].begin(), cost[0].end(), size_t{0});
  for (size_t row = 1; row <= from.size(); ++row) {
    for (size_t column = 1; column <= to.size(); ++column) {
      const size_t replace = cost[row - 1][column - 1] + (from[row - 1] == to[column - 1] ? 0 : 1);
      cost[row][column] = std::min({cost[row - 1][column] + 1, cost[row][column - 1] + 1, replace});
      const bool swapped =
          row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1];
      if (swapped) cost[row][column] = std::min(cost[row][column], cost[row - 2][column - 2] + 1);
    }
  }
  return cost[from.size()][to.size()];
}

std::vector<std::string> verb_names(Command command) {
  std::vector<std::string> names;
  for (const Command verb : command.subcommands()) names.push_back(verb.name());
  return names;
}

// Those of the commands above it, too.
std::vector<std::string> option_names(Command command) {
  std::vector<std::string> names;
  for (std::optional<Command> at = command; at.has_value(); at = at->parent()) {
    for (const Option option : at->options()) {
      for (std::string& name : option.names()) names.push_back(std::move(name));
    }
  }
  return names;
}

std::optional<Option> find_option(Command command, const std::string& name) {
  for (std::optional<Command> at = command; at.has_value(); at = at->parent()) {
    if (const std::optional<Option> option = at->option(name); option.has_value()) return option;
  }
  return std::nullopt;
}

std::string explain_unknown(const std::string& what, const std::string& word,
                            const std::vector<std::string>& known, const std::string& help) {
  std::string text = what + " '" + word + "'";
  if (const std::string near = did_you_mean(word, known); !near.empty()) {
    text += "; did you mean '" + near + "'?";
  } else {
    text += "; see '" + help + " --help'";
  }
  return text;
}

// What adds which verbs of the command line itself. Those that describe others (help, man, completion) are not among
// them.
struct Family {
  void (*add)(Command, Context&);
  std::vector<std::string_view> names;
};
const std::vector<Family>& families() {
  static const std::vector<Family> all = {{add_status_verbs, {"status", "check"}},
                                          {add_health_verb, {"health"}},
                                          {add_events_verb, {"events"}},
                                          {add_doctor_verb, {"doctor"}},
                                          {add_daemon_verbs, {"daemon"}},
                                          {add_device_verbs, {"device"}},
                                          {add_pool_verbs, {"pool"}},
                                          {add_region_verbs, {"region"}},
                                          {add_lease_verbs, {"lease"}},
                                          {add_vm_verbs, {"vm"}},
                                          {add_quota_verbs, {"quota"}},
                                          {add_reserve_verbs, {"reserve"}},
                                          {add_queue_verbs, {"queue"}},
                                          {add_audit_verb, {"audit"}},
                                          {add_host_verbs, {"host"}},
                                          {add_cert_verbs, {"cert"}},
                                          {add_fsck_verb, {"fsck"}},
                                          {add_state_verbs, {"state"}},
                                          {add_tensor_verbs, {"tensor"}},
                                          {add_checkpoint_verbs, {"checkpoint"}},
                                          {add_kv_verbs, {"kv"}},
                                          {add_run_verb, {"run"}},
                                          {add_top_verb, {"top"}},
                                          {add_tier_verbs, {"tier"}},
                                          {add_plan_verb, {"plan"}},
                                          {add_tiersim_verb, {"tiersim"}}};
  return all;
}

// The family of the verb that `arguments` name, behind options of `root`; none where they ask for help, or name no verb.
const Family* chosen_family(Command root, const std::vector<std::string>& arguments) {
  for (size_t index = 0; index < arguments.size(); ++index) {
    const std::string& word = arguments[index];
    if (word.size() > 1 && word[0] == '-') {
      const std::optional<Option> option = root.option(word.substr(0, word.find('=')));
      if (!option.has_value() || word == "-h" || word == "--help" || word == "--version") return nullptr;
      if (option->takes_value() && word.find('=') == std::string::npos) ++index;
      continue;
    }
    const auto found = std::find_if(families().begin(), families().end(), [&word](const Family& family) {
      return std::find(family.names.begin(), family.names.end(), word) != family.names.end();
    });
    return found == families().end() ? nullptr : &*found;
  }
  return nullptr;
}

}  // namespace

Option add_size_option(Command verb, std::string_view name, uint64_t& bytes, std::string_view help) {
  return add_number_option(verb, name, bytes, help, parse_size).type_name("SIZE");
}

Option add_on_fence_option(Command verb, std::string& word, std::string_view help) {
  return verb.add_option("--on-fence", word, help).one_of({"keep", "kill"});
}

Option add_duration_option(Command verb, std::string_view name, uint64_t& ns, std::string_view help) {
  return add_number_option(verb, name, ns, help, parse_duration).type_name("DURATION");
}

void on_verb(Command verb, Context& context, std::function<Status()> work) {
  verb.callback([verb, &context, work = std::move(work)] {
    const bool of_lists = context.format == OutputFormat::wide || context.format == OutputFormat::name;
    if (of_lists && !verb.option("--where").has_value()) {
      const std::string format = output_format_words()[static_cast<size_t>(context.format)];
      fail(context, Error{.code = ErrorCode::invalid_argument,
                          .where = "command line",
                          .detail = "--output " + format + " is for lists; '" + verb.path() +
                                    "' prints table, json or yaml"});
      return;
    }
    if (const Status done = work(); !done.ok()) fail(context, done.error());
  });
}

bool only_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

Result<LeaseId> lease_id_in(const std::string& name, const char* where) {
  if (name.empty())
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = "an empty text names no lease"};
  if (!only_digits(name)) return LeaseId{};
  uint64_t id = 0;
  if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc() || id == 0)
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = "there is no lease " + name + "; ids begin at 1"};
  return LeaseId{id};
}

Status set_output_format(Context& context, const std::string& word) {
  const std::vector<std::string>& words = output_format_words();
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "command line",
                 .detail = "'" + word + "' is no format: " + join(words, ", ")};
  context.format = static_cast<OutputFormat>(found - words.begin());
  output_style().yaml = context.format == OutputFormat::yaml;
  context.json = context.json || output_style().yaml || context.format == OutputFormat::json;
  return {};
}

Status check_label(const std::string& label) {
  if (!only_digits(label)) return {};
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = "check_label",
      .detail = "the label '" + label + "' would be taken for a lease's id; use one with a letter in it"};
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t word_bytes_max = 64;  // longer ones are no typing mistakes, and cost quadratic time
  if (word.size() > word_bytes_max) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    const bool prefix = word.size() >= 3 && candidate.rfind(word, 0) == 0;
    if (distance < best_distance || (prefix && best.empty())) {
      best = candidate;
      best_distance = std::min(distance, best_distance);
    }
  }
  return best;
}

std::string explain_unknown_word(Command root, const std::vector<std::string>& arguments) {
  Command at = root;
  for (size_t index = 0; index < arguments.size(); ++index) {
    const std::string& word = arguments[index];
    if (word == "--") return "";
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = word.substr(0, word.find('='));
      const std::optional<Option> option = find_option(at, name);
      if (!option.has_value()) {
        // Short options may be grouped or carry their value; only CLI11 can tell.
        if (word[1] != '-') return "";
        return explain_unknown("unknown option", name, option_names(at), at.path());
      }
      if (option->takes_value() && name.size() == word.size()) ++index;
      continue;
    }
    const std::vector<Command> verbs = at.subcommands();
    if (verbs.empty()) continue;  // a positional argument
    const auto next =
        std::find_if(verbs.begin(), verbs.end(), [&word](Command verb) { return verb.name() == word; });
    if (next == verbs.end()) return explain_unknown("unknown verb", word, verb_names(at), at.path());
    at = *next;
  }
  return "";
}

CommandLine build_parser(Context& context) {
  return build_parser_for(context, {});
}

CommandLine build_parser_for(Context& context, const std::vector<std::string>& arguments) {
  CommandLine line({.name = "terrace",
                    .description = "Terrace: pools of CXL memory, leased to programs",
                    .version = "terrace " + std::string(version_and_build()),
                    .footer = footer});
  const Command app = line.root();
  app.add_option("--socket", context.socket_path,
                 "The daemon's socket (default: $TERRACE_SOCKET, else its usual place)")
      .type_name("PATH");
  app.add_option("--connect", context.remote.address,
                 "A manager on another machine, over TLS (default: $TERRACE_CONNECT, without --socket)")
      .type_name("tls://HOST:PORT");
  app.add_option("--tls-cert", context.remote.certificate,
                 "Our certificate there (default: $TERRACE_TLS_CERT, else ~/.config/terrace/client.pem)")
      .type_name("FILE");
  app.add_option("--tls-key", context.remote.key,
                 "Its key (default: $TERRACE_TLS_KEY, else ~/.config/terrace/client.key)")
      .type_name("FILE");
  app.add_option("--tls-ca", context.remote.ca,
                 "The CA that the manager must be of (default: $TERRACE_TLS_CA, else ~/.config/terrace/ca.pem)")
      .type_name("FILE");
  app.add_option("--tls-name", context.remote.server_name,
                 "The manager's name: no other one of that CA will do")
      .type_name("NAME");
  app.add_flag("--json", context.json, "One JSON document on stdout, errors too; as --output json");
  const auto set_format = [&context](const std::string& word) { return set_output_format(context, word); };
  app.add_parsed_option("-o,--output", set_format,
                        "How results look; of lists also wide (every key of --json) and name (one a line)")
      .type_name(join(output_format_words(), "|"));
  const auto colour = [](const std::string& word) -> Status {
    if (set_colour(word)) return {};
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "command line",
                 .detail = "'" + word + "' is none of auto, always, never"};
  };
  app.add_parsed_option("--color", colour, "Colours in tables (default auto: on a terminal without NO_COLOR)")
      .type_name("auto|always|never");
  add_duration_option(app, "--timeout", context.call_timeout_ns,
                      "How long to wait for an answer (default 60s)");

  if (const Family* family = chosen_family(app, arguments); family != nullptr) {
    family->add(app, context);
    add_examples(app);
    return line;
  }
  for (const Family& family : families()) family.add(app, context);
  add_completion_verb(app, context);
  add_help_verb(app, context);
  add_version_verb(app, context);
  add_man_verb(app, context);
  add_examples(app);
  return line;
}

}  // namespace terrace::cli
