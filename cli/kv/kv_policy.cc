// SPDX-License-Identifier: Apache-2.0
// `terrace kv policy`: how many bytes namespaces may have, and what stays.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/kv/key_text.h"
#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

constexpr const char* verb_name = "terrace kv policy";

struct KvPolicyArguments {
  std::string where, name_space;
  std::vector<std::string> budgets, no_budgets, keep, no_keep, keep_keys, no_keep_keys;
  bool changes() const {
    return !(budgets.empty() && no_budgets.empty() && keep.empty() && no_keep.empty() && keep_keys.empty() &&
             no_keep_keys.empty());
  }
};

Error not_there(const std::string& what) {
  return Error{.code = ErrorCode::not_found,
               .where = verb_name,
               .detail = "the policy has no " + what + "; `terrace kv policy` without options shows it"};
}

// NAMESPACES=SIZE, of which the last = counts: names may have one.
Status add_budget(KvPolicy& policy, const std::string& given) {
  const size_t at = given.rfind('=');
  if (at == std::string::npos)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = verb_name,
                 .detail = "--budget takes NAMESPACES=SIZE, as team-a=4G, not '" + given + "'"};
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes, parse_size(given.substr(at + 1)));
  const std::string namespaces = given.substr(0, at);
  std::erase_if(policy.budgets, [&](const KvBudget& budget) { return budget.namespaces == namespaces; });
  policy.budgets.push_back({.namespaces = namespaces, .bytes = bytes});
  return {};
}

Status change_kept(KvPolicy& policy, const KvKept& kept, bool stays, const std::string& shown) {
  const size_t before = policy.kept.size();
  std::erase(policy.kept, kept);
  if (stays)
    policy.kept.push_back(kept);
  else if (policy.kept.size() == before)
    return not_there(shown + " that is kept");
  return {};
}

Status change(KvPolicy& policy, const KvPolicyArguments& arguments) {
  for (const std::string& name : arguments.no_budgets)
    if (std::erase_if(policy.budgets, [&](const KvBudget& budget) { return budget.namespaces == name; }) == 0)
      return not_there("budget of '" + name + "'");
  for (const std::string& given : arguments.budgets) TERRACE_RETURN_IF_ERROR(add_budget(policy, given));
  for (const std::string& name : arguments.no_keep)
    TERRACE_RETURN_IF_ERROR(change_kept(policy, {.namespaces = name}, false, "namespace '" + name + "'"));
  for (const std::string& name : arguments.keep)
    TERRACE_RETURN_IF_ERROR(change_kept(policy, {.namespaces = name}, true, ""));
  for (const bool stays : {false, true})
    for (const std::string& text : stays ? arguments.keep_keys : arguments.no_keep_keys) {
      TERRACE_ASSIGN_OR_RETURN(const std::string key, key_of_text(text, verb_name));
      TERRACE_RETURN_IF_ERROR(change_kept(policy, {.namespaces = arguments.name_space, .key = key}, stays,
                                          "key '" + text + "' of that namespace"));
    }
  return {};
}

void show(const Context& context, const KvPolicy& policy, const KvStat& stat) {
  nlohmann::json budgets = nlohmann::json::array(), kept = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows;
  for (const KvBudgetUse& use : stat.budgets) {
    budgets.push_back(
        {{"namespaces", use.budget.namespaces}, {"bytes", use.budget.bytes}, {"used_bytes", use.used_bytes}});
    rows.push_back({"budget", or_dash(use.budget.namespaces), "-",
                    format_size(use.used_bytes) + " of " + format_size(use.budget.bytes)});
  }
  for (const KvKept& one : policy.kept) {
    const std::string key = one.key.empty() ? "" : text_of_key(one.key);
    kept.push_back({{"namespaces", one.namespaces}, {"key", key}});
    rows.push_back({"kept", or_dash(one.namespaces), or_dash(key), "-"});
  }
  if (context.json) {
    print_json({{"budgets", budgets}, {"kept", kept}, {"kept_bytes", stat.kept_bytes}});
    return;
  }
  if (rows.empty()) {
    print_text("no budgets, and nothing is kept\n");
    return;
  }
  print_table({"WHAT", "NAMESPACES", "KEY", "BYTES"}, rows);
}

Status kv_policy(const Context& context, const KvPolicyArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, verb_name));
  TERRACE_ASSIGN_OR_RETURN(const auto space,
                           attach_kv(place, arguments.changes() ? KvUse::writes : KvUse::reads));
  TERRACE_ASSIGN_OR_RETURN(KvPolicy policy, space->policy());
  if (arguments.changes()) {
    TERRACE_RETURN_IF_ERROR(change(policy, arguments));
    if (Status set = space->set_policy(policy); !set.ok()) return kv_error_at(place, std::move(set).error());
  }
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, space->stat());
  show(context, policy, stat);
  return {};
}

}  // namespace

void add_kv_policy_verb(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvPolicyArguments>();
  Command policy = kv.add_subcommand(
      "policy", "How many bytes namespaces may have, and what stays; shows it, or changes it");
  policy.footer(
      "NAMESPACES is a namespace and all whose names begin with it and a '/': team-a is a tenant, team-a/llama "
      "a model of\n"
      "its own. Programs that have the space open hear of a change within some seconds.");
  add_kv_where(policy, arguments->where);
  policy.add_option("--budget", arguments->budgets, "Their blocks may have so many bytes; may be repeated")
      .type_name("NAMESPACES=SIZE");
  policy.add_option("--no-budget", arguments->no_budgets, "They have no budget any more")
      .type_name("NAMESPACES");
  policy.add_option("--keep", arguments->keep, "None of their blocks goes for want of room")
      .type_name("NAMESPACES");
  policy.add_option("--no-keep", arguments->no_keep, "They are kept no longer").type_name("NAMESPACES");
  policy
      .add_option("--keep-key", arguments->keep_keys,
                  "This block, and what comes before it in its prompt, stays")
      .type_name("KEY");
  policy.add_option("--no-keep-key", arguments->no_keep_keys, "It is kept no longer").type_name("KEY");
  add_kv_namespace(policy, arguments->name_space);
  on_verb(policy, context, [&context, arguments] { return kv_policy(context, *arguments); });
}

}  // namespace terrace::cli
