// SPDX-License-Identifier: Apache-2.0
// `terrace tier set|pause|resume`: asks programs, one range after the other, and shows how each is then.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/tier/tier_describe.h"
#include "cli/tier/tier_request.h"
#include "cli/tier/tier_verbs.h"
#include "tiering/policy/policy.h"

namespace terrace::cli {
namespace {

using layout::TierState;

constexpr uint64_t wait_ns_default = 5 * ns_per_s;

struct TierChangeArguments {
  std::string process, range;
  bool all = false;
  uint64_t wait_ns = wait_ns_default;
  std::string copy_budget;
  std::optional<uint64_t> ddr_bytes_max;
  std::string policy;
};

// "512M", "2G/s"; "none": no bound.
Result<uint64_t> parse_copy_budget(const std::string& text) {
  if (text == "none") return uint64_t{0};
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes,
                           parse_size(text.ends_with("/s") ? text.substr(0, text.size() - 2) : text));
  // 0 is how the engine says "no bound"; who writes 0 means the opposite.
  if (bytes == 0)
    return tier_usage("--copy-budget 0 would be no bound: write 'none' for that, or use 'terrace tier pause'");
  return bytes;
}

Result<TierRequest> request_of(const TierChangeArguments& arguments) {
  TierRequest request;
  request.ddr_bytes_max = arguments.ddr_bytes_max;
  request.policy = arguments.policy;
  if (!arguments.policy.empty()) TERRACE_RETURN_IF_ERROR(check_policy(arguments.policy));
  if (!arguments.copy_budget.empty()) {
    TERRACE_ASSIGN_OR_RETURN(request.copy_bytes_per_s_max, parse_copy_budget(arguments.copy_budget));
  }
  return request;
}

// One range that is asked.
struct Asked {
  TierPageView page;
  TierRangeView range;
};

Result<std::vector<Asked>> ranges_to_change(const TierScan& scan, const TierChangeArguments& arguments) {
  std::vector<Asked> asked;
  if (arguments.all) {
    // Those that migrate nothing anyhow have nothing to pause.
    for (const TierPageView& page : scan.pages)
      for (const TierRangeView& range : page.ranges)
        if (range.state == TierState::running || range.state == TierState::paused)
          asked.push_back({page, range});
    return asked;
  }
  TERRACE_ASSIGN_OR_RETURN(const TierPageView page, choose_one(scan, arguments.process));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierRangeView> ranges,
                           ranges_of(page, arguments.process, arguments.range));
  for (const TierRangeView& range : ranges) asked.push_back({page, range});
  return asked;
}

nlohmann::json changed_json(const Asked& one) {
  return {{"pid", one.page.pid}, {"program", one.page.program}, {"range", to_json(one.range)}};
}

std::string changed_line(const Asked& one) {
  const TierRangeView& range = one.range;
  return one.page.title() + " " + range.name + ": " + tier_state_name(range.state) + ", policy " +
         or_dash(range.policy) + ", " + format_size(range.numbers.ddr_bytes_max) +
         " of DDR, copies: " + describe_rate(range.numbers.copy_bytes_per_s_max) + "\n";
}

// How the range is now, as its process says.
Asked look_again(const TierPlaces& places, Asked one) {
  const auto file = open_tier_page(places, one.page, TierAccess::read);
  const auto now = file.ok() ? file->read() : Result<TierPageView>(file.error());
  if (now.ok())
    for (const TierRangeView& range : now->ranges)
      if (range.index == one.range.index) one.range = range;
  return one;
}

Status change(Context& context, const TierChangeArguments& arguments, const TierRequest& request) {
  const TierPlaces places = TierPlaces::own();
  const TierScan scan = scan_tier_pages(places);
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Asked> asked, ranges_to_change(scan, arguments));
  nlohmann::json changed = nlohmann::json::array();
  std::string text;
  for (const Asked& one : asked) {
    if (Status done = ask_tier_engine(places, one.page, one.range, request, arguments.wait_ns); !done.ok()) {
      fail_with(context, done.error(), "changed", changed, text);
      return {};
    }
    const Asked now = look_again(places, one);
    changed.push_back(changed_json(now));
    text += changed_line(now);
  }
  if (context.json)
    print_json({{"changed", changed}});
  else
    print_text(text.empty() ? "no range migrates now: nothing to do\n" : text);
  return {};
}

Status change_settings(Context& context, const TierChangeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const TierRequest request, request_of(arguments));
  if (request.policy.empty() && !request.ddr_bytes_max.has_value() && !request.copy_bytes_per_s_max.has_value())
    return tier_usage("say what to change: --policy, --ddr, --copy-budget");
  return change(context, arguments, request);
}

Status change_paused(Context& context, const TierChangeArguments& arguments, bool paused) {
  if (arguments.all == !arguments.process.empty())
    return tier_usage(arguments.all ? "either a process or --all" : "say which process, or --all");
  TierRequest request;
  request.paused = paused;
  return change(context, arguments, request);
}

// --- the parser

std::string policy_type() {
  std::string names;
  for (const tiering::PolicyEntry& entry : tiering::policies())
    names += (names.empty() ? "" : "|") + std::string(entry.name);
  return names;
}

std::string policy_help() {
  std::string text = "Which granules are where:";
  for (const tiering::PolicyEntry& entry : tiering::policies())
    text += std::string(" ") + entry.name + " (" + entry.what + ");";
  text.back() = ' ';
  text.pop_back();
  return text;
}

void add_set_verb(Command family, Context& context) {
  Command set = family.add_subcommand("set", "Another policy or budget for a process, or one of its ranges");
  const auto arguments = std::make_shared<TierChangeArguments>();
  add_tier_process(set, arguments->process).required();
  add_tier_range(set, arguments->range);
  set.add_option("--policy", arguments->policy, policy_help()).type_name(policy_type());
  const auto parse_ddr = [arguments](const std::string& text) -> Status {
    TERRACE_ASSIGN_OR_RETURN(arguments->ddr_bytes_max, parse_size(text));
    return {};
  };
  set.add_parsed_option("--ddr", parse_ddr, "What the range may have in DDR").type_name("SIZE");
  set.add_option(
         "--copy-budget", arguments->copy_budget,
         "How much may be copied a second, as 512M or 2G/s, for all ranges of the process; 'none': no bound")
      .type_name("SIZE");
  add_duration_option(set, "--wait", arguments->wait_ns,
                      "How long to wait for the process's answer (default 5s)");
  on_verb(set, context, [&context, arguments] { return change_settings(context, *arguments); });
}

void add_pause_verb(Command family, Context& context, bool pause) {
  Command verb = family.add_subcommand(pause ? "pause" : "resume",
                                       pause ? "No more moves in a process, until resume" : "Moves again");
  const auto arguments = std::make_shared<TierChangeArguments>();
  add_tier_process(verb, arguments->process);
  add_tier_range(verb, arguments->range);
  verb.add_flag("--all", arguments->all,
                ::geteuid() == 0 ? "Every process of this machine" : "Every process of this user");
  add_duration_option(verb, "--wait", arguments->wait_ns, "How long to wait for each answer (default 5s)");
  on_verb(verb, context, [&context, arguments, pause] { return change_paused(context, *arguments, pause); });
}

}  // namespace

void add_tier_change_verbs(Command family, Context& context) {
  add_set_verb(family, context);
  add_pause_verb(family, context, true);
  add_pause_verb(family, context, false);
}

}  // namespace terrace::cli
